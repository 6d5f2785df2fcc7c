"""Generate in batches with a Transformers Qwen-VL model on a CPU, without veRL or Ray.

`engines/cpu/server.py: TransformersServer` passes requests to `engines/cpu/generation/generator.py: Generator.add` and
calls `decode` until all have their replies: a pass makes one token for every running request. `prompts` makes positions
and image features, `kv_cache` packs all sequences into one row, and `prefix` keeps finished ones for an episode's next
turn.
"""
