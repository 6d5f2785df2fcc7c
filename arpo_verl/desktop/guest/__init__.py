"""What runs inside the sandbox of an embedded desktop.

Only this folder of the package is visible there, under another name, so nothing here imports `arpo_verl`. Process 1 is
`init`; it boots the desktop and forks the HTTP server and the warm interpreters that carry out `python -c` commands.
"""
