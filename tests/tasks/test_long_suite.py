"""The long tasks: their length and form, and on real desktops that a script solves them and nothing less does."""

import pytest
from support.suite_desktops import as_the_policy_writes, play_all, score

from arpo_verl.tasks import load_tasks
from arpo_verl.tasks.expert import expert_replies, expert_task_ids
from arpo_verl.tasks.loader import EMBEDDED_LONG
from arpo_verl.types import Finish, TypeText

TASKS = {task.task_id: task for task in load_tasks("embedded_long")}
LENGTHS = {
    "editor-five-animals": 20,
    "editor-five-cities": 20,
    "files-delete-six": 19,
    "files-move-four": 17,
    "files-new-months": 17,
    "form-choose-eight": 17,
    "form-guests-eight": 33,
    "form-guests-family": 17,
    "form-guests-four": 17,
    "sheet-eight-prices": 18,
    "sheet-two-columns": 19,
    "text-copy-three": 17,
}
MAX_THOUGHT_WORDS = 5


# --- Format ------------------------------------------------------------------------------------------------------


def test_a_dozen_tasks_take_more_steps_than_a_whole_history_has_screenshots():
    assert {task_id: len(expert_replies(task_id)) for task_id in TASKS} == LENGTHS
    assert 15 < min(LENGTHS.values()) and max(LENGTHS.values()) <= 40


def test_the_expert_knows_them_and_they_share_no_name_with_the_short_ones():
    assert expert_task_ids(EMBEDDED_LONG) == sorted(TASKS)
    assert not set(TASKS) & set(expert_task_ids())


def test_both_suites_can_be_named_together():
    assert len(load_tasks("embedded,embedded_long")) == 32 + 12


@pytest.mark.parametrize("task_id", TASKS)
def test_each_reply_is_one_action_and_a_short_thought(task_id):
    *acting, last = expert_replies(task_id)
    assert last.actions == (Finish(),)
    assert not any(isinstance(reply.actions[0], Finish) for reply in acting)
    for reply in acting:
        assert len(reply.actions) == 1 and 0 < len(reply.thought.split()) <= MAX_THOUGHT_WORDS
        assert not isinstance(reply.actions[0], TypeText) or len(reply.actions[0].text) <= 12


@pytest.mark.parametrize("task_id", TASKS)
def test_no_two_replies_of_a_script_are_alike(task_id):
    """So a policy that sees a few screenshots and the older replies' text knows how far it is."""
    replies = expert_replies(task_id)
    assert len({reply.thought for reply in replies}) == len(replies)


@pytest.mark.parametrize("task_id", TASKS)
def test_a_set_up_fails_where_its_window_does_not_show(task_id):
    last = TASKS[task_id].spec["config"][-1]
    assert last["type"] == "execute_with_verification"
    assert "xwd" in last["parameters"]["verification"]["command_success"]


# --- On real desktops --------------------------------------------------------------------------------------------


def whole(replies):
    return replies


def all_but_the_last_action(replies):
    return [*replies[:-2], replies[-1]]


def nothing(replies):
    return replies[-1:]


PARTS = {part.__name__: part for part in (whole, all_but_the_last_action, nothing)}
EPISODES = [(task_id, part) for part in PARTS for task_id in TASKS]


@pytest.fixture(scope="module")
def results():
    """The outcome of every episode: `{(task_id, part): score or exception}`."""
    played = play_all(
        (TASKS[task_id], as_the_policy_writes(PARTS[part](expert_replies(task_id)))) for task_id, part in EPISODES
    )
    return dict(zip(EPISODES, played, strict=True))


@pytest.mark.desktop
@pytest.mark.parametrize("task_id", TASKS)
def test_the_script_solves_it_and_nothing_less_does(results, task_id):
    scores = {part: score(results[task_id, part]) for part in PARTS}
    assert scores == {"whole": 1.0, "all_but_the_last_action": 0.0, "nothing": 0.0}
