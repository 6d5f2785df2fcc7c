"""OmegaConf that does nothing twice in this process: half of what it takes to compose a recipe, and of a check of one.

Hydra reads veRL's 31 files for each recipe, and each look at a reference parses it.
"""

import functools
import pickle

import omegaconf.base
from omegaconf import OmegaConf

VERLS = "/verl/trainer/config/"
_load = OmegaConf.load


@functools.cache
def _loaded(path: str) -> bytes:
    return pickle.dumps(_load(path))


def _load_once(file):
    name = str(getattr(file, "name", file))
    return pickle.loads(_loaded(name)) if VERLS in name else _load(file)


OmegaConf.load = staticmethod(_load_once)
# Nobody changes the trees.
omegaconf.base.parse = functools.lru_cache(maxsize=4096)(omegaconf.base.parse)
