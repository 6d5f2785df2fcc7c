"""Play one episode, without veRL: look, reply, act, until the agent or a limit ends it. Then the evaluator scores it.

`agent/rollout/episode.py: play` is the loop. It takes any `agent/rollout/conversation.py: Conversation` and any
desktop. The agent loop calls `agent/rollout/episode.py: play_episode`, where the conversation is the policy's tokens
(`sequence`, `chat`, `vision`). `arpo_verl.play` and `arpo-verl try` call `agent/rollout/blocking.py: play_blocking`.
`agent/rollout/scoring.py: score_episode` makes the reward. `config` is the recipe's section `gui_agent`.
"""
