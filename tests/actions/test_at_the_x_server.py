"""What reaches the X server of a desktop is what a reply says: as many clicks and keys, and no double click."""

import pytest

import arpo_verl

pytestmark = pytest.mark.desktop

LISTENER = """
import os, Xlib.display, Xlib.X as X
display = Xlib.display.Display()
screen = display.screen()
mask = X.KeyPressMask | X.ButtonPressMask | X.ExposureMask
window = screen.root.create_window(0, 0, 640, 480, 0, screen.root_depth, event_mask=mask, override_redirect=1)
window.map()
log = open(os.path.expanduser("~/events"), "w")
while True:
    event = display.next_event()
    if event.type == X.Expose:
        window.set_input_focus(X.RevertToParent, X.CurrentTime)
        display.sync()
        print("ready", end=" ", file=log, flush=True)
    elif event.type == X.ButtonPress:
        print(f"click@{event.time}", end=" ", file=log, flush=True)
    elif event.type == X.KeyPress:
        print(f"{display.keycode_to_keysym(event.detail, 0):x}", end=" ", file=log, flush=True)
"""
LONGEST_DOUBLE_CLICK_MS = 500
"""Of the toolkits' defaults: Qt and GTK take 400, Tk and Chromium 500."""
DOWN, CONTROL, Z = "ff54", "ffe3", "7a"
REPLIES = (
    "Action: click(start_box='(300,200)')\n\nclick(start_box='(300,200)')",
    "Action: hotkey(key='down down down')",
    "Action: hotkey(key='ctrl z z')",
    "Action: finished()",
)


def task():
    ready = {"command_success": "grep -q ready ~/events"}
    verification = {"command": ["true"], "verification": ready, "max_wait_time": 60, "check_interval": 0.1}
    spec = {
        "id": "listener",
        "instruction": "Listen.",
        "config": [
            {"type": "launch", "parameters": {"command": ["python", "-c", LISTENER]}},
            {"type": "execute_with_verification", "parameters": verification},
        ],
        "evaluator": {
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": "cat ~/events", "shell": True},
            "expected": {"type": "rule", "rules": {"expected": ""}},
        },
    }
    return arpo_verl.Task("listener", "Listen.", spec)


@pytest.fixture(scope="module")
def desktop():
    with arpo_verl.make_desktop("embedded") as desktop:
        yield desktop


def heard(metrics):
    """What the X server's client got: milliseconds between two clicks, and keys."""
    (call,) = metrics
    first, second, *keys = call.result.strip("'").split()[1:]
    times = [int(event.removeprefix("click@")) for event in (first, second)]
    return times[1] - times[0], keys


def test_two_clicks_of_a_reply_are_two_clicks_and_repeated_keys_are_pressed_as_often_as_written(desktop):
    episode = arpo_verl.play(task(), desktop, lambda instruction, screenshots, replies: REPLIES[len(replies)])
    assert episode.stop_reason is arpo_verl.StopReason.FINISHED
    between_ms, keys = heard(episode.metrics)
    assert between_ms > 900 and keys == [DOWN] * 3 + [CONTROL, Z, Z]


def test_two_steps_that_click_are_no_double_click_however_soon_the_second_comes(desktop):
    desktop.reset(task())
    for _ in range(2):
        desktop.step(arpo_verl.Click(arpo_verl.Point(300, 200)))
    between_ms, _ = heard(desktop.evaluate().metrics)
    assert between_ms > LONGEST_DOUBLE_CLICK_MS
