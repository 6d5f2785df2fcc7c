"""One Ray, and on it one TransferQueue, for all tests of this process: to start them takes seconds."""

import ray
import transfer_queue as tq
from omegaconf import OmegaConf

ATTEMPTS = 5


def start_ray(num_cpus=2, **options):
    """Start a local Ray of one's own. Ray gives itself 30 s and no option to wait longer: a busy machine needs more."""
    quiet = {"include_dashboard": False, "log_to_driver": False}
    return in_a_few_attempts(lambda: ray.init(address="local", num_cpus=num_cpus, **quiet, **options), ray.shutdown)


def in_a_few_attempts(start, clean_up=lambda: None):
    """What `start` returns, cleaning up after each attempt that failed."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return start()
        except Exception:
            clean_up()
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
