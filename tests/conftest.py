"""What tests of several folders need, and how `-n` shares the tests out."""

import os

import pytest

# Small models: on two busy cores, a second thread of Torch's more than doubled what imitation cost in CPU time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
TRAINER = "tests/trainer/"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A file's tests share a worker, and so do all that start the trainer: one start serves several files."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return TRAINER if nodeid.startswith(TRAINER) else super()._split_scope(nodeid)

    config.option.loadscopereorder = False
    return Scheduling(config, log)


def pytest_collection_modifyitems(config, items):
    """A worker begins with the trainer, which takes longest."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(TRAINER))


@pytest.fixture(scope="session")
def start_ray():
    """Starts a local Ray; see `ray_start.py`."""
    import ray_start

    return ray_start.start_ray
