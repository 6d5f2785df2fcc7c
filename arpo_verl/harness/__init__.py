"""Episodes that a program of the user's plays: it asks for replies as from an OpenAI server, and what was sampled is
trained.

`harness/player.py: HarnessEpisodes` plays them. The program (`loading`: a function or a command) talks to
`harness/client.py: HarnessClient`, in the process or over `harness/endpoint.py: Endpoint`, and to
`harness/played_desktop.py: PlayedDesktop`. `requests` reads what it sends, a `harness/policy_chat.py: PolicyChat` has
the policy reply, `transcript` makes rows of tokens of the replies, `recorded` those of a record. Needs neither veRL nor
Ray.
"""
