"""Keyboard and mouse, into real programs, through the unmodified client: as the action's code types a text, here and
as on guests that are not ours."""

from __future__ import annotations

import io

import pytest
from PIL import Image, ImageChops
from support.desktop_harness import Desktop, await_window, eventually

from arpo_verl.agent.actions import typing
from arpo_verl.agent.actions.pyautogui import to_code
from arpo_verl.types import Hotkey, TypeText

pytestmark = pytest.mark.desktop

ALL = "".join(map(chr, range(32, 127))) + "äöüßÄÖÜ éèñç € → Привет 中文 😀"
TEXTS = {
    "ascii and beyond": ALL + "<<>><,><." + "a<b" * 20 + "\n",
    "html": "".join(f'<p class="n{n}">"{n}" &amp; \'<b>é</b>\' — 100%</p>\n' for n in range(43)),
    "emoji": "👩\u200d💻 🏳️\u200d🌈 👍🏽 한국어 日本語 ﷽ \u0301\n",
    "more than spare keys": "".join(map(chr, range(0x4E00, 0x4E00 + 300))) + "\n",
}
MANY = TEXTS["more than spare keys"].rstrip()


def python(desktop: Desktop, code: str) -> None:
    answer = desktop.controller.execute_python_command(code)
    assert answer["returncode"] == 0 and not answer["error"], answer


@pytest.fixture(params=[typing.by_taught_pyautogui, typing.by_x_keys])
def type_text(request, desktop):
    """Types on the desktop as one kind of guest does."""
    return lambda text: python(desktop, to_code(TypeText(text), type_text=request.param))


def open_terminal(desktop: Desktop, program: str = "exec cat > /tmp/typed") -> None:
    desktop.setup._launch_setup(["xterm", "-T", "Typed", "-e", "sh", "-c", f"touch /tmp/runs; {program}"])
    await_window(desktop, "Typed")
    eventually(lambda: desktop.controller.get_file("/tmp/runs") is not None)


@pytest.fixture
def terminal(desktop):
    """A terminal whose lines go to /tmp/typed."""
    open_terminal(desktop)
    return desktop


def read(desktop: Desktop, text: str, path: str = "/tmp/typed") -> str:
    """What has been typed, once it is as long as the text."""
    eventually(lambda: len(desktop.controller.get_file(path) or b"") >= len(text.encode()))
    return desktop.controller.get_file(path).decode()


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_terminal_gets_the_text(terminal, type_text, text):
    type_text(text)
    assert read(terminal, text) == text


def test_a_gtk_entry_gets_the_text(desktop):
    desktop.setup._launch_setup("zenity --entry --title=Asks > /tmp/typed", shell=True)
    await_window(desktop, "Asks")
    python(desktop, f"pyautogui.write({ALL!r}); pyautogui.press('enter')")
    assert read(desktop, ALL + "\n") == ALL + "\n"


def test_other_programs_type_less_than_as_well(terminal):
    terminal.sh("xdotool type --delay 5 '<>'; xdotool key Return")
    assert read(terminal, "<>\n") == "<>\n"


def test_a_command_beyond_ascii_runs_in_a_terminal_and_so_does_the_next(desktop, type_text):
    """Pasting by Ctrl+V lost it there, and quoted the first key of the next."""
    open_terminal(desktop, "exec bash")
    type_text("echo café > /tmp/one\n")
    type_text("echo next > /tmp/two\n")
    assert read(desktop, "next\n", "/tmp/two") == "next\n"
    assert read(desktop, "café\n", "/tmp/one") == "café\n"


def test_lines_arrive_in_order_and_the_clipboard_stays_what_the_agent_copied(terminal, type_text):
    """Lines beyond ASCII were pasted: what the agent had copied was lost, and sometimes the line before came again."""
    terminal.sh("echo copied | xclip -selection clipboard >/dev/null 2>&1")
    lines = [f"ligne {n}: été\n" for n in range(12)]
    for line in lines:
        type_text(line)
    assert read(terminal, "".join(lines)) == "".join(lines)
    assert terminal.sh("xclip -o -selection clipboard") == "copied"


def test_a_window_that_the_text_closes_is_not_waited_for(desktop):
    """As a dialog that Enter ends: its program answers no more."""
    desktop.setup._launch_setup(["sh", "-c", "touch /tmp/runs; exec yad --entry --title=question > /tmp/typed"])
    eventually(lambda: "question" in desktop.sh("xdotool getactivewindow getwindowname"))
    text = MANY[:99] + "\n"
    code = to_code(TypeText(text), type_text=typing.by_x_keys)
    python(desktop, code.replace("READ_TIMEOUT_S = 20.0", "READ_TIMEOUT_S = 1e6"))
    assert read(desktop, text) == text


def test_caps_lock_changes_nothing_and_stays_on(terminal, type_text):
    python(terminal, to_code(Hotkey(("capslock",))))
    type_text("aBé1\n")
    assert read(terminal, "aBé1\n") == "aBé1\n"
    python(terminal, "pyautogui.press(['x', 'enter'])")
    assert read(terminal, "aBé1\nX\n") == "aBé1\nX\n"


@pytest.mark.parametrize("layout", ["ru", "de"])
def test_the_keyboards_layout_changes_nothing(terminal, type_text, layout):
    terminal.sh(f"setxkbmap -layout {layout}")
    type_text("Xy<z>; é1 Жж\n")
    assert read(terminal, "Xy<z>; é1 Жж\n") == "Xy<z>; é1 Жж\n"


def test_a_program_that_reads_nothing_is_an_error_before_any_key_changes_under_it(terminal):
    terminal.sh("pkill -STOP xterm")
    code = to_code(TypeText(MANY), type_text=typing.by_x_keys).replace("READ_TIMEOUT_S = 20.0", "READ_TIMEOUT_S = 0.2")
    answer = terminal.controller.execute_python_command(code)
    assert answer["returncode"] == 1 and "does not read what is typed" in answer["error"]
    terminal.sh("pkill -CONT xterm")
    python(terminal, "pyautogui.press('enter')")
    typed = read(terminal, "一\n").removesuffix("\n")
    assert typed and MANY.startswith(typed)


def test_character_that_no_key_gives_is_refused_aloud(desktop):
    answer = desktop.controller.execute_python_command(r"pyautogui.write('\x07')")
    assert answer["returncode"] == 1 and "cannot type '\\x07'" in answer["error"]


@pytest.mark.parametrize(
    "code",
    [
        *(f"pyautogui.press({key!r}); pyautogui.hotkey({key!r}, 'a')" for key in ("f13", "f22", "execute")),
        "pyautogui.keyDown('a'); time.sleep(0.8); pyautogui.keyUp('a')",
    ],
    ids=["f13", "f22", "execute", "released late"],
)
def test_a_key_that_this_keyboard_has_not_does_nothing_and_one_that_is_released_late_is_pressed_once(terminal, code):
    """X repeated it, 40 times a second: whatever pressed a key was not always soon enough to release it."""
    python(terminal, code)
    python(terminal, "pyautogui.press('enter')")
    assert read(terminal, "a\n") == "a\n"


def test_hotkey_ends_the_terminal(terminal):
    python(terminal, "pyautogui.hotkey('ctrl', 'd')")
    eventually(lambda: "xterm" not in terminal.sh("wmctrl -lx"))


def test_click_reaches_what_is_under_the_pointer(desktop):
    desktop.setup._launch_setup("zenity --question --title=Asks --text=hi && echo yes > /tmp/typed", shell=True)
    await_window(desktop, "Asks")
    window = eventually(lambda: desktop.sh("xdotool search --onlyvisible --class zenity | tail -1"))
    shape = desktop.sh(f"xdotool getwindowgeometry --shell {window}").splitlines()
    geometry = {name: int(value) for name, _, value in (line.partition("=") for line in shape)}
    # The button Yes is the right half of the lower edge; xdotool adds the title bar's height to Y.
    x, y = geometry["X"] + geometry["WIDTH"] * 3 // 4, geometry["Y"] + geometry["HEIGHT"] - 45
    python(desktop, f"pyautogui.click({x}, {y})")
    assert read(desktop, "yes\n") == "yes\n"


def test_pointer_is_in_the_screenshot_where_it_points(desktop):
    def look(x: int, y: int) -> Image.Image:
        python(desktop, f"pyautogui.moveTo({x}, {y})")
        return Image.open(io.BytesIO(desktop.controller.get_screenshot()))

    away, here = look(639, 479), look(300, 200)
    left, top, right, bottom = ImageChops.difference(away, here).crop((0, 0, 600, 440)).getbbox()
    assert (left, top) == (pytest.approx(300, abs=3), pytest.approx(200, abs=3))
    assert right - left < 30 and bottom - top < 30
