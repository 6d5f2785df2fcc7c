"""A real desktop is brought to the state of a recorded success, and known to be in it."""

import asyncio

import pytest
from support.fake_pool import AsyncDesktop
from support.suite_desktops import POLICY_VIEW

from arpo_verl.actions.ui_tars import format_reply
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.osworld.environment import OSWorldEnvironment
from arpo_verl.errors import PrefixError
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.rollout.episode import play
from arpo_verl.rollout.prefix import Prefix
from arpo_verl.rollout.scripted import ScriptedConversation, replies_of
from arpo_verl.tasks import load_tasks
from arpo_verl.tasks.expert import EXPERT_SCREEN, expert_replies

pytestmark = pytest.mark.release

TASK = "form-new-contact"


@pytest.fixture(scope="module")
def played():
    """Play the task with some of the expert's replies, on one desktop after the other's clean-up."""
    (task,) = (task for task in load_tasks("embedded") if task.task_id == TASK)
    texts = [format_reply(reply, POLICY_VIEW, EXPERT_SCREEN) for reply in expert_replies(TASK)]
    desktop = OSWorldEnvironment(EnvironmentConfig(), "resume")

    def play_these(replies, prefix=None):
        conversation = ScriptedConversation(replies_of([texts[number] for number in replies]), POLICY_VIEW)
        config = GuiAgentConfig(max_steps=len(texts))
        return asyncio.run(play(task, AsyncDesktop(desktop, "resume"), conversation, config, prefix=prefix))

    yield play_these, range(len(texts))
    desktop.close()


@pytest.mark.desktop
def test_the_same_steps_lead_to_the_recorded_state_and_others_do_not(played):
    play_these, steps = played
    success = play_these(steps)
    assert success.success == 1.0 and len(success.screenshots) == len(steps) >= 3

    def prefix(length):
        first, state = success.screenshots[0], success.screenshots[length]
        return Prefix.of_screenshots(((0,),) * length, len(steps) - length, first, state, 4)

    for length in (1, 2):
        again = play_these(steps, prefix(length))
        assert (again.success, again.num_given) == (1.0, length)
    with pytest.raises(PrefixError, match="after 1 steps of a success the desktop was not in its state: .* cells"):
        play_these(steps[1:], prefix(1))
