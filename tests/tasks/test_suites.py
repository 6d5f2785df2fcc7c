"""The shipped suites and their expert: their form; on real desktops a script solves a task, and nothing less does."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import documents

from arpo_verl.agent.actions.ui_tars import format_reply, parse_reply
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.errors import TaskError
from arpo_verl.tasks import load_tasks
from arpo_verl.tasks.expert import EXPERT_SCREEN, expert_replies, expert_task_ids
from arpo_verl.tasks.validation import explain_task
from arpo_verl.tools.cli.main import main
from arpo_verl.types import Click, Drag, Fail, Finish, Hotkey, Point, Scroll, Size, TypeText

SHORT, LONG = ({task.task_id: task for task in load_tasks(suite)} for suite in ("embedded", "embedded_long"))
OSWORLD_KEYS = {"id", "snapshot", "instruction", "source", "config", "trajectory", "related_apps", "evaluator", "proxy"}
MAX_ACTIONS = 6
POLICY_VIEW = Size(364, 252)
"""What the policy sees of the screen: the processor's resize of 640x480 within 128 * 28 * 28 pixels."""
NUM_DESKTOPS = 3


def points_of(action):
    match action:
        case Click(point=point) | Scroll(point=Point() as point):
            return [point]
        case Drag(start=start, end=end):
            return [start, end]
    return []


# --- Form --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task_id", SHORT)
def test_a_short_task_has_osworlds_keys_a_short_instruction_and_a_short_script(task_id):
    task = SHORT[task_id]
    assert set(task.spec) >= OSWORLD_KEYS
    assert task.instruction.endswith(".") and len(task.instruction.split()) <= 12
    assert not any("download" in step["type"] for step in task.spec["config"])
    *acting, last = [action for reply in expert_replies(task_id) for action in reply.actions]
    assert not any(isinstance(action, (Finish, Fail)) for action in acting)
    assert isinstance(last, Finish if acting else Fail) and len(acting) <= MAX_ACTIONS
    for reply in expert_replies(task_id):
        seen = parse_reply(format_reply(reply, POLICY_VIEW, EXPERT_SCREEN), POLICY_VIEW, EXPERT_SCREEN)
        assert seen.thought == reply.thought
        assert [type(action) for action in seen.actions] == [type(action) for action in reply.actions]
        for pair in zip(reply.actions, seen.actions, strict=True):
            for ours, theirs in zip(*map(points_of, pair), strict=True):
                assert abs(ours.x - theirs.x) <= 1 and abs(ours.y - theirs.y) <= 1


def test_a_dozen_tasks_take_more_steps_than_a_whole_history_has_screenshots():
    lengths = {task_id: len(expert_replies(task_id)) for task_id in LONG}
    assert len(lengths) == 12 and 15 < min(lengths.values()) and max(lengths.values()) == 33
    for task_id in LONG:
        # So a policy that sees a few screenshots and the older replies' text knows how far it is.
        assert len({reply.thought for reply in expert_replies(task_id)}) == lengths[task_id]


@pytest.mark.parametrize("task", [*SHORT.values(), *LONG.values()], ids=lambda task: task.task_id)
def test_a_set_up_fails_where_its_window_does_not_show(task):
    """Else an episode would start on an empty screen and be scored."""
    last = task.spec["config"][-1]
    assert last["type"] == "execute_with_verification"
    assert re.search(r"xwd|arpo_guest.drawn", last["parameters"]["verification"]["command_success"])
    assert task.task_id not in SHORT or last["parameters"]["check_interval"] <= 0.05


def test_the_expert_knows_the_shipped_tasks_and_no_others():
    assert expert_task_ids() == sorted(SHORT) and expert_task_ids("embedded_long") == sorted(LONG)
    assert len(load_tasks("embedded,embedded_long")) == 32 + 12
    assert expert_replies("editor-write-hello")[0].actions == (TypeText("hello"), Hotkey(("ctrl", "s")))
    with pytest.raises(TaskError, match="did you mean dialog-confirm-yes"):
        expert_replies("dialog-confirm-yess")


# --- On real desktops --------------------------------------------------------------------------------------------


def as_the_policy_writes(replies):
    """The actions of the expert's replies as the policy learns them: through text, and coordinates of its view."""
    for reply in replies:
        text = format_reply(reply, POLICY_VIEW, EXPERT_SCREEN)
        yield from parse_reply(text, POLICY_VIEW, EXPERT_SCREEN).actions


def play_all(episodes):
    """The scores of episodes, each a task and its actions in one or more parts: a score after each part.

    An exception is a result too, for its test to raise.
    """
    mine, desktops = threading.local(), []

    def play(episode):
        from arpo_verl.desktops.osworld.environment import OSWorldEnvironment

        task, *parts = episode
        try:
            if not hasattr(mine, "desktop"):
                mine.desktop = OSWorldEnvironment(EnvironmentConfig(), threading.current_thread().name)
                desktops.append(mine.desktop)
            mine.desktop.reset(task)
            return [play_part(mine.desktop, actions) for actions in parts]
        except Exception as error:
            return error

    def play_part(desktop, actions):
        for action in actions:
            desktop.step(action)
        return desktop.evaluate().score

    try:
        with ThreadPoolExecutor(NUM_DESKTOPS, thread_name_prefix="suite") as threads:
            return list(threads.map(play, episodes))
    finally:
        for desktop in desktops:
            desktop.close()


def scores(result):
    """A result of `play_all`, raised where it is an exception."""
    if isinstance(result, Exception):
        raise result
    return result


FEASIBLE = next(task_id for task_id in sorted(SHORT) if SHORT[task_id].spec["evaluator"]["func"] != "infeasible")
POLICIES = {
    "expert": lambda task: as_the_policy_writes(expert_replies(task.task_id)),
    "idle": lambda task: [Finish()],
    "give_up": lambda task: [Fail()],
}
EPISODES = [*((task_id, policy) for policy in ("expert", "idle") for task_id in SHORT), (FEASIBLE, "give_up")]


@pytest.fixture(scope="module")
def results():
    """The outcome of every episode: `{(task_id, policy): scores or exception}`."""
    played = play_all((SHORT[task_id], POLICIES[policy](SHORT[task_id])) for task_id, policy in EPISODES)
    return dict(zip(EPISODES, played, strict=True))


@pytest.mark.release
@pytest.mark.desktop
@pytest.mark.parametrize("episode", EPISODES, ids="-".join)
def test_the_expert_solves_a_short_task_and_neither_doing_nothing_nor_giving_up_does(results, episode):
    assert scores(results[episode]) == [1.0 if episode[1] == "expert" else 0.0]


@pytest.fixture(scope="module")
def here():
    """The long tasks whose programs are installed: all but LibreOffice's, where `make osworld-packages` did not run."""
    return [task for task in LONG.values() if not explain_task(task, EnvironmentConfig())]


@pytest.mark.release
@pytest.mark.desktop
def test_a_long_task_is_solved_by_its_script_and_not_by_nothing_half_of_it_or_all_but_its_last_action(here):
    def parts(task):
        replies = expert_replies(task.task_id)
        half = (len(replies) - 2) // 2
        return [[], *map(as_the_policy_writes, (replies[:half], replies[half:-2], replies[-2:]))]

    results = play_all((task, *parts(task)) for task in here)
    assert [scores(result) for result in results] == [[0.0, 0.0, 0.0, 1.0]] * len(here)


@pytest.mark.release
@pytest.mark.desktop
def test_try_plays_a_script_to_its_end(tmp_path, capsys):
    assert main(["try", "form-guests-four", "--expert", "--out", str(tmp_path)]) == 0
    assert "finished after 17 replies" in (printed := capsys.readouterr().out) and "score 1" in printed


@pytest.mark.release
@pytest.mark.desktop
def test_the_tutorial_s_task_is_solved_by_its_replies_and_not_by_doing_nothing(tmp_path):
    (spec,), (replies, *_) = (documents.code("docs/own-task.md", language) for language in ("json", "text"))
    (tmp_path / "task.json").write_text(spec)
    (task,) = load_tasks(str(tmp_path / "task.json"))
    screen = Size(448, 336)
    actions = [action for reply in replies.split("---\n") for action in parse_reply(reply, screen, screen).actions]
    assert [scores(played) for played in play_all([(task, actions), (task, [Finish()])])] == [[1.0], [0.0]]
