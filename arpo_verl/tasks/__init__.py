"""Tasks: OSWorld's own JSON files, read and checked before anything starts."""

from arpo_verl.tasks.loader import load_tasks

__all__ = ["load_tasks"]
