"""What runs inside the sandbox of an embedded desktop.

Only this folder of the package is visible there, under another name, so nothing here imports `arpo_verl`. Process 1 is
`desktops/embedded/guest/init.py: Init`. It boots the desktop (`session`) and forks the HTTP server
(`desktops/embedded/guest/server.py: serve`, with routes in `commands`, `files`, `screen`, `windows` and so on) and the
warm interpreters (`interpreter`), which run `python -c` commands: every click and key of an agent. For bundles it also
forks the mock web applications (`web_apps`), and it runs their reward program itself (`reward_program`).
Outside of the desktop, where none of its programs can reach it, another process runs evaluators' commands (`apart`).
"""
