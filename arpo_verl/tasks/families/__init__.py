"""Families generate tasks from seeds, so that a policy cannot learn them by heart.

`tasks/families/generation.py: generate` makes a task from a split and a number. A family of `kinds.py` draws words and
styles (`styles.py`) and places of windows (`windows.py`), and decides what to press. From that we make OSWorld's JSON,
the replies that solve it, and the labels on its screen. `python -m arpo_verl.tasks.families` writes tasks to a folder,
and `data.train_files=families:training:512` uses them directly.
"""

from arpo_verl.tasks.families.generation import SPLITS, GeneratedTask, generate, load, replies_of, write
from arpo_verl.tasks.families.styles import SCREEN, Label, Rectangle

__all__ = ["SCREEN", "SPLITS", "Rectangle", "GeneratedTask", "Label", "generate", "load", "replies_of", "write"]
