"""Read and check tasks before anything starts: OSWorld's JSON files, and other sources in that format.

`tasks/loader.py: load_tasks` reads a file, a folder, an index, a shipped suite (`embedded/`, `embedded_long/`) or a
package's tasks (`tasks/sources.py: source_tasks`); `schema` finds what is malformed, by what `catalogue`
and `signatures` read in the client's source.
`tasks/selection.py: load_selected_tasks` does the same for the recipe's section `data.tasks`; the dataset and the check
before a run call it. `tasks/frontier.py: Frontier.draw` chooses the next task by what the policy can do.
`tasks/validation.py: explain_task` says why this machine cannot run a task, from `programs` and `internet`. `expert`
has replies that solve the shipped suites. `families/` generates tasks from seeds, each with its own replies.
"""

from arpo_verl.tasks.loader import load_tasks

__all__ = ["load_tasks"]
