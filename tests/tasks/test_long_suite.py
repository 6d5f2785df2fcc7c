"""The long tasks: their length and form, and on real desktops that a script solves them and nothing less does."""

import pytest
from support.suite_desktops import as_the_policy_writes, play_all, scores

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.tasks import load_tasks
from arpo_verl.tasks.expert import expert_replies, expert_task_ids
from arpo_verl.tasks.loader import EMBEDDED_LONG
from arpo_verl.tasks.validation import explain_task
from arpo_verl.tools.cli.main import main

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
def test_no_two_replies_of_a_script_are_alike(task_id):
    """So a policy that sees a few screenshots and the older replies' text knows how far it is."""
    replies = expert_replies(task_id)
    assert len({reply.thought for reply in replies}) == len(replies)


# --- On real desktops --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def here():
    """The tasks whose programs are installed: all but for LibreOffice's, where `make osworld-packages` did not run."""
    return [task for task in TASKS.values() if not explain_task(task, EnvironmentConfig())]


@pytest.mark.release
@pytest.mark.desktop
def test_the_expert_solves_each(here):
    results = play_all((task, as_the_policy_writes(expert_replies(task.task_id))) for task in here)
    assert [scores(result) for result in results] == [[1.0]] * len(here)


@pytest.mark.release
@pytest.mark.desktop
def test_nothing_less_solves_them(here):
    """Neither nothing, nor half of the script, nor all but its last action."""

    def parts(task):
        replies = expert_replies(task.task_id)[:-2]
        half = len(replies) // 2
        return [[], as_the_policy_writes(replies[:half]), as_the_policy_writes(replies[half:])]

    results = play_all((task, *parts(task)) for task in here)
    assert [scores(result) for result in results] == [[0.0, 0.0, 0.0]] * len(here)


@pytest.mark.release
@pytest.mark.desktop
def test_try_plays_a_script_to_its_end(tmp_path, capsys):
    assert main(["try", "form-guests-four", "--expert", "--out", str(tmp_path)]) == 0
    assert "finished after 17 replies" in (printed := capsys.readouterr().out) and "score 1" in printed
