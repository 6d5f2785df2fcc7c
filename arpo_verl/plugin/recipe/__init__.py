"""A composed recipe, checked and estimated before anything starts. No training step comes through this room.

`plugin/recipe/checks.py: check_recipe` makes every check and reports all problems together. It takes single options
from `values`, and options that contradict each other from three tables: `combinations` says what a run does, `sizes`
what must divide, fit or add up, `ranges` what a single value may be. All are made of `rules`. `rehearsal` has veRL
calculate once with the recipe's values, and `named` looks for the files and functions that the recipe names. `resuming`
compares it with the checkpoint that it goes on from. `footprint` counts steps, memory and disk.
"""
