"""Beside a training run: the commands of `arpo-verl`, a module each. `add_parser` declares options, `run` does it.

`cli/main.py: main` is the entry point; `cli/main.py: build_parser` lists the commands. They call the rooms and print
what comes of it; nothing imports them. `checks/` is what `doctor` looks at. `trainer_process` and `step_display` belong
to `train`; `by_hand` and `replies` to `try`; `playing_options`, `playing` (what is played, and how) and `policies` (who
plays) to `evaluate` and `filter-tasks`; `options` reads the recipe's section `environment` from a command line.
"""
