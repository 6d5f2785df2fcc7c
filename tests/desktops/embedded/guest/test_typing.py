"""Typed text arrives as it is: as the action's code types it, here and as on guests that are not ours."""

from __future__ import annotations

import pytest
from support.desktop_harness import Desktop, await_window, eventually

from arpo_verl.agent.actions import typing
from arpo_verl.agent.actions.pyautogui import to_code
from arpo_verl.types import Hotkey, TypeText

pytestmark = pytest.mark.desktop

HTML = "".join(f'<p class="n{n}">"{n}" &amp; \'<b>é</b>\' — 100%</p>\n' for n in range(43))
EMOJI = "👩\u200d💻 🏳️\u200d🌈 👍🏽 한국어 日本語 ﷽ \u0301"
MANY = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))  # more than there are spare keys


@pytest.fixture(params=[typing.by_taught_pyautogui, typing.by_x_keys])
def type_text(request, desktop):
    """Types on the desktop as one kind of guest does."""

    def type_as_guest(text: str) -> None:
        answer = desktop.controller.execute_python_command(to_code(TypeText(text), type_text=request.param))
        assert answer["returncode"] == 0, answer

    return type_as_guest


def open_terminal(desktop: Desktop, program: str) -> None:
    desktop.setup._launch_setup(["xterm", "-T", "Typed", "-e", "sh", "-c", f"touch /tmp/runs; {program}"])
    await_window(desktop, "Typed")
    eventually(lambda: desktop.controller.get_file("/tmp/runs") is not None)


def read(desktop: Desktop, path: str, size: int) -> str:
    eventually(lambda: len(desktop.controller.get_file(path) or b"") >= size)
    return desktop.controller.get_file(path).decode()


@pytest.mark.parametrize("text", [HTML, EMOJI + "\n", MANY + "\n"], ids=["html", "emoji", "many"])
def test_a_terminal_gets_the_text(desktop, type_text, text):
    open_terminal(desktop, "exec cat > /tmp/typed")
    type_text(text)
    assert read(desktop, "/tmp/typed", len(text.encode())) == text


def test_a_command_beyond_ascii_runs_in_a_terminal_and_so_does_the_next(desktop, type_text):
    """Pasting by Ctrl+V lost it there, and quoted the first key of the next."""
    open_terminal(desktop, "exec bash")
    type_text("echo café > /tmp/one\n")
    type_text("echo next > /tmp/two\n")
    assert read(desktop, "/tmp/two", 5) == "next\n"
    assert read(desktop, "/tmp/one", 6) == "café\n"


def test_lines_arrive_in_order_and_the_clipboard_stays_what_the_agent_copied(desktop, type_text):
    """Lines beyond ASCII were pasted: what the agent had copied was lost, and sometimes the line before came again."""
    desktop.sh("echo copied | xclip -selection clipboard >/dev/null 2>&1")
    open_terminal(desktop, "exec cat > /tmp/typed")
    lines = [f"ligne {n}: été\n" for n in range(12)]
    for line in lines:
        type_text(line)
    text = "".join(lines)
    assert read(desktop, "/tmp/typed", len(text.encode())) == text
    assert desktop.sh("xclip -o -selection clipboard") == "copied"


def test_a_window_that_the_text_closes_is_not_waited_for(desktop):
    """As a dialog that Enter ends: its program answers no more."""
    desktop.setup._launch_setup(["sh", "-c", "touch /tmp/runs; exec yad --entry --title=question > /tmp/typed"])
    eventually(lambda: "question" in desktop.sh("xdotool getactivewindow getwindowname"))
    code = to_code(TypeText(MANY[:99] + "\n"), type_text=typing.by_x_keys)
    answer = desktop.controller.execute_python_command(code.replace("READ_TIMEOUT_S = 20.0", "READ_TIMEOUT_S = 1e6"))
    assert answer["returncode"] == 0 and not answer["error"], answer
    assert read(desktop, "/tmp/typed", 298) == MANY[:99] + "\n"


def test_caps_lock_changes_nothing_and_stays_on(desktop, type_text):
    open_terminal(desktop, "exec cat > /tmp/typed")
    desktop.controller.execute_python_command(to_code(Hotkey(("capslock",))))
    type_text("aBé1\n")
    assert read(desktop, "/tmp/typed", 6) == "aBé1\n"
    desktop.controller.execute_python_command("pyautogui.press(['x', 'enter'])")
    assert read(desktop, "/tmp/typed", 8) == "aBé1\nX\n"


@pytest.mark.parametrize("layout", ["ru", "de"])
def test_the_keyboards_layout_changes_nothing(desktop, type_text, layout):
    open_terminal(desktop, "exec cat > /tmp/typed")
    desktop.sh(f"setxkbmap -layout {layout}")
    type_text("Xy<z>; é1 Жж\n")
    assert read(desktop, "/tmp/typed", 16) == "Xy<z>; é1 Жж\n"


def test_a_program_that_reads_nothing_is_an_error_before_any_key_changes_under_it(desktop):
    open_terminal(desktop, "exec cat > /tmp/typed")
    desktop.sh("pkill -STOP xterm")
    code = to_code(TypeText(MANY), type_text=typing.by_x_keys).replace("READ_TIMEOUT_S = 20.0", "READ_TIMEOUT_S = 0.2")
    answer = desktop.controller.execute_python_command(code)
    assert answer["returncode"] == 1 and "does not read what is typed" in answer["error"]
    desktop.sh("pkill -CONT xterm")
    desktop.controller.execute_python_command("pyautogui.press('enter')")
    typed = read(desktop, "/tmp/typed", 4).removesuffix("\n")
    assert typed and MANY.startswith(typed)
