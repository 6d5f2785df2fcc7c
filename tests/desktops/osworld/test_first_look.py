"""An episode begins on a screen that shows a desktop: what is black or locked is a fault, and machines stay awake."""

import io
import json
import os
import stat
import subprocess

import pytest
from PIL import Image, ImageDraw

pytest.importorskip("desktop_env")

from support.desktop_harness import eventually  # noqa: E402
from support.scripted_guest import executed, png, task  # noqa: E402

from arpo_verl.desktops.osworld import environment as environment_module  # noqa: E402
from arpo_verl.desktops.osworld.first_look import is_black  # noqa: E402
from arpo_verl.errors import DesktopBootError, DesktopSetupError  # noqa: E402


def picture(*boxes, background=(0, 0, 0), brightness=255):
    image = Image.new("RGB", (1920, 1080), background)
    for box in boxes:
        ImageDraw.Draw(image).rectangle(box, fill=(brightness,) * 3)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def test_a_black_screen_shows_at_most_a_pointer():
    black = [picture(), picture(background=(9, 9, 9)), picture((900, 500, 924, 538))]
    prompt, dark_panel = picture((0, 0, 120, 14)), picture((0, 0, 1919, 27), brightness=40)
    two_spots, dark = picture((0, 0, 10, 10), (1000, 900, 1010, 910)), picture(background=(30, 10, 25))
    assert all(map(is_black, black)) and not any(map(is_black, (prompt, dark_panel, two_spots, dark)))


def test_a_first_look_that_stays_black_is_a_fault(scripted, guest, monkeypatch):
    monkeypatch.setattr(environment_module, "BLACK_S", 0.2)
    guest.replies["/screenshot"] = lambda: (200, png(colour="black"))
    with pytest.raises(DesktopSetupError, match="black screen for 0.2 s"):
        scripted().reset(task())


def test_a_screen_that_is_black_for_a_moment_begins_no_episode(scripted, guest):
    environment = scripted()
    environment.prepare()
    looks = iter(["black"] * 5)
    guest.replies["/screenshot"] = lambda: (200, png(colour=next(looks, "red")))
    assert environment.reset(task()).screenshot == png(colour="red")


@pytest.mark.parametrize("options", [{}, {"provider": "mine:Pods", "os_type": "Windows"}])
def test_a_desktop_without_such_a_session_is_asked_for_no_screen_saver(scripted, guest, options):
    scripted(**options).reset(task())
    assert "/setup/execute" not in [path for path, _ in guest.requests]


# --- A guest whose session locks --------------------------------------------------------------------------------------

PROGRAMS = {
    "gdbus": 'case "$*" in *SetActive*false) cp stays active;; *GetActive) echo "($(cat active),)";; *) exit 1;; esac',
    "gnome-session-inhibit": 'echo "$*" >> inhibited',
    "pgrep": "test -e inhibited",
    "xset": 'echo "$*" >> display',
}


@pytest.fixture
def session(guest, tmp_path):
    """A folder with the state of a session: its programs are stand-ins, the shell is real."""
    for name, script in PROGRAMS.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "active").write_text("false")
    (tmp_path / "stays").write_text("false")

    def run():
        asked = json.loads(guest.requests[-1][1])
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(
            asked["command"], shell=asked["shell"], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        return executed(done.stdout, done.returncode, done.stderr)

    guest.replies["/setup/execute"] = run
    return tmp_path


def test_a_machine_that_waits_inhibits_its_idle_screen_once(scripted, session):
    environment = scripted(provider="mine:Pods")
    environment.prepare()
    assert (session / "display").read_text() == "s off -dpms\n"
    eventually((session / "inhibited").exists)
    environment.reset(task())
    environment.reset(task())
    assert (session / "inhibited").read_text() == "--inhibit idle --inhibit-only\n"


def test_a_machine_that_locked_while_it_waited_is_unlocked(scripted, session):
    environment = scripted(provider="mine:Pods")
    environment.prepare()
    (session / "active").write_text("true")
    environment.reset(task())
    assert (session / "active").read_text() == "false"


def test_a_machine_that_does_not_unlock_gets_no_episode(scripted, session):
    environment = scripted(provider="mine:Pods")
    environment.prepare()
    for name in ("active", "stays"):
        (session / name).write_text("true")
    with pytest.raises(DesktopBootError, match="does not unlock"):
        environment.reset(task())


def test_a_first_look_at_a_lock_screen_is_a_fault(scripted, guest, session):
    environment = scripted(provider="mine:Pods")
    environment.prepare()
    guest.replies["/setup/launch"] = lambda: (200, str((session / "active").write_text("true")))
    step = {"type": "launch", "parameters": {"command": ["loginctl", "lock-session"]}}
    with pytest.raises(DesktopSetupError, match="locked or blanked its screen during"):
        environment.reset(task(config=[step]))


def test_a_session_without_a_screen_saver_is_not_locked(scripted, session):
    (session / "gdbus").write_text("#!/bin/sh\necho 'Error: the name has no owner' >&2\nexit 1\n")
    assert scripted(provider="mine:Pods").reset(task()).screenshot == png()
