"""Decide which past successes enter which groups, and why. Needs neither veRL nor Ray.

`plugin/sampler.py: Replayer` forms groups (`replay/groups.py: form_groups`), has `replay/planner.py: ReplayPlanner`
choose successes from the `store/` by one of the `methods/`, and injects them with `plugin/rows.py: inject`. Each replay
keeps the `rules`.
`trajectory` is a success as a value. `prefetch` rebuilds likely replays while other groups still generate. `distance`
measures how far replayed tokens are from the policy, `metrics` counts. `config` is the recipe's section `replay`, with
the reason for each option.
"""
