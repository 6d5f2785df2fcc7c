"""Batched generation with a Transformers Qwen-VL model on a CPU; knows nothing of veRL or Ray.

`cpu/server.py: TransformersServer` gives requests to `cpu/generation/generator.py: Generator.add` and calls `decode`
until all have their replies: one token for every running request a pass. `prompts` makes positions and image features,
`kv_cache` packs all sequences into one row, `prefix` keeps finished ones, which the next turn of an episode continues.
"""
