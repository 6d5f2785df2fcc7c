"""The trainer's side and the desktops in two virtual environments, OSWorld's client in the desktops' alone."""

import json
import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from support import ROOT

pytest.importorskip("desktop_env")
pytest.importorskip("docker")

from support.desktop_harness import eventually  # noqa: E402
from support.fake_docker import FakeDocker  # noqa: E402

from arpo_verl.types import Size  # noqa: E402

pytestmark = pytest.mark.desktop

# Makes a package as if it were not installed.
HIDE = """
import sys
from importlib.machinery import PathFinder

class Hide(PathFinder):
    @classmethod
    def find_spec(cls, name, *arguments):
        return None if name.partition(".")[0] == {name!r} else super().find_spec(name, *arguments)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hide
"""

TRAINER = """
import asyncio, json, os, signal, sys
import ray
from support.local_ray import start_ray
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.pool.desktop_pool import DesktopPool
from arpo_verl.errors import DesktopError
from arpo_verl.tasks import load_tasks
from arpo_verl.tasks.expert import expert_replies

record, vm, python, cache = sys.argv[1:]
try:
    import desktop_env
except ImportError:
    desktop_env = None
start_ray(num_cpus=1, object_store_memory=100 * 2**20)
pool = DesktopPool.connect(EnvironmentConfig(
    provider="support.where_it_runs:make", provider_options={"record": record}, path_to_vm=vm, screen_size=(640, 480),
    num_desktops=1, py_executable=python, cache_dir=cache, action_pause_s=0.5, evaluate_pause_s=1,
))
task = next(task for task in load_tasks("embedded") if task.task_id == "editor-write-hello")

def pids():
    return [json.loads(line)["pid"] for line in open(record)]

async def solved():
    async with pool.lease(task.task_id) as desktop:
        await desktop.reset(task)
        for reply in expert_replies(task.task_id):
            for action in reply.actions:
                await desktop.step(action)
        return (await desktop.evaluate()).score

async def killed():
    async with pool.lease(task.task_id) as desktop:
        await desktop.reset(task)
        os.kill(pids()[-1], signal.SIGKILL)
        try:
            await desktop.evaluate()
        except DesktopError as error:
            return type(error).__name__

async def main():
    return {"before": await solved(), "fault": await killed(), "after": await solved()}

report = asyncio.run(main())
pool.close()
print("REPORT" + json.dumps(report | {"prefix": sys.prefix, "client": desktop_env is not None}), flush=True)
ray.shutdown()
"""


def make_python(folder, hidden=""):
    """A virtual environment that sees this one's packages, but for `hidden`; its interpreter."""
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    lines = [f"import site; site.addsitedir({path!r})" for path in {*map(sysconfig.get_path, ("purelib", "platlib"))}]
    if hidden:
        (site / "hide.py").write_text(HIDE.format(name=hidden))
        lines.append("import hide")
    (site / "shared.pth").write_text("\n".join(lines) + "\n")
    return folder / "bin" / "python"


@pytest.mark.release
def test_desktops_run_on_another_python_and_a_killed_worker_leaves_no_container(tmp_path):
    trainer, worker = make_python(tmp_path / "trainer", hidden="desktop_env"), make_python(tmp_path / "worker")
    record, vm = tmp_path / "record", tmp_path / "Ubuntu.qcow2"
    vm.write_text("")
    engine = FakeDocker(tmp_path, Size(640, 480))
    try:
        command = [trainer, "-c", TRAINER, record, vm, worker, tmp_path / "cache"]
        env = {**os.environ, "DOCKER_HOST": engine.host, "PYTHONPATH": str(ROOT / "tests")}
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=900)
        lines = [line for line in done.stdout.splitlines() if line.startswith("REPORT")]
        assert lines, done.stderr[-3000:]
        eventually(lambda: not engine.containers)
    finally:
        engine.close()
    report = json.loads(lines[0].removeprefix("REPORT"))
    assert report.pop("prefix") == str(tmp_path / "trainer")
    assert report.pop("fault").endswith("LostError")
    assert report == {"before": 1.0, "after": 1.0, "client": False}
    workers = [json.loads(line) for line in record.read_text().splitlines()]
    assert {worker["prefix"] for worker in workers} == {str(tmp_path / "worker")}
    assert all(worker["client"] for worker in workers)
    assert len({worker["pid"] for worker in workers}) == 2
    assert engine.unknown == []
