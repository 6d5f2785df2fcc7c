"""What `arpo-verl doctor` looks at, a module a subject: packages and registrations, the machine, tasks.

`cli/doctor.py: run` prints the `cli/checks/finding.py: Finding`s, each with what to do about it.
"""
