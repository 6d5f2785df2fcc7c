"""These are the checks of `arpo-verl doctor`, one module for each subject: packages, the machine, tasks and so on.

`tools/cli/doctor.py: run` prints each `tools/cli/checks/finding.py: Finding`, with what to do about it.
"""
