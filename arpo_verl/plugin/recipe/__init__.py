"""Check and estimate a composed recipe before anything starts. Training steps never enter this room.

`plugin/recipe/checks.py: check_recipe` makes all checks and reports all problems together. `values` lets veRL check the
recipe and finds missing values, `silent` refuses what veRL passes over in silence, `options` reads a recipe by its
options' names. `resuming` compares the recipe with the checkpoint that it continues from. `footprint` counts steps,
memory and disk.
"""
