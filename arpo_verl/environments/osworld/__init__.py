"""OSWorld's unmodified client as a `DesktopEnvironment`; embedded desktops and Docker machines go through it alike.

`environments/osworld/environment.py: OSWorldEnvironment` turns `reset`, `step` and `evaluate` into calls of
`environments/osworld/client.py: Client`, OSWorld's own `DesktopEnv`, which runs a task's set-up, getters and metrics.
Imports go one way: what `client` uses (`absent_results`, `bundle_steps`) stands below it, what evaluates with it
(`evaluation`, `share`, `bundles` for tasks with programs of their own) above it.
The rest makes it say aloud what it would only log (`guest_http`, `absent_results`, `noted_metrics`), start fast
(`lean_imports`), keep files apart (`task_files`, `downloads`), and leave no container (`docker_containers`,
`docker_reaper`).
"""
