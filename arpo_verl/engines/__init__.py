"""What runs the model in our processes, and what we correct there: engines, screenshots on their way, patches.

`cpu/` lets stock veRL train without a GPU, `vllm/` keeps images and shared memory of vLLM's engines.
`engines/pixels.py: LazyPixels` has screenshots until a training process needs their pixels;
`engines/upstream_patches.py: Patch` replaces a function of veRL, vLLM or torchdata.
"""
