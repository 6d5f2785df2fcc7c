"""Episodes on virtual machines: evaluated as elsewhere, and played again where a machine is lost."""

import asyncio
import contextlib
import dataclasses
import os
import signal
import uuid

import psutil
import pytest
from support.desktop_harness import eventually
from support.machines import BOOT_TIMEOUT_S, SCREEN, patient, sandboxes

pytest.importorskip("desktop_env")
pytest.importorskip("ray")

from support.disturbed import TASK, play_session  # noqa: E402
from support.local_ray import start_ray  # noqa: E402

from arpo_verl.desktops.config import EnvironmentConfig  # noqa: E402
from arpo_verl.desktops.osworld.environment import OSWorldEnvironment  # noqa: E402
from arpo_verl.desktops.pool.desktop_pool import DesktopPool  # noqa: E402
from arpo_verl.errors import DesktopLostError  # noqa: E402
from arpo_verl.tasks.expert import expert_replies  # noqa: E402
from arpo_verl.types import Wait  # noqa: E402

pytestmark = pytest.mark.vm


@pytest.fixture
def options(config, image, folder, tmp_path):
    """An environment section at the pace of an emulated machine."""
    return {
        "provider": "qemu",
        "screen_size": list(SCREEN),
        "path_to_vm": str(image.disk),
        "vm": dataclasses.asdict(config),
        "cache_dir": str(tmp_path / "cache"),
        "action_pause_s": 2,
        "evaluate_pause_s": 2,
        "boot_timeout_s": BOOT_TIMEOUT_S,
        "reset_timeout_s": 2 * BOOT_TIMEOUT_S,
    }


@pytest.fixture
def desktop(options):
    desktop = OSWorldEnvironment(EnvironmentConfig(**options))
    with contextlib.closing(desktop):
        yield desktop


def test_a_task_is_played_and_evaluated(desktop):
    desktop.reset(patient(TASK))
    assert desktop.evaluate().score == 0.0
    desktop.reset(patient(TASK))
    for reply in expert_replies(TASK.task_id):
        for action in reply.actions:
            desktop.step(action)
    assert desktop.evaluate().score == 1.0


def test_a_machine_that_is_gone_gives_no_score(desktop):
    desktop.reset(patient(TASK))
    os.kill(desktop._provider._machine.pid, signal.SIGKILL)
    eventually(desktop._provider.why_gone)
    with pytest.raises(DesktopLostError, match="was gone before its task was evaluated"):
        desktop.evaluate()
    with pytest.raises(DesktopLostError, match="is gone: its QEMU ended with"):
        desktop.step(Wait())


def kill_machines():
    """Those of this process, whose workers run them."""
    for process in psutil.Process().children(recursive=True):
        if process.name().startswith("qemu-system"):
            process.kill()


def test_a_machine_killed_in_an_episode_costs_an_attempt_and_is_not_scored(options, policy, no_ray, tmp_path):
    start_ray(_node_ip_address="127.0.0.1")
    section = {**options, "num_desktops": 1, "max_attempts": 3}
    pool = DesktopPool.connect(EnvironmentConfig(**section), name=uuid.uuid4().hex)
    before = sandboxes()
    try:
        episode = play_session(policy, policy[0], pool, section, patient(TASK), kill_machines, tmp_path)
        output = asyncio.run(asyncio.wait_for(episode, 4 * BOOT_TIMEOUT_S))
        metrics = pool.metrics()
    finally:
        pool.close()
    assert output.reward_score == 1.0
    assert len(list(tmp_path.glob("*/*/episode.json"))) == 1, "nothing of the lost attempt is recorded"
    assert metrics["environment/faults/lost"] >= 1
    eventually(lambda: sandboxes() <= before)
    assert os.listdir(f"{options['vm']['folder']}/writable") == []
