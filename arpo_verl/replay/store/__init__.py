"""The store of past successes: bounded, compact, and a folder that no kill tears. docs/replay.md has the format.

`plugin/sampler.py: Replayer` adds to and chooses from a `replay/store/success_store.py: SuccessStore`, which keeps a
trajectory as one line (`record`) and its screenshots by content (`screenshots`, `encoding`). With each
checkpoint `replay/store/persistence.py: save_store` writes it, and `load_store` refuses another policy's. `inspection`,
`export` and `merging` are `arpo-verl replay`'s.
"""
