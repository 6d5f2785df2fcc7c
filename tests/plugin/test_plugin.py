"""In a fresh interpreter, as each Ray worker is one, `import verl` brings every name."""

import subprocess
import sys

import pytest


def run_fresh(code: str, **env: str) -> subprocess.CompletedProcess:
    import os

    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env})


@pytest.mark.release
def test_every_name_is_registered_with_a_fresh_verl():
    probe = (
        "import verl\n"
        "from hydra.utils import get_class\n"
        "from verl.experimental.agent_loop.agent_loop import _agent_loop_registry as loops\n"
        "from verl.trainer.ppo.core_algos import get_adv_estimator_fn\n"
        "from verl.workers.rollout.base import _ROLLOUT_REGISTRY as engines\n"
        "from verl.plugin.platform import get_platform\n"
        "print(get_class(loops['gui_agent']['_target_']), get_adv_estimator_fn('replay_grpo').__name__)\n"
        "print(('transformers', 'async') in engines, get_platform().device_name)\n"
    )
    result = run_fresh(probe, VERL_PLATFORM="cpu")
    assert result.stdout.splitlines()[-2:] == [
        "<class 'arpo_verl.plugin.agent_loop.GuiAgentLoop'> compute_replay_grpo_advantage",
        "True cpu",
    ], result.stderr[-2000:]


@pytest.mark.release
def test_without_the_cpu_platform_nothing_of_it_is_loaded():
    probe = "import sys, verl; print([m for m in sys.modules if m.startswith('arpo_verl.engines.cpu.')])"
    result = run_fresh(probe, VERL_PLATFORM="")
    assert result.stdout.splitlines()[-1:] == ["[]"], result.stderr[-2000:]


@pytest.mark.release
def test_a_failing_registration_is_told_at_error_level():
    # veRL itself would hide it: it logs a failing plugin at debug level only.
    probe = "import sys; sys.modules['arpo_verl.engines.cpu'] = None\nimport verl"
    result = run_fresh(probe, VERL_PLATFORM="cpu")
    (line,) = result.stderr.splitlines()
    assert (
        "could not register with verl.plugin.platform: ModuleNotFoundError: import of arpo_verl.engines.cpu halted"
        in line
    )
