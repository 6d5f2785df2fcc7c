"""What runs inside the sandbox of an embedded desktop.

Only this folder of the package is visible there, under another name, so nothing here imports `arpo_verl`. Process 1 is
`desktop/guest/init.py: Init`; it boots the desktop (`session`) and forks the HTTP server
(`desktop/guest/server.py: serve`, whose routes are in `commands`, `files`, `screen`, `windows` and so on), the warm
interpreters (`interpreter`) that carry out `python -c` commands: every click and key of an agent, and for bundles the
mock web applications (`web_apps`). It runs their reward program itself (`reward_program`).
Outside of the desktop, where no program of it reaches, another process runs evaluators' commands (`apart`).
"""
