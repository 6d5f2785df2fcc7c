"""Tasks: OSWorld's own JSON files, read and checked before anything starts, and other sources in that format.

`tasks/loader.py: load_tasks` reads a file, a folder, an index, a shipped suite (`embedded/`, `embedded_long/`) or what
a package brings (`tasks/sources.py: source_tasks`), with `schema` and `catalogue` saying what is malformed;
`tasks/selection.py: load_selected_tasks` is the same under the recipe's section `data.tasks`, called by the dataset and
by the check before a run. `tasks/frontier.py: Frontier.draw` says which task training plays next, where it goes by what
the policy can do. `tasks/validation.py: explain_task` says why this machine cannot run one, from `programs` and
`internet`. `expert` has the replies that solve the shipped suites. `families/` generates tasks from seeds, each with
its own replies.
"""

from arpo_verl.tasks.loader import load_tasks

__all__ = ["load_tasks"]
