"""The expert's episodes, on scripted desktops."""

from __future__ import annotations

import pytest

from arpo_verl.actions.ui_tars import Reply
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.fake import FakeEnvironment
from arpo_verl.errors import DesktopError, TaskError
from arpo_verl.policy.demonstrations import (
    Demonstration,
    collect_demonstrations,
    load_demonstrations,
    play_expert,
    save_demonstrations,
)
from arpo_verl.types import Click, Point, Size

HIT = "Thought: Click red.\nAction: click(start_box='<|box_start|>(20,20)<|box_end|>')"


def image_size(screen: Size) -> Size:
    return Size(364, 252)


def environment(**script) -> EnvironmentConfig:
    return EnvironmentConfig(provider="fake", num_desktops=2, max_attempts=2, provider_options=script)


def test_replies_are_written_in_the_policys_coordinates_with_the_screen_before_each(tasks, expert) -> None:
    desktop = FakeEnvironment()
    demonstration = play_expert(tasks[0], expert("red"), desktop, image_size)
    assert demonstration.replies == (HIT, "Thought: Done.\nAction: finished()")
    assert len(set(demonstration.screenshots)) == 2
    assert desktop.actions[0] == Click(Point(35, 38))


def test_script_that_does_not_solve_its_task_is_refused(tasks) -> None:
    miss = [Reply("Miss.", (Click(Point(600, 400)),))]
    with pytest.raises(TaskError, match="must solve task red with score 1, got 0"):
        collect_demonstrations(tasks[:1], lambda _: miss, environment(), image_size, repeats=1)


def test_demonstrations_come_in_the_order_of_the_tasks(tasks, expert) -> None:
    found = collect_demonstrations(tasks, expert, environment(), image_size, repeats=2)
    assert [d.task_id for d in found] == ["red", "red", "crimson", "crimson"]


def test_failed_desktop_is_replaced_by_a_fresh_one(tasks, expert) -> None:
    # The first desktop of each place fails at its first step; the second does not.
    broken = {f"demonstration-{slot}.1": {"fail": {"step": [1]}} for slot in (0, 1)}
    found = collect_demonstrations(tasks, expert, environment(desktops=broken), image_size, repeats=1)
    assert len(found) == 2


def test_desktops_that_keep_failing_end_it(tasks, expert) -> None:
    with pytest.raises(DesktopError):
        collect_demonstrations(tasks, expert, environment(fail={"reset": [-1]}), image_size, repeats=1)


def test_saved_demonstrations_load_again_and_share_screens(tmp_path, tasks, expert) -> None:
    found = collect_demonstrations(tasks, expert, environment(), image_size, repeats=2)
    save_demonstrations(tmp_path / "d.zip", found)
    assert load_demonstrations(tmp_path / "d.zip") == found
    assert [path.name for path in tmp_path.iterdir()] == ["d.zip"]


def test_demonstration_without_a_screen_for_each_reply_is_refused() -> None:
    with pytest.raises(ValueError, match="one screenshot before each"):
        Demonstration("t", "i", (b"",), ("a", "b"))
