"""The desktop as a Gymnasium environment."""

import re
import subprocess
import sys
import warnings
from typing import get_args

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import arpo_verl
from arpo_verl import Click, Finish, Hotkey, Point, Task, TypeText, Wait
from arpo_verl.desktops.fake import FakeEnvironment, FakeScript
from arpo_verl.gym import DesktopEnv
from arpo_verl.types import Action

TASKS = [Task(name, f"Click the red square, {name}.", {}) for name in ("one", "two", "three")]


@pytest.fixture
def env():
    with DesktopEnv(TASKS, "fake", max_steps=3, render_mode="rgb_array") as env:
        yield env


EMBEDDED = pytest.param("embedded", marks=[pytest.mark.desktop, pytest.mark.release])


@pytest.mark.parametrize("desktop", ["fake", EMBEDDED])
def test_gymnasium_s_own_checker_finds_nothing(desktop):
    shipped = [task for task in arpo_verl.load_tasks("embedded") if task.task_id == "dialog-confirm-yes"]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module="gymnasium")
        env = DesktopEnv(TASKS if desktop == "fake" else shipped, desktop, render_mode="rgb_array")
        env.action_space.seed(0)  # the checker plays actions at random
        check_env(env, skip_render_check=True)


def test_a_desktop_that_scores_nan_is_an_error_and_no_reward(env, monkeypatch):
    monkeypatch.setattr(FakeEnvironment, "evaluate", lambda desktop: arpo_verl.Evaluation(float("nan")))
    env.reset()
    with pytest.raises(arpo_verl.EvaluatorError, match="got nan"):
        env.step(Finish())


def test_an_episode_by_typed_actions(env):
    screenshot, info = env.reset(options={"task_id": "two"})
    assert screenshot.shape == (480, 640, 3) and screenshot in env.observation_space
    assert info == {"task_id": "two", "instruction": "Click the red square, two."}
    screenshot, reward, terminated, truncated, info = env.step(Click(Point(35, 38)))
    assert (reward, terminated, truncated, info) == (0.0, False, False, {"task_id": "two"})
    assert np.array_equal(env.render(), screenshot)
    screenshot[:] = 0  # an observation is the caller's own
    screenshot, reward, terminated, truncated, info = env.step(Finish())
    assert screenshot.any()
    assert (reward, terminated, truncated, info) == (1.0, True, False, {"task_id": "two", "metrics": ()})


def test_a_desktop_that_the_policy_ended_ends_the_episode_at_0():
    with DesktopEnv(TASKS, FakeEnvironment(FakeScript(end={"step": [1]}))) as env:
        first, _ = env.reset()
        screenshot, reward, terminated, truncated, info = env.step(Click(Point(35, 38)))
        assert (reward, terminated, truncated) == (0.0, True, False) and "scripted end" in info["desktop_ended"]
        assert np.array_equal(screenshot, first)
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(Finish())


def test_a_truncated_episode_is_evaluated_too(env):
    env.reset()
    results = [env.step(action)[1:4] for action in (Click(Point(35, 38)), Wait(), Wait())]
    assert results == [(0.0, False, False), (0.0, False, False), (1.0, False, True)]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(Wait())


def test_a_seed_says_which_tasks_come(env):
    def drawn():
        return [env.reset(seed=7)[1]["task_id"], *(env.reset()[1]["task_id"] for _ in range(8))]

    assert drawn() == drawn() and set(drawn()) == {"one", "two", "three"}
    with pytest.raises(arpo_verl.TaskError, match="must be one of one, two, three, got 'four'"):
        env.reset(options={"task_id": "four"})


def test_a_sample_of_the_space_is_an_action_of_any_kind(env):
    env.action_space.seed(0)
    samples = [env.action_space.sample() for _ in range(300)]
    assert {type(sample) for sample in samples} == set(get_args(Action))
    assert all(sample in env.action_space for sample in samples) and Click(Point(640, 0)) not in env.action_space


def test_a_fault_is_an_exception_and_no_reward_and_a_failed_reset_no_episode():
    env = DesktopEnv(TASKS, "fake", provider_options={"fail": {"reset": [2], "step": [1]}})
    env.reset()
    with pytest.raises(arpo_verl.DesktopLostError):
        env.step(Wait())
    with pytest.raises(arpo_verl.DesktopSetupError):
        env.reset()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(Wait())


def test_tasks_may_be_named_as_for_load_tasks_and_options_of_a_reset_must_exist():
    env = DesktopEnv(["embedded"], "fake")
    assert len(env.tasks) == len(arpo_verl.load_tasks("embedded"))
    for bad in ({"taskid": "one"}, "one"):
        with pytest.raises(arpo_verl.ConfigError, match="options must be a mapping with task_id"):
            env.reset(options=bad)


def test_what_is_no_action_is_refused_before_it_reaches_the_desktop(env):
    env.reset()
    points = ([3, 4], Point(3.5, 0), Point(640, 480))
    for bad in ("click", None, {"kind": 0}, TypeText(5), Hotkey(()), *map(Click, points)):
        with pytest.raises(arpo_verl.ActionError, match="must"):
            env.step(bad)
    assert env.step(Finish())[2], "the episode went on"


def test_a_desktop_of_one_s_own_is_looked_at_for_its_size_and_closed():
    desktop, broken = (
        FakeEnvironment(screen_size=arpo_verl.Size(800, 600)),
        FakeEnvironment(FakeScript(fail={"reset": [1]})),
    )
    with DesktopEnv(TASKS, desktop) as env:
        assert env.observation_space.shape == (600, 800, 3)
    with pytest.raises(arpo_verl.ConfigError, match="options must be fields of EnvironmentConfig"):
        DesktopEnv(TASKS, FakeEnvironment(), wait_s=1.0)
    with pytest.raises(arpo_verl.DesktopSetupError):
        DesktopEnv(TASKS, broken)
    assert desktop.closed and broken.closed


def test_the_documented_name_makes_it_in_a_fresh_interpreter_and_bad_values_are_refused():
    (call,) = re.findall(r"gymnasium\.make\(\S+\)", arpo_verl.gym.__doc__)
    on_a_fake = call.replace(")", ", desktop='fake')")
    probe = f"import gymnasium; env = {on_a_fake}; print(env.spec.to_json(), env.reset(seed=1)[0].shape)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert '"id": "arpo_verl/Desktop-v0"' in done.stdout and "(480, 640, 3)" in done.stdout, done.stderr
    for bad in ({"max_steps": 0}, {"render_mode": "human"}, {"tasks": []}):
        with pytest.raises(arpo_verl.ConfigError, match="must be"):
            DesktopEnv(**{"tasks": TASKS, "desktop": "fake", **bad})
