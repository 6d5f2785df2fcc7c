"""Episodes that a user's program plays: it asks for replies as from an OpenAI server, and we train what was sampled.

`harness/player.py: HarnessEpisodes` plays them. The program (`loading`: a function or a command) talks to
`harness/client.py: HarnessClient`, in the process or over `harness/server.py: HarnessServer`, and to
`harness/played_desktop.py: PlayedDesktop`. `chat_completions` reads its requests, a
`harness/policy_chat.py: PolicyChat` has the policy reply, `transcript` makes rows of tokens of the replies, and
`recorded` those of a record. Needs neither veRL nor Ray.
"""
