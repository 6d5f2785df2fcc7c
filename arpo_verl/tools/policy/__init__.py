"""Beside a training run: the small policies in the package, to start RL without a GPU.

`seeing` reads the words on a screen and clicks them (docs/seeing.md). `tools/policy/shipped.py: write_shipped` writes a
policy as an ordinary Hugging Face folder, for `actor_rollout_ref.model.path`. `engines/optimizer.py: UpperLayersAdamW`
trains its upper layers. `make_policy.py` made them (`git show 1872a385:benchmarks/make_policy.py`).
"""
