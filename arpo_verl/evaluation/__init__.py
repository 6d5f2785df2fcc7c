"""Beside a training run: policies measured on tasks, compared, and a list of tasks chosen by what they reach.

A `evaluation/results.py: Trial` is played and becomes a `evaluation/results.py: Result` for each turn budget, or a
`evaluation/results.py: FailedTrial`, which is no score. `evaluation/runner.py: evaluate` plays what a
`evaluation/schedule.py: Scheduler` asks for; `evaluation/policy.py: Policy` is who plays: a server
(`evaluation/endpoint.py: EndpointPolicy`), or a checkpoint (`evaluation/own_engine.py: OwnEngine`), found and merged by
`evaluation/checkpoint.py: model_folder`. From records alone:
`evaluation/report.py: write_report`, `evaluation/compare.py: compare`;
`evaluation/filter_run.py: filter_tasks` plays for a list of tasks.
"""
