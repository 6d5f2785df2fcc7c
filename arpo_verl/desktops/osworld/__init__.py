"""OSWorld's unmodified client as a `DesktopEnvironment`; embedded desktops and Docker machines go through it alike.

`desktops/osworld/environment.py: OSWorldEnvironment` turns `reset`, `step` and `evaluate` into calls of
`desktops/osworld/client.py: Client`, OSWorld's own `DesktopEnv`, which runs a task's set-up, getters and metrics.
Imports go one way: `client` uses `absent_results` and `bundles` (for tasks with their own programs); `evaluation` uses
the client. The other modules report what the client only logs (`guest_http`, `absent_results`), make it start fast
(`lean_imports`), keep files apart (`task_files`), and remove containers (`docker_containers`, `docker_reaper`).
"""
