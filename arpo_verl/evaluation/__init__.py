"""Beside a training run: this measures policies on tasks, compares them, and chooses training tasks by the results.

A played `evaluation/results.py: Trial` becomes a `evaluation/results.py: Result` for each turn budget, or a
`evaluation/results.py: FailedTrial`, which has no score. `evaluation/runner.py: evaluate` plays the trials that a
`evaluation/schedule.py: Scheduler` asks for. The `evaluation/policy.py: Policy` is a server (`evaluation/endpoint.py:
EndpointPolicy`; `answers` reads its answers), or a checkpoint (`evaluation/own_engine.py: OwnEngine`), which
`evaluation/checkpoint.py: model_folder` finds and merges. `evaluation/report.py: write_report` and
`evaluation/compare.py: compare` read only the records. `evaluation/filter_run.py: filter_tasks` plays to choose tasks.
"""
