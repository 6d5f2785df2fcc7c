"""Beside a training run: each command of `arpo-verl` is a module. `add_parser` declares its options, `run` runs it.

`tools/cli/main.py: main` is the entry point; `tools/cli/main.py: build_parser` lists the commands. They call the rooms
and print the results; nothing imports them. `checks/` has the checks of `doctor`. `trainer_process` belongs
to `train`, `by_hand` to `try`; `playing_options` and `playing` to `evaluate` and `filter-tasks`; `options` reads
the recipe's section `environment` from a command line.
"""
