"""Loaded into the stock trainer by VERL_USE_EXTERNAL_MODULES: another plugin, which puts veRL's own function back.

ARPO_VERL_UNDONE names the module of veRL's that calls the function by this name, and the function: `module:name`.
"""

import os

import wrapt

MODULE, NAME = os.environ["ARPO_VERL_UNDONE"].split(":")


def _undo(module):
    setattr(module, NAME, getattr(module, NAME).__wrapped__)


wrapt.register_post_import_hook(_undo, MODULE)
