"""Desktops and episodes from Python, without a trainer."""

import asyncio
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from PIL import Image
from support import documents
from support.viewer_run import ViewerRun

import arpo_verl
from arpo_verl import Click, Drag, Finish, Hotkey, Move, Point, Scroll, StopReason, Task, TypeText

TASK = Task("click-it", "Click the red square.", {})
HIT = "Action: click(start_box='(35,38)')"
DONE = "Action: finished()"


def hits_and_ends(instruction, screenshots, replies):
    return DONE if replies else HIT


@pytest.fixture
def desktop():
    with arpo_verl.make_desktop("fake") as desktop:
        yield desktop


def test_a_policy_sees_the_instruction_every_screenshot_and_its_replies(desktop):
    calls = []

    def policy(instruction, screenshots, replies):
        calls.append((instruction, [image.size for image in screenshots if isinstance(image, Image.Image)], replies))
        return hits_and_ends(instruction, screenshots, replies)

    episode = arpo_verl.play(TASK, desktop, policy)
    assert (episode.success, episode.stop_reason) == (1.0, StopReason.FINISHED)
    assert [turn.text for turn in episode.turns] == [HIT, DONE]
    instruction = "Click the red square."
    assert calls == [(instruction, [(640, 480)], []), (instruction, [(640, 480)] * 2, [HIT])]


def test_coordinates_are_of_the_image_that_the_policy_says_it_saw(desktop):
    half = "Action: click(start_box='(17,19)')"
    episode = arpo_verl.play(TASK, desktop, lambda i, s, replies: DONE if replies else half, image_size=(320, 240))
    assert episode.turns[0].actions == (Click(Point(34, 38)),)


def test_limits_and_malformed_replies_end_an_episode_as_in_training(desktop):
    waiting = arpo_verl.play(TASK, desktop, lambda *_: "Action: wait()", max_steps=2)
    assert (waiting.stop_reason, len(waiting.turns)) == (StopReason.STEP_LIMIT, 2)
    malformed = arpo_verl.play(TASK, desktop, lambda *_: "no action")
    assert (malformed.stop_reason, malformed.format_error) == (StopReason.PARSE_ERROR, True)


def test_another_grammar(desktop):
    reply = (
        '<tool_call>\n{"name": "computer_use", "arguments": {"action": "terminate", "status": "failure"}}\n</tool_call>'
    )
    assert arpo_verl.play(TASK, desktop, lambda *_: reply, model_family="qwen25_vl").stop_reason is StopReason.FAILED


@pytest.mark.parametrize(
    ("policy", "options", "problem"),
    [
        (lambda *_: None, {}, "a policy must return its reply as text, got NoneType"),
        (None, {}, "policy must be a function that returns the next reply, got None"),
        (hits_and_ends, {"image_size": (0, 3)}, r"image_size must be \(width, height\) in pixels, got \(0, 3\)"),
        (hits_and_ends, {"image_size": 5}, r"image_size must be \(width, height\) in pixels, got 5"),
        (hits_and_ends, {"model_family": "klingon"}, "model_family must be one of ui_tars_15, .*, got 'klingon'"),
    ],
)
def test_bad_arguments_are_refused_with_what_was_expected(desktop, policy, options, problem):
    with pytest.raises(arpo_verl.ConfigError, match=problem):
        arpo_verl.play(TASK, desktop, policy, **options)


@pytest.mark.parametrize(("name", "options"), [("no-such-provider", {}), ("fake", {"screen_siz": (640, 480)})])
def test_a_desktop_that_cannot_be_made_is_refused(name, options):
    with pytest.raises(arpo_verl.ConfigError, match="environment.provider|screen_siz"):
        arpo_verl.make_desktop(name, **options)


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        (Click(Point(640, 0)), r"Click: point must be a Point of whole pixels from \(0, 0\) to \(639, 479\)"),
        (Click(Point(3.5, 0)), "point must be a Point of whole pixels"),
        (Click((3, 4)), "point must be a Point"),
        (
            Click(Point(0, 0), "side", 0),
            "button must be left, right or middle, got 'side'; count must be 1 to 3, got 0",
        ),
        (Click(Point(0, 0), np.array(["left", "right"])), "button must be left, right or middle"),
        (Scroll(np.array(["up", "down"])), "direction must be up, down, left or right"),
        (Drag(None, Point(-1, 0)), "Drag: end must be"),
        (Move(None), "Move: point must be"),
        (Hotkey(()), "keys must be at least one key's name"),
        (Hotkey("ctrl"), "keys must be at least one key's name"),
        (Hotkey(("ctrl", "entr")), r"no key is named 'entr' .*did you mean enter\?"),
        (Scroll("away", notches=1000), "direction must be .*; notches must be 1 to 100, or None, got 1000"),
        (TypeText(5), "text must be a string, got 5"),
        (TypeText("a\x07"), "characters that a keyboard can type"),
        (Finish(None), "answer must be a string"),
        ("click", "an action must be one of Click, Drag, .*got 'click'"),
    ],
)
def test_what_no_grammar_would_let_through_reaches_no_desktop(desktop, action, problem):
    desktop.reset(TASK)
    with pytest.raises(arpo_verl.ActionError, match=problem):
        desktop.step(action)


def test_a_point_is_checked_by_the_screen_that_the_desktop_shows():
    with arpo_verl.make_desktop("support.wide_desktop:make") as desktop:
        desktop.reset(TASK)
        desktop.step(Click(Point(799, 599)))
        with pytest.raises(arpo_verl.ActionError, match=r"to \(799, 599\)"):
            desktop.step(Click(Point(800, 0)))


def test_a_policy_s_own_exception_and_a_desktop_s_fault_reach_the_caller(desktop):
    with pytest.raises(ZeroDivisionError):
        arpo_verl.play(TASK, desktop, lambda *_: str(1 / 0))
    with arpo_verl.make_desktop("fake", provider_options={"fail": {"evaluate": [1]}}) as broken:
        with pytest.raises(arpo_verl.EvaluatorError):
            arpo_verl.play(TASK, broken, hits_and_ends)


def test_a_desktop_serves_by_itself_and_not_after_it_was_closed(desktop):
    assert desktop.reset(TASK).screenshot.startswith(b"\x89PNG")
    desktop.step(Click(Point(35, 38)))
    desktop.step(Finish())
    assert desktop.evaluate().score == 1.0
    desktop.close()
    with pytest.raises(arpo_verl.DesktopLostError, match="closed; make another"):
        desktop.reset(TASK)


def test_an_episode_needs_no_event_loop_and_stands_none_in_the_way(desktop):
    def policy(*args):
        threads.append(threading.current_thread())
        return asyncio.run(reply(*args))

    async def reply(*args):
        return hits_and_ends(*args)

    async def cell():
        return arpo_verl.play(TASK, desktop, hits_and_ends)

    threads = []
    assert arpo_verl.play(TASK, desktop, policy).success == 1.0
    assert set(threads) == {threading.main_thread()}  # where Ctrl-C arrives
    assert asyncio.run(cell()).success == 1.0  # as in a notebook


def test_the_client_s_own_machines_have_their_screen_and_pace():
    with arpo_verl.make_desktop("docker") as desktop:  # nothing is asked of an engine before it is used
        config = desktop.config
    assert (config.screen_size, config.action_pause_s) == ((1920, 1080), 2)


@pytest.mark.desktop
def test_the_python_of_the_readme_runs_as_it_stands(tmp_path):
    (tmp_path / "runs").mkdir()
    run = ViewerRun(tmp_path / "runs" / "demo")
    run.episode(3, "press-ok", success=0.5)
    run.metrics(3, rollout__success_mean=0.5)
    command = [sys.executable, "-c", "\n".join(documents.code("README.md"))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert " 0.0 finished\n" in done.stdout
    assert re.search(r"press-ok +3 +0\.5\n", done.stdout) and re.search(r"^3 +0\.5\n", done.stdout, re.M)


def test_the_interpreter_ends_and_closes_a_desktop_that_hangs_and_was_forgotten():
    probe = """
import threading, arpo_verl
from arpo_verl.desktops.fake import FakeEnvironment
FakeEnvironment.close = lambda self: print("closed")
desktop = arpo_verl.make_desktop("fake", provider_options={"hang": {"reset": [1]}})
threading.Thread(target=desktop.reset, args=(arpo_verl.Task("t", "i", {}),), daemon=True).start()
"""
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr
