"""Which success replaces which failure, and why. Free of veRL and Ray.

`plugin/sampler.py: Replayer` forms groups (`replay/choice.py: form_groups`), has `replay/choice.py: choose_replays`
choose a success of the `store/` for each group that triggers, and injects it itself: `plugin/rows.py: inject`.
`trajectory` is a success as a value, `prefetch` rebuilds likely replays while other groups still generate,
`distance` says how far replayed tokens are from the policy, `metrics` counts. `config` is the recipe's section
`replay`, with the reason for each option.
"""
