"""Policies measured on tasks: episodes played as in training, counted, compared, and a training list chosen by them.

A `evaluation/results.py: Trial` is played and becomes a `evaluation/results.py: Result` for each step budget, or a
`evaluation/results.py: Fault`, which is no score.
"""
