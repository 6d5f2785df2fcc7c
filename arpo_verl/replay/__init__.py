"""Decide which success replaces which failure, and why. Needs neither veRL nor Ray.

`plugin/sampler.py: Replayer` forms groups (`replay/choice.py: form_groups`), calls `replay/choice.py: choose_replays`
to choose a success from the `store/` for each group that all failed, and injects it with `plugin/rows.py: inject`.
`trajectory` is a success as a value. `prefetch` rebuilds likely replays while other groups still generate. `distance`
measures how far replayed tokens are from the policy, `metrics` counts. `config` is the recipe's section `replay`, with
the reason for each option.
"""
