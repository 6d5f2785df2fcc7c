"""Keyboard and mouse, into real programs, through the unmodified client."""

from __future__ import annotations

import io

import pytest
from PIL import Image, ImageChops
from support.desktop_harness import await_window, eventually

pytestmark = pytest.mark.desktop

ASCII = "".join(map(chr, range(32, 127)))
BEYOND_ASCII = "äöüßÄÖÜ éèñç € → Привет 中文 😀"


@pytest.fixture
def terminal(desktop):
    """A terminal whose lines go to /tmp/typed."""
    desktop.setup._launch_setup(["xterm", "-T", "Typed", "-e", "sh", "-c", "cat > /tmp/typed"])
    await_window(desktop, "Typed")
    eventually(lambda: desktop.sh("test -e /tmp/typed && echo there"))
    return desktop


@pytest.mark.parametrize(
    "text", [ASCII, "<<>><,><.", BEYOND_ASCII, "a<b" * 20], ids=["ascii", "less", "beyond", "long"]
)
def test_text_typed_into_a_terminal_arrives_as_it_is(terminal, text):
    answer = terminal.controller.execute_python_command(f"pyautogui.typewrite({text!r}); pyautogui.press('enter')")
    assert answer["returncode"] == 0, answer
    typed = eventually(lambda: terminal.controller.get_file("/tmp/typed"))
    assert typed.decode() == text + "\n"


def test_text_typed_into_a_gtk_entry_arrives_as_it_is(desktop):
    desktop.setup._launch_setup("zenity --entry --title=Asks > /tmp/entry", shell=True)
    await_window(desktop, "Asks")
    text = ASCII + BEYOND_ASCII
    desktop.controller.execute_python_command(f"pyautogui.write({text!r}); pyautogui.press('enter')")
    assert eventually(lambda: desktop.controller.get_file("/tmp/entry")).decode() == text + "\n"


def test_other_programs_type_less_than_as_well(terminal):
    terminal.sh("xdotool type --delay 5 '<>'; xdotool key Return")
    assert eventually(lambda: terminal.controller.get_file("/tmp/typed")) == b"<>\n"


def test_character_that_no_key_gives_is_refused_aloud(desktop):
    answer = desktop.controller.execute_python_command(r"pyautogui.write('\x07')")
    assert answer["returncode"] == 1 and "cannot type '\\x07'" in answer["error"]


@pytest.mark.parametrize("key", ["f13", "f22", "execute"])
def test_a_key_that_this_keyboard_has_not_does_nothing(terminal, key):
    answer = terminal.controller.execute_python_command(f"pyautogui.press({key!r}); pyautogui.hotkey({key!r}, 'a')")
    assert answer["returncode"] == 0, answer
    assert terminal.controller.execute_python_command("pyautogui.press('enter')")["returncode"] == 0
    assert eventually(lambda: terminal.controller.get_file("/tmp/typed")) == b"a\n"


def test_a_key_that_is_released_late_is_pressed_once(terminal):
    """X repeated it, 40 times a second: whatever pressed a key was not always soon enough to release it."""
    code = "pyautogui.keyDown('a'); time.sleep(0.8); pyautogui.keyUp('a'); pyautogui.press('enter')"
    assert terminal.controller.execute_python_command(code)["returncode"] == 0
    assert eventually(lambda: terminal.controller.get_file("/tmp/typed")) == b"a\n"


def test_hotkey_ends_the_terminal(terminal):
    terminal.controller.execute_python_command("pyautogui.hotkey('ctrl', 'd')")
    eventually(lambda: "xterm" not in terminal.sh("wmctrl -lx"))


def test_click_reaches_what_is_under_the_pointer(desktop):
    desktop.setup._launch_setup("zenity --question --title=Asks --text=hi && echo yes > /tmp/answer", shell=True)
    await_window(desktop, "Asks")
    window = eventually(lambda: desktop.sh("xdotool search --onlyvisible --class zenity | tail -1"))
    shape = desktop.sh(f"xdotool getwindowgeometry --shell {window}").splitlines()
    geometry = {name: int(value) for name, _, value in (line.partition("=") for line in shape)}
    # The button Yes is the right half of the lower edge; xdotool adds the title bar's height to Y.
    x, y = geometry["X"] + geometry["WIDTH"] * 3 // 4, geometry["Y"] + geometry["HEIGHT"] - 45
    desktop.controller.execute_python_command(f"pyautogui.click({x}, {y})")
    assert eventually(lambda: desktop.controller.get_file("/tmp/answer")) == b"yes\n"


def test_pointer_is_in_the_screenshot_where_it_points(desktop):
    def look(x: int, y: int) -> Image.Image:
        desktop.controller.execute_python_command(f"pyautogui.moveTo({x}, {y})")
        return Image.open(io.BytesIO(desktop.controller.get_screenshot()))

    away, here = look(639, 479), look(300, 200)
    left, top, right, bottom = ImageChops.difference(away, here).crop((0, 0, 600, 440)).getbbox()
    assert (left, top) == (pytest.approx(300, abs=3), pytest.approx(200, abs=3))
    assert right - left < 30 and bottom - top < 30
