"""What our runs change in the processes of vLLM's engines: how images reach them, and what they leave when killed.

`engines/vllm/images.py: ImageHolder` holds the images of a turn, whose bytes are in `memory_files`.
`engines/vllm/segments.py: register` is vLLM's entry point.
"""
