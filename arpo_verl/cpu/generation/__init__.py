"""Batched generation with a Transformers Qwen-VL model on a CPU; knows nothing of veRL or Ray."""
