"""What an Ubuntu user finds on the desktop: the terminal's hotkey, the session bus's address, sudo, sound."""

import shutil

import pytest
from support.desktop_harness import eventually

pytestmark = pytest.mark.desktop


def test_ctrl_alt_t_opens_a_terminal_that_obeys_the_keyboard(desktop):
    desktop.controller.execute_python_command("import pyautogui; pyautogui.hotkey('ctrl', 'alt', 't')")
    eventually(lambda: "Terminal" in desktop.sh("xdotool getactivewindow getwindowname"))
    eventually(lambda: desktop.sh("pgrep -x bash"))
    desktop.controller.execute_python_command(r"pyautogui.write('touch ~/typed\n')")
    eventually(lambda: desktop.sh("ls ~/typed 2>/dev/null"))


def test_the_session_bus_is_where_the_first_user_of_an_ubuntu_machine_has_it(desktop):
    assert desktop.sh("echo $DBUS_SESSION_BUS_ADDRESS") == "unix:path=/run/user/1000/bus"
    assert desktop.sh("test -S /run/user/1000/bus && echo there") == "there"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("echo password | sudo -S -p '' whoami", "user"),
        ("echo wrong | sudo -S -p '' whoami", "sudo: 1 incorrect password attempt"),
        ("sudo -n whoami", "sudo: a password is required"),
        ("echo password | sudo -S -p '' A='x y' sh -c 'echo $A'", "x y"),
        ("echo password | sudo -S -p '' mkdir -p ~/Desktop/new && ls ~/Desktop", "new"),
        ("echo password | sudo -S -p '' no-such-program", "sudo: no-such-program: command not found"),
        ("echo password | sudo -S -p '' -i 'echo $HOME'", "/home/user"),
    ],
)
def test_sudo_asks_for_the_password_and_runs_the_command(desktop, line, said):
    assert said in desktop.sh(line)


def test_sudo_gives_no_power_over_the_system(desktop):
    assert "enied" in desktop.sh("echo password | sudo -S -p '' touch /etc/shadow")
    assert desktop.sh("echo password | sudo -S -p '' id -u") == desktop.sh("id -u") != "0"


@pytest.mark.skipif(shutil.which("pactl") is None, reason="needs pulseaudio-utils")
def test_there_are_speakers_at_half_their_volume(desktop):
    assert "50%" in desktop.sh("pactl get-sink-volume @DEFAULT_SINK@")
    desktop.sh("pactl set-sink-volume @DEFAULT_SINK@ 100%; pulseaudio --start")
    assert "100%" in desktop.sh("pactl get-sink-volume @DEFAULT_SINK@")
