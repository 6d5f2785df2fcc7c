"""The whole command on scripted desktops: made once, used again, never half made."""

from __future__ import annotations

import pytest
from make_policy import main
from policies import prepare
from policies.prepare import PolicyConfig, prepare_policy

from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.errors import ConfigError, TaskError

pytestmark = pytest.mark.study


@pytest.fixture
def on_fakes(monkeypatch, tasks, expert):
    """Two tasks on scripted desktops instead of the shipped suite on real ones; tells what ran."""
    monkeypatch.setattr(prepare, "load_tasks", lambda path: tasks)
    monkeypatch.setattr(prepare, "expert_replies", expert)
    monkeypatch.setattr(
        prepare, "EnvironmentConfig", lambda **kwargs: EnvironmentConfig(provider="fake", max_attempts=1, **kwargs)
    )
    collected = []
    collect = prepare.collect_demonstrations
    monkeypatch.setattr(
        prepare, "collect_demonstrations", lambda *args, **kwargs: collected.append(1) or collect(*args, **kwargs)
    )
    return collected


@pytest.fixture
def settings(small_size):
    return PolicyConfig(target_success=0.02, size=small_size)


@pytest.mark.release
def test_a_finished_policy_is_used_again_and_another_target_keeps_the_demonstrations(
    on_fakes, settings, small_size, tmp_path
):
    first = prepare_policy(tmp_path / "policy", settings)
    again = prepare_policy(tmp_path / "policy", settings)
    other = prepare_policy(tmp_path / "policy", PolicyConfig(target_success=0.03, size=small_size))
    assert (first.reused, again.reused, other.reused) == (False, True, False)
    assert first.report == again.report and other.report["mean_success"] >= 0.03
    assert set(first.report["success_by_task"]) == {"red", "crimson"}
    assert len(on_fakes) == 1
    assert sorted(path.name.split("-")[0] for path in tmp_path.iterdir()) == ["policy", "policy"]


def test_a_folder_with_something_else_is_left_alone(on_fakes, settings, tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="--out must be a new folder"):
        prepare_policy(tmp_path, settings)
    assert (tmp_path / "thesis.tex").exists()


def test_the_command_tells_a_bad_value_in_one_line(tmp_path, capsys):
    assert main(["embedded", "--out", str(tmp_path / "policy"), "--target-success", "2"]) == 2
    assert capsys.readouterr().err == (
        "make_policy: target_success must be between 0 and 1, got 2.0; 0.36 leaves RL something to learn\n"
    )


def test_a_task_unknown_to_the_expert_is_named(tmp_path, monkeypatch, tasks):
    monkeypatch.setattr(prepare, "load_tasks", lambda path: tasks)
    with pytest.raises(TaskError, match="no script for the task 'red'"):
        prepare_policy(tmp_path / "policy", PolicyConfig())
