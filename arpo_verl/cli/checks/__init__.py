"""These are the checks of `arpo-verl doctor`, one module for each subject: packages, the machine, tasks and so on.

`cli/doctor.py: run` prints each `cli/checks/finding.py: Finding`, with what to do about it.
"""
