"""The expert's episodes, on scripted desktops."""

from __future__ import annotations

import pytest
from policies.demonstrations import collect_demonstrations, play_expert, save_demonstrations

from arpo_verl.actions.ui_tars import Reply
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.fake import FakeEnvironment
from arpo_verl.errors import DesktopError, TaskError
from arpo_verl.records.recorded import read_episodes
from arpo_verl.types import Click, Point, Size, StopReason

pytestmark = pytest.mark.study

SCREEN = Size(640, 480)
HIT = "Thought: Click red.\nAction: click(start_box='<|box_start|>(20,20)<|box_end|>')"


def image_size(screen: Size) -> Size:
    return Size(364, 252)


def environment(**script) -> EnvironmentConfig:
    return EnvironmentConfig(provider="fake", num_desktops=2, max_attempts=2, provider_options=script)


def test_replies_are_written_in_the_policys_coordinates_with_the_screen_before_each(tasks, expert) -> None:
    desktop = FakeEnvironment()
    episode = play_expert(tasks[0], expert("red"), desktop, image_size(SCREEN), SCREEN)
    assert [turn.text for turn in episode.turns] == [HIT, "Thought: Done.\nAction: finished()"]
    assert len(set(episode.screenshots)) == 2
    assert desktop.actions[0] == Click(Point(35, 38))


def test_a_script_may_end_without_saying_so(tasks, expert) -> None:
    found = collect_demonstrations(tasks[:1], lambda _: expert("red")[:1], environment(), image_size)
    assert (found[0].stop_reason, len(found[0].turns), len(found[0].screenshots)) == (StopReason.STEP_LIMIT, 1, 1)


def test_script_that_does_not_solve_its_task_is_refused(tasks) -> None:
    miss = [Reply("Miss.", (Click(Point(600, 400)),))]
    with pytest.raises(TaskError, match="must solve task red with score 1, got 0"):
        collect_demonstrations(tasks[:1], lambda _: miss, environment(), image_size)


def test_demonstrations_come_in_the_order_of_the_tasks(tasks, expert) -> None:
    found = collect_demonstrations(tasks, expert, environment(), image_size)
    assert [episode.task.task_id for episode in found] == ["red", "crimson"]


def test_failed_desktop_is_replaced_by_a_fresh_one(tasks, expert) -> None:
    # The first desktop of each place fails at its first step; the second does not.
    broken = {f"demonstration-{slot}.1": {"fail": {"step": [1]}} for slot in (0, 1)}
    found = collect_demonstrations(tasks, expert, environment(desktops=broken), image_size)
    assert len(found) == 2


def test_desktops_that_keep_failing_end_it(tasks, expert) -> None:
    with pytest.raises(DesktopError):
        collect_demonstrations(tasks, expert, environment(fail={"reset": [-1]}), image_size)


def test_every_desktop_is_closed_when_one_task_is_not_solved(tasks, expert, monkeypatch) -> None:
    made = []
    make = FakeEnvironment.from_config
    monkeypatch.setattr(FakeEnvironment, "from_config", lambda *args: made.append(make(*args)) or made[-1])
    slow = environment(desktops={"demonstration-1.1": {"hang": {"reset": [1]}}})
    miss = [Reply("Miss.", (Click(Point(600, 400)),))]
    with pytest.raises(TaskError):
        collect_demonstrations(tasks, lambda _: miss, slow, image_size)
    assert len(made) == 3 and all(desktop.closed for desktop in made)


def test_saved_demonstrations_are_recorded_episodes(tmp_path, tasks, expert) -> None:
    found = collect_demonstrations(tasks, expert, environment(), image_size)
    save_demonstrations(tmp_path / "demonstrations", found)
    read = list(read_episodes(tmp_path / "demonstrations"))
    assert [episode.task_id for episode in read] == ["crimson", "red"]
    by_task = sorted(found, key=lambda episode: episode.task.task_id)
    assert [episode.screenshots for episode in read] == [episode.screenshots for episode in by_task]
    assert [episode.replies for episode in read] == [tuple(turn.text for turn in e.turns) for e in by_task]
    assert {(e.success, e.reward, e.stop_reason, e.image_size) for e in read} == {(1, 1, "finished", (364, 252))}
    nothing = {"format_error": 0, "desktop_ended": 0, "unclear_losses": 0}
    assert read[0].reward_extra_info == {"success": 1, **nothing}
    assert [path.name for path in tmp_path.iterdir()] == ["demonstrations"]
