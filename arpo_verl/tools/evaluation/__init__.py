"""Beside a training run: this measures policies on tasks, compares them, and chooses training tasks by the results.

A played `tools/evaluation/results.py: Trial` becomes a `tools/evaluation/results.py: Result` for each turn budget, or a
`tools/evaluation/results.py: FailedTrial`, which has no score. `tools/evaluation/runner.py: evaluate` plays the trials
that a `tools/evaluation/schedule.py: Scheduler` asks for. The `tools/evaluation/policy.py: Policy` is a server
(`tools/evaluation/endpoint.py: EndpointPolicy`; `answers` reads its answers), or a checkpoint
(`tools/evaluation/own_engine.py: OwnEngine`), which `tools/evaluation/checkpoint.py: model_folder` finds and merges.
`tools/evaluation/report.py: write_report` and `tools/evaluation/compare.py: compare` read only the records.
`tools/evaluation/filter_run.py: filter_tasks` plays to choose tasks.
"""
