"""The recipes as a package, `arpo_verl.recipes`: so that Hydra finds them under `pkg://arpo_verl.recipes`."""
