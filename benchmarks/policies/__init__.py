"""How the small policies that come with the package were made; `benchmarks/make_policy.py` is the command.

`embedded`: `prepare.prepare_policy` has the scripted expert play each task on real desktops (`demonstrations`), makes a
tokenizer and a random model (`build`, `architecture`, `tokenizer`), and `warm_start.imitate` trains it on the
demonstrations, in the rows that the agent loop would make of them (`sequences`). `seeing` is a folder of its own.
"""
