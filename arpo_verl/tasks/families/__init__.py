"""Families of tasks that are generated from seeds, so that none of them is learnt by heart.

`tasks/families/generation.py: generate` makes the task of a split and a number: a family of `kinds.py` draws words
(`lexicon.py`), looks (`styles.py`) and places of windows (`windows.py`), and says what is to be pressed; it becomes
OSWorld's JSON, the replies that solve it, and the labels on its screen. `python -m arpo_verl.tasks.families` writes
them to a folder, and `data.train_files=families:training:512` takes them as they are.
"""

from arpo_verl.tasks.families.generated import SCREEN, GeneratedTask, Label, Rectangle
from arpo_verl.tasks.families.generation import SPLITS, generate, load, replies_of, write

__all__ = ["SCREEN", "SPLITS", "Rectangle", "GeneratedTask", "Label", "generate", "load", "replies_of", "write"]
