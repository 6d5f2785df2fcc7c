"""The shipped suite: its format, and on real desktops that the expert solves it and that doing nothing does not."""

import re

import pytest
from support import documents
from support.suite_desktops import as_the_policy_writes, play_all, scores

from arpo_verl.agent.actions.ui_tars import parse_reply
from arpo_verl.tasks import load_tasks
from arpo_verl.tasks.expert import expert_replies
from arpo_verl.types import Fail, Finish, Size

TASKS = {task.task_id: task for task in load_tasks("embedded")}
INFEASIBLE = {task_id for task_id, task in TASKS.items() if task.spec["evaluator"]["func"] == "infeasible"}
FEASIBLE = sorted(set(TASKS) - INFEASIBLE)

OSWORLD_KEYS = {"id", "snapshot", "instruction", "source", "config", "trajectory", "related_apps", "evaluator", "proxy"}


# --- Format ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task_id", TASKS)
def test_a_task_file_has_osworlds_keys_and_a_short_instruction(task_id):
    task = TASKS[task_id]
    assert set(task.spec) >= OSWORLD_KEYS
    assert task.instruction.endswith(".") and len(task.instruction.split()) <= 12
    assert not any("download" in step["type"] for step in task.spec["config"])


@pytest.mark.parametrize("task", load_tasks("embedded,embedded_long"), ids=lambda task: task.task_id)
def test_a_set_up_fails_where_its_window_does_not_show(task):
    """Else an episode would start on an empty screen and be scored."""
    last = task.spec["config"][-1]
    assert last["type"] == "execute_with_verification"
    assert re.search(r"xwd|arpo_guest.drawn", last["parameters"]["verification"]["command_success"])
    assert task.task_id not in TASKS or last["parameters"]["check_interval"] <= 0.05


# --- On real desktops --------------------------------------------------------------------------------------------


def expert(task):
    return as_the_policy_writes(expert_replies(task.task_id))


def idle(task):
    """Claim success at once."""
    yield Finish()


def give_up(task):
    yield Fail()


POLICIES = {"expert": expert, "idle": idle, "give_up": give_up}
EPISODES = [
    *((task_id, "expert") for task_id in TASKS),
    *((task_id, "idle") for task_id in TASKS),
    (FEASIBLE[0], "give_up"),
]


@pytest.fixture(scope="module")
def results():
    """The outcome of every episode: `{(task_id, policy): scores or exception}`."""
    played = play_all((TASKS[task_id], POLICIES[policy](TASKS[task_id])) for task_id, policy in EPISODES)
    return dict(zip(EPISODES, played, strict=True))


@pytest.mark.release
@pytest.mark.desktop
@pytest.mark.parametrize("task_id", TASKS)
def test_the_expert_solves_it(results, task_id):
    assert scores(results[task_id, "expert"]) == [1.0]


@pytest.mark.release
@pytest.mark.desktop
@pytest.mark.parametrize("task_id", TASKS)
def test_claiming_success_at_once_does_not_solve_it(results, task_id):
    assert scores(results[task_id, "idle"]) == [0.0]


@pytest.mark.release
@pytest.mark.desktop
def test_giving_up_does_not_solve_a_feasible_task(results):
    assert scores(results[FEASIBLE[0], "give_up"]) == [0.0]


@pytest.mark.release
@pytest.mark.desktop
def test_the_tutorial_s_task_is_solved_by_its_replies_and_not_by_doing_nothing(tmp_path):
    (spec,), (replies, *_) = (documents.code("docs/own-task.md", language) for language in ("json", "text"))
    (tmp_path / "task.json").write_text(spec)
    (task,) = load_tasks(str(tmp_path / "task.json"))
    screen = Size(448, 336)
    actions = [action for reply in replies.split("---\n") for action in parse_reply(reply, screen, screen).actions]
    assert [scores(played) for played in play_all([(task, actions), (task, [Finish()])])] == [[1.0], [0.0]]
