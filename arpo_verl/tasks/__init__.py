"""Tasks: OSWorld's own JSON files, read and checked before anything starts.

`tasks/loader.py: load_tasks` reads a file, a folder, an index or the shipped suite (`embedded/`), with `schema` and
`catalogue` saying what is malformed; `tasks/selection.py: load_selected_tasks` is the same under the recipe's section
`data.tasks`, called by the dataset and by the check before a run. `tasks/validation.py: explain_task` says why this
machine cannot run one, from `programs` and `internet`. `expert` has the replies that solve the shipped suite.
"""

from arpo_verl.tasks.loader import load_tasks

__all__ = ["load_tasks"]
