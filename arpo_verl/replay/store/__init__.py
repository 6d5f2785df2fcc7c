"""Store past successes: bounded, compact, and in a folder that a kill never damages. docs/replay.md has the format.

`plugin/sampler.py: Replayer` adds successes to a `replay/store/success_store.py: SuccessStore` and a method of
`replay/methods` chooses from it. The store keeps a trajectory as one line (`record`), and its screenshots by content
(`screenshots`).
`replay/store/persistence.py: save_store` writes it with each checkpoint, and `load_store` refuses another policy's.
`inspection`, `export` and `merging` serve `arpo-verl replay`.
"""
