"""What tests of several folders need, and how `-n` shares the tests out."""

import gc
import importlib.util
import os
import sys

import pytest

from arpo_verl.lib.own_ray import PATIENCE
from arpo_verl.lib.reaper import marked_environment

# What a test starts ends with this process, however that happens. A cluster's nodes wait as long as a run's own Ray.
os.environ.update({**PATIENCE, **marked_environment()})
# Small models: on two busy cores, a second thread of Torch's more than doubled what imitation cost in CPU time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# veRL's functions are replaced in this process, and in those that it starts, as in a run of ours.
os.environ["ARPO_VERL_RUN"] = "1"
TRAINER = "tests/trainer/"
# These share a Ray: to start one costs ten seconds of a processor.
WITH_RAY = (
    "tests/plugin/test_",
    "tests/lib/test_own_ray.py",
    "tests/desktops/pool/test_desktop_pool.py",
    "tests/engines/cpu/test_weights.py",
    "tests/tools/cli/test_evaluate.py",
    "tests/tools/evaluation/test_filter_desktop.py",
)
# Most files of a slow test are in these folders: a worker that began with one of them last would end alone.
SLOW = ("tests/desktops/", "tests/tools/viewer/", "tests/tools/cli/")
# Of the million objects that imports leave none is garbage: each look at all of them costs half a second.
gc.disable()
if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import HealthCheck, settings

    # Its limits on time, 0.2 s an example and one for making ten, are what a busy machine exceeds.
    settings.register_profile("no_times", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("no_times")
# Marks of tests that run only where `-m` names them: they take minutes, or need what not every machine has.
APART = ("release", "docker", "vllm", "vm", "easyr1")


def pytest_collection_finish():
    if importlib.util.find_spec("omegaconf") is not None:
        import support.quick_omegaconf  # noqa: F401
    gc.collect()
    gc.freeze()
    gc.enable()


def _shared(nodeid):
    """The name of those that it shares a worker with; "" for none beside its file's."""
    return TRAINER if nodeid.startswith(TRAINER) else "ray" if nodeid.startswith(WITH_RAY) else ""


def _turn(nodeid):
    """Its place in the order: the trainer's are 0."""
    beginnings = (TRAINER, WITH_RAY, SLOW, "")
    return next(turn for turn, beginning in enumerate(beginnings) if nodeid.startswith(beginning))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A file's tests share a worker, and so do all that start the trainer, and all that share a Ray."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return _shared(nodeid) or super()._split_scope(nodeid)

    config.option.loadscopereorder = False
    return Scheduling(config, log)


def pytest_collection_modifyitems(config, items):
    """Workers begin with the trainer and with Ray, which take longest, then slow files; what runs apart is left out."""
    apart = [mark for mark in APART if mark not in config.option.markexpr]
    left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in apart)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _turn(item.nodeid))


@pytest.fixture(scope="session")
def one_ray():
    """The Ray of this process, which `local_ray` starts, ends with it."""
    yield
    if "support.local_ray" in sys.modules:
        sys.modules["support.local_ray"].end_ray()


@pytest.fixture(scope="module")
def local_ray(one_ray):
    """A local Ray, the same for all modules of this process that ask for it; see `support/local_ray.py`."""
    from support.local_ray import share_ray

    share_ray()


@pytest.fixture(scope="module")
def no_ray():
    """For tests that start a Ray of their own in this process."""
    from support.local_ray import end_ray

    end_ray()
    yield
    end_ray()


@pytest.fixture
def empty_queue(local_ray):
    """A real TransferQueue without a row, as veRL's task runner starts it."""
    from support.local_ray import share_queue

    return share_queue()


@pytest.fixture(scope="session")
def model_path(tmp_path_factory):
    """A small Qwen2.5-VL with its processor, as the embedded recipe trains."""
    pytest.importorskip("transformers")
    from support.policies.architecture import PolicySize
    from support.policies.build import build_policy

    return str(build_policy(tmp_path_factory.mktemp("policy") / "qwen", size=PolicySize(num_layers=1, vision_depth=1)))


@pytest.fixture(scope="session")
def policy(model_path):
    """Its tokenizer and processor, loaded as veRL loads them."""
    pytest.importorskip("verl")
    from verl.utils import hf_processor, hf_tokenizer

    return hf_tokenizer(model_path), hf_processor(model_path)


@pytest.fixture
def tokenizer(policy):
    return policy[0]


@pytest.fixture
def written(tmp_path):
    """A run's folder, to write to."""
    from support.viewer_run import ViewerRun

    return ViewerRun(tmp_path / "a-run")


@pytest.fixture
def run(written, monkeypatch):
    """The reader of `written`, which looks at each call."""
    from arpo_verl.records import run as runs

    monkeypatch.setattr(runs, "REFRESH_S", 0.0)
    monkeypatch.setattr(runs, "_REST", 0)
    return runs.open_run(written.path)
