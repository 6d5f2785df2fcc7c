"""The whole command on scripted desktops: made once, used again, never half made."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.errors import ConfigError, TaskError
from arpo_verl.policy import prepare
from arpo_verl.policy.__main__ import main
from arpo_verl.policy.prepare import PolicyConfig, prepare_policy
from arpo_verl.policy.warm_start import WarmStartResult


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


@pytest.mark.release
def test_another_context_is_another_policy_of_the_same_demonstrations(on_fakes, settings, tmp_path):
    """No episode here is longer than a window, so both imitate the same rows."""
    first = prepare_policy(tmp_path / "policy", settings)
    window = replace(settings, context="window", max_screenshots=2)
    other = prepare_policy(tmp_path / "policy", window)
    assert not other.reused and prepare_policy(tmp_path / "policy", window).reused
    assert other.report["mean_success"] == first.report["mean_success"] and len(on_fakes) == 1


def test_a_number_of_epochs_lets_the_learning_rate_fall(on_fakes, settings, tmp_path, monkeypatch):
    configs = []

    def imitate(model, images, demonstrations, config):
        configs.append(config)
        return WarmStartResult(1, 0.5, {"red": 0.1})

    monkeypatch.setattr("arpo_verl.policy.warm_start.imitate", imitate)
    for number, epochs in enumerate((None, 7)):
        prepare_policy(tmp_path / f"policy-{number}", replace(settings, epochs=epochs))
    assert [(config.decay, config.max_epochs) for config in configs] == [(False, 120), (True, 7)]


def test_interrupted_run_leaves_no_policy(on_fakes, settings, tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("arpo_verl.policy.warm_start.imitate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        prepare_policy(tmp_path / "policy", settings)
    assert [path.name.startswith("policy-demonstrations-") for path in tmp_path.iterdir()] == [True]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target_success", 1),
        ("demonstrations_per_task", 0),
        ("num_desktops", 0),
        ("epochs", 0),
        ("context", "windows"),
        ("max_screenshots", 0),
        ("gui_agent.kept_screenshots", 2),
    ],
)
def test_an_impossible_value_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"^{name} must be "):
        PolicyConfig(**{name.removeprefix("gui_agent."): value})


def test_a_folder_with_something_else_is_left_alone(on_fakes, settings, tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="--out must be a new folder"):
        prepare_policy(tmp_path, settings)
    assert (tmp_path / "thesis.tex").exists()


def test_the_command_says_what_it_found(on_fakes, tmp_path, capsys):
    report = {"num_parameters": 1_300_000, "epochs": 40, "mean_success": 0.36, "success_by_task": {"a": 0.1, "b": 0.6}}
    report["key"] = prepare._policy_key(PolicyConfig(), prepare.load_tasks("embedded"))
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "warm_start.json").write_text(json.dumps(report))
    assert main(["--out", str(tmp_path / "policy")]) == 0
    assert "is up to date: 1.3 M parameters" in capsys.readouterr().out


def test_the_command_tells_a_bad_value_in_one_line(tmp_path, capsys):
    assert main(["--out", str(tmp_path / "policy"), "--target-success", "2"]) == 2
    assert capsys.readouterr().err == (
        "arpo_verl.policy: target_success must be between 0 and 1, got 2.0; 0.36 leaves RL something to learn\n"
    )


def test_a_task_unknown_to_the_expert_is_named(tmp_path, monkeypatch, tasks):
    monkeypatch.setattr(prepare, "load_tasks", lambda path: tasks)
    with pytest.raises(TaskError, match="no script for the task 'red'"):
        prepare_policy(tmp_path / "policy", PolicyConfig())
