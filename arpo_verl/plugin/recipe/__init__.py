"""Check and estimate a composed recipe before anything starts. Training steps never enter this room.

`plugin/recipe/checks.py: check_recipe` makes all checks and reports all problems together. `values` checks single
options. Three tables check how options fit together: `combinations` what a run does, `sizes` what must divide, fit or
add up, `ranges` what a single value may be. `rules` defines their rows. `rehearsal` lets veRL calculate once with the
recipe's values, and `named` looks for the files and functions that the recipe names. `resuming` compares the recipe
with the checkpoint that it continues from. `footprint` counts steps, memory and disk.
"""
