"""A veRL that lacks one of the names that arpo_verl needs, each in turn; and one beside which nothing of ours runs.

    VERL_USE_EXTERNAL_PLUGINS=none python -m support.upstream_walk

prints what happened in each case, a fork of one process that has imported all modules. A missing vLLM's are stand-ins.
"""

import importlib
import json
import multiprocessing
import os
import sys
import threading
from functools import partial
from types import ModuleType

import verl  # noqa: F401  first: it sets what Ray reads
from tqdm import tqdm

from arpo_verl.engines import upstream_patches
from arpo_verl.errors import PatchLostError
from arpo_verl.lib.post_import import require_registered

REGISTRIES = [
    ("verl.experimental.agent_loop.agent_loop", "_agent_loop_registry"),
    ("verl.trainer.ppo.core_algos", "register_adv_est"),
]
PATCHES = upstream_patches.all_patches()
PATCHED = [(patch.module, name) for patch in PATCHES.values() for name in patch.names]


def find(module, name):
    owner, _, attribute = name.rpartition(".")
    return (getattr(sys.modules[module], owner) if owner else sys.modules[module]), attribute


def import_or_stand_in(module, names):
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        sys.modules[module] = ModuleType(module)
        for name in names:
            if (owner := name.rpartition(".")[0]) and not hasattr(sys.modules[module], owner):
                setattr(sys.modules[module], owner, type(owner, (), {}))
            setattr(*find(module, name), lambda *_: None)


def register(marker):
    """Load our plugins as veRL and vLLM do, on a CPU."""
    os.environ.update(marker, VERL_PLATFORM="cpu")
    importlib.import_module("arpo_verl.plugin")
    importlib.import_module("arpo_verl.engines.vllm.segments").register()


def without(module, name):
    """What is refused, by the patch's name, in a run of ours whose upstream has another name for this."""
    owner, attribute = find(module, name.removesuffix(".__init__"))
    setattr(owner, f"{attribute}_2", getattr(owner, attribute))
    delattr(owner, attribute)
    register({"ARPO_VERL_RUN": "1"})
    refused = {}
    for key, check in [
        *((key, patch.check) for key, patch in PATCHES.items()),
        ("names", partial(require_registered, "verl.")),
    ]:
        try:
            check()
        except PatchLostError as error:
            refused[key] = str(error)
    return refused


def changes(version):
    """What differs once our plugins are loaded: in no run of ours (None), or in one beside this version of veRL."""
    before = [getattr(*find(*place)) for place in PATCHED]
    lock, threads = tqdm.get_lock(), threading.active_count()
    upstream_patches.installed_version = lambda package: version
    register({} if version is None else {"ARPO_VERL_RUN": "1"})
    changed = [".".join(at) for at, value in zip(PATCHED, before, strict=True) if getattr(*find(*at)) is not value]
    return changed, tqdm.get_lock() is lock, threading.active_count() == threads


if __name__ == "__main__":
    for module, _ in REGISTRIES:
        importlib.import_module(module)
    for patch in PATCHES.values():
        import_or_stand_in(patch.module, patch.names)
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as forks:
        walked = forks.starmap(without, [*PATCHED, *REGISTRIES], chunksize=1)
        beside = forks.map(changes, [None, "0.9.1", "0.9.2"], chunksize=1)
    print(json.dumps([dict(zip(map(".".join, [*PATCHED, *REGISTRIES]), walked, strict=True)), beside]))
