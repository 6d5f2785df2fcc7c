"""Beside a training run: what prepares, watches and measures runs. No training run imports it.

`tools/cli/main.py: main` is the command `arpo-verl`. `evaluation/` measures policies, `viewer/` shows runs,
`migration/` converts recipes of other projects, and `policy/` has the small policies that come with the package.
"""
