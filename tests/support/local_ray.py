"""One Ray, and on it one TransferQueue, for all tests of this process: to start them takes seconds."""

import ray
import transfer_queue as tq
from omegaconf import OmegaConf

from arpo_verl.lib import own_ray

ATTEMPTS = 5


def start_ray(num_cpus=2, **options):
    """Start a local Ray of one's own, as a run does."""
    quiet = {"include_dashboard": False, "log_to_driver": False}
    return own_ray.start_ray(ray.init, address="local", num_cpus=num_cpus, **quiet, **options)


def in_a_few_attempts(start):
    """What `start` returns: a node that Ray starts by itself has 30 s, and a busy machine needs more."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return start()
        except Exception:
            if attempt == ATTEMPTS:
                raise


def share_ray():
    """Have the Ray that tests share. A node of it may have two Docker desktops."""
    if not ray.is_initialized():
        start_ray(num_cpus=16, resources={"docker:here": 2})


def share_queue():
    """Have a TransferQueue on it, started as veRL's task runner does. Without a row, whoever had it before."""
    share_ray()
    backend = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}
    tq.init(OmegaConf.create({"enable": True, "backend": backend}))
    for partition_id, keys in (tq.kv_list() or {}).items():
        if keys:
            tq.kv_clear(keys=list(keys), partition_id=partition_id)
    return tq


def end_ray():
    """End it, for a test that has a Ray of its own and at the end of all."""
    if ray.is_initialized():
        tq.close()
        ray.shutdown()
