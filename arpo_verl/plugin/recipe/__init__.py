"""A composed recipe, checked and estimated before anything starts. No training step comes through this room.

`plugin/recipe/checks.py: check_recipe` makes every check and reports all problems together. It takes single options
from `values`, and options that contradict each other from two tables: `combinations` says what a run does, `sizes` what
must divide, fit or add up. Both are made of `rules`. `resuming` compares it with the checkpoint that it goes on from.
`footprint` counts steps, memory and disk.
"""
