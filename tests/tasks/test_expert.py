"""The scripted expert: every task has a short script in the grammar, and it survives the policy's coarser view."""

import pytest
from support.suite_desktops import POLICY_VIEW

from arpo_verl.agent.actions.ui_tars import format_reply, parse_reply
from arpo_verl.errors import TaskError
from arpo_verl.tasks import load_tasks
from arpo_verl.tasks.expert import EXPERT_SCREEN, expert_replies, expert_task_ids
from arpo_verl.types import Click, Drag, Fail, Finish, Hotkey, Point, Scroll, TypeText

MAX_ACTIONS = 6


def actions_of(task_id):
    return [action for reply in expert_replies(task_id) for action in reply.actions]


def points_of(action):
    match action:
        case Click(point=point) | Scroll(point=Point() as point):
            return [point]
        case Drag(start=start, end=end):
            return [start, end]
    return []


def test_the_expert_knows_the_shipped_tasks_and_no_others():
    assert expert_task_ids() == sorted(task.task_id for task in load_tasks("embedded"))


def test_a_blank_line_separates_the_actions_of_one_reply():
    assert expert_replies("editor-write-hello")[0].actions == (TypeText("hello"), Hotkey(("ctrl", "s")))


def test_an_unknown_task_names_the_closest_known_one():
    with pytest.raises(TaskError, match="did you mean dialog-confirm-yes"):
        expert_replies("dialog-confirm-yess")


@pytest.mark.parametrize("task_id", expert_task_ids())
def test_a_script_acts_first_and_ends_the_episode_last(task_id):
    *acting, last = actions_of(task_id)
    assert not any(isinstance(action, (Finish, Fail)) for action in acting)
    if isinstance(last, Fail):
        assert acting == []
    else:
        assert isinstance(last, Finish)
        assert 1 <= len(acting) <= MAX_ACTIONS


@pytest.mark.parametrize("task_id", expert_task_ids())
def test_a_script_keeps_its_actions_in_the_policys_view(task_id):
    for reply in expert_replies(task_id):
        seen = parse_reply(format_reply(reply, POLICY_VIEW, EXPERT_SCREEN), POLICY_VIEW, EXPERT_SCREEN)
        assert seen.thought == reply.thought
        assert [type(action) for action in seen.actions] == [type(action) for action in reply.actions]
        pairs = zip(map(points_of, reply.actions), map(points_of, seen.actions), strict=True)
        for ours, theirs in (pair for lists in pairs for pair in zip(*lists, strict=True)):
            assert abs(ours.x - theirs.x) <= 1 and abs(ours.y - theirs.y) <= 1
