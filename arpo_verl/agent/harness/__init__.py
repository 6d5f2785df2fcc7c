"""Episodes that a user's program plays: it asks for replies as from an OpenAI server, and we train what was sampled.

`agent/harness/player.py: HarnessEpisodes` plays them. The program (`loading`: a function or a command) talks to
`agent/harness/client.py: HarnessClient`, in the process or over `agent/harness/server.py: HarnessServer`, and to
`agent/harness/played_desktop.py: PlayedDesktop`. `chat_completions` reads its requests, a
`agent/harness/policy_chat.py: PolicyChat` has the policy reply, `transcript` makes rows of tokens of the replies, and
`records/harness_rows.py` those of a record. Needs neither veRL nor Ray.
"""
