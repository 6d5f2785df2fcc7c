"""A row's `multi_modal_inputs` with the pixel values made, as the training engine has them."""

from arpo_verl.pixels import LazyPixels


def made(inputs):
    return {name: value.tensor() if isinstance(value, LazyPixels) else value for name, value in inputs.items()}
