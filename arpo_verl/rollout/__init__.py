"""One episode, free of veRL: look, reply, act, until the agent or a limit ends it; then the verdict.

`rollout/episode.py: play` is the loop, for anything that replies (`rollout/conversation.py: Conversation`) on anything
that is a desktop; the agent loop calls `rollout/episode.py: play_episode`, whose conversation is the policy's one token
sequence (`sequence`, `chat`, `vision`); `arpo_verl.play` and `arpo-verl try` go through
`rollout/blocking.py: play_blocking`. `rollout/scoring.py: score_episode` makes the reward. `config` is the recipe's
section `gui_agent`.
"""
