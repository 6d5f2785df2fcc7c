"""The run's folder, both ends: what is written of a run, where, and how it is read back.

`layout` has every name in it, once; `run_lock` keeps a second trainer out. Written: the agent loop opens a
`records/recorder.py: EpisodeWriter` for each episode; `records/documents.py: EpisodeRecord` says what goes into
`episode.json`, `episode_folder` puts it in its place, `budget` bounds it, `starts` notes what ran. Read:
`records/run.py: open_run` gives a `Run`, which reads episodes (`summaries`), what training made of them (`groups`),
curves (`metrics`, `metric_names`) and what goes on just now (`live`), each file once while it grows; `listing` finds
the episodes for both ends. `recorded` reads whole episodes to seed a store or to imitate, `run_summary` what a run
reached; `step_lines` makes a line of each training step, `film_strip` draws an episode. docs/trajectories.md has the
format.
"""
