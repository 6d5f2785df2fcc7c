"""Writes a run's folder and reads it back.

`layout` has the name of every file, and `run_lock` keeps a second trainer out. To write, the agent loop opens a
`records/recorder.py: EpisodeWriter` for each episode. `records/documents.py: EpisodeRecord` makes `episode.json`,
`episode_folder` puts it in its place, `budget` limits its size, and `starts` notes what ran. To read, `records/run.py:
open_run` returns a `Run`. It reads episodes (`episode_file`, `summaries`), how training used them (`groups`), curves
(`metrics_files`, explained in `metric_names`) and what happens now (`live`), each file once while it grows; `listing`
finds the episodes for both sides. `recorded` reads whole episodes, to seed a store or to imitate; `run_summary` reads a
run's results. `step_lines` makes a line for each training step, `film_strip` draws an episode. docs/trajectories.md has
the format.
"""
