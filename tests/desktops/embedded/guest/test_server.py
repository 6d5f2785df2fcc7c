"""OSWorld's guest protocol, by its own controllers."""

from __future__ import annotations

import io
import os
import re
import shutil
import socket
import time
import xml.etree.ElementTree as ET

import pytest
import requests
from PIL import Image
from support.desktop_harness import eventually

from arpo_verl.desktops.embedded import packages
from arpo_verl.desktops.embedded.guest import accessibility

pytestmark = pytest.mark.desktop
BACKGROUND_SCHEMA = "/usr/share/glib-2.0/schemas/org.gnome.desktop.background.gschema.xml"


def test_uploaded_file_comes_back_byte_for_byte(desktop, tmp_path):
    content = bytes(range(256)) * 400 + b"\r\n--boundary\r\n\r\n"
    source = tmp_path / "source.bin"
    source.write_bytes(content)
    desktop.setup._upload_file_setup([{"local_path": str(source), "path": "/home/user/new/folder/ü.bin"}])
    assert desktop.controller.get_file("~/new/folder/ü.bin") == content
    assert desktop.controller.get_file("$HOME/new/folder/ü.bin") == content


def test_file_with_holes_is_served_without_being_read_into_memory(desktop):
    """1.5 GiB of nothing filled guest and worker. The largest file that there can be has 512 MiB."""
    assert desktop.sh("truncate -s 1536M ~/holes; stat -c %s ~/holes").split()[-1] == "0"
    desktop.sh("truncate -s 512M ~/holes; printf end | dd of=$HOME/holes bs=1M seek=511 conv=notrunc status=none")
    size = 512 << 20
    with requests.post(f"{_server(desktop)}/file", data={"file_path": "~/holes"}, stream=True, timeout=60) as answer:
        assert answer.headers["Content-Length"] == str(size)
        peak = int(desktop.sh("grep VmHWM /proc/$PPID/status").split()[1])  # of the guest server, which runs this line
        assert len(next(answer.iter_content(1 << 20))) == 1 << 20
    assert peak < 200 << 10
    assert desktop.controller.get_file("~/.bashrc").decode().strip() == desktop.sh("cat ~/.bashrc")


def _server(desktop):
    return desktop.controller.http_server


@pytest.mark.parametrize(
    "made, status",
    [
        ("mkfifo ~/x", 404),
        ("mkdir ~/x", 404),
        ("ln -s ~/x ~/x", 404),
        ("ln -s /dev/zero ~/x", 404),
        ("python3 -c 'import socket; socket.socket(1).bind(\"x\")'", 404),
        ("touch ~/x; chmod 0 ~/x", 403),
        ("touch ~/x", 200),
        ("ln -s /proc/version ~/x", 200),
        ("ln -s /proc/self/mem ~/x", 403),
    ],
)
def test_what_a_policy_makes_of_a_file_is_no_fault_of_the_guest(desktop, made, status):
    desktop.sh(f"cd ~; {made}")
    answer = requests.post(f"{_server(desktop)}/file", data={"file_path": "x"}, timeout=60)
    assert answer.status_code == status
    assert (b"Linux" in answer.content) == ("version" in made)


def test_file_that_shrinks_while_it_is_sent_ends_the_answer_early(desktop):
    desktop.sh("head -c 100M /dev/zero > ~/shrinks")
    with requests.post(f"{_server(desktop)}/file", data={"file_path": "shrinks"}, stream=True, timeout=60) as answer:
        desktop.sh("truncate -s 1M ~/shrinks")
        assert answer.headers["Content-Length"] == str(100 << 20)
        with pytest.raises(requests.exceptions.ChunkedEncodingError, match="IncompleteRead"):
            assert answer.content
    assert desktop.controller.get_screenshot()


def test_folders_that_go_too_deep_are_listed_as_far_as_they_can_be_read(desktop):
    desktop.sh("cd ~; for n in $(seq 400); do mkdir d && cd d; done")
    tree, depth = desktop.controller.get_vm_directory_tree("/home/user"), 0
    while child := next((child for child in tree.get("children", []) if child.get("name") == "d"), None):
        tree, depth = child, depth + 1
    assert depth == 199


def test_directory_tree_and_desktop_path(desktop):
    path = desktop.controller.get_vm_desktop_path()
    assert path == "/home/user/Desktop"
    desktop.sh(f"mkdir {path}/folder; touch {path}/folder/file {path}/a; ln -s / {path}/loop")
    assert desktop.controller.get_vm_directory_tree(path) == {
        "type": "directory",
        "name": "Desktop",
        "children": [
            {"type": "file", "name": "a"},
            {"type": "directory", "name": "folder", "children": [{"type": "file", "name": "file"}]},
            {"type": "file", "name": "loop"},
        ],
    }


def test_windows_are_found_activated_measured_and_closed(desktop):
    for title in ("first", "second"):
        desktop.setup._launch_setup(["xterm", "-T", title, "-geometry", "40x10"])
        desktop.setup._execute_with_verification_setup(["true"], {"window_exists": title}, 60, 0.05)
        eventually(lambda t=title: desktop.sh("xdotool getactivewindow getwindowname") == t)  # a new one has the focus
    assert desktop.controller.get_vm_window_size("XTerm")["width"] > 100
    assert desktop.controller.get_vm_window_size("NoSuchClass") is None
    desktop.setup._activate_window_setup("first")
    eventually(lambda: desktop.sh("xdotool getactivewindow getwindowname") == "first")
    desktop.setup._close_window_setup("second", strict=True)
    eventually(lambda: "second" not in desktop.sh("wmctrl -l"))
    assert "first" in desktop.sh("wmctrl -l")


@pytest.mark.release
def test_verification_that_never_holds_raises(desktop):
    with pytest.raises(Exception, match="verification_failed"):
        desktop.setup._execute_with_verification_setup(["true"], {"window_exists": "nothing"}, 1, 0.1)
    verification = {"command_success": "test -e /tmp"}
    assert desktop.setup._execute_with_verification_setup(["true"], verification, 60, 0.1)["verification"] == "passed"


def test_file_is_opened_by_the_program_for_its_type(desktop):
    desktop.sh("echo text > ~/notes.txt; xdg-mime default org.xfce.mousepad.desktop text/plain")
    desktop.setup._open_setup("/home/user/notes.txt")
    assert "notes.txt" in desktop.sh("wmctrl -l")


def test_what_cannot_be_done_is_said_at_once(desktop):
    start = time.monotonic()
    assert desktop.controller.get_file("/no/such/file") is None
    assert time.monotonic() - start < 10  # the client's own retries take 15 s
    desktop.sh("head -c 100 /dev/zero > ~/what.unknown; mkfifo ~/pipe")  # random bytes may look like some program's own
    for path, status in (("/home/user/what.unknown", "500"), ("/no/such/file", "404")):
        with pytest.raises(Exception, match=status):
            desktop.setup._open_setup(path)
    server = desktop.controller.http_server
    data = {"file_path": (None, "/home/user/pipe"), "file_data": b"text"}
    answer = requests.post(f"{server}/setup/upload", files=data, timeout=30)
    assert answer.status_code == 500 and "[Errno 6]" in answer.json()["error"]
    assert requests.post(f"{server}/start_recording").status_code == 501
    assert requests.get(f"{server}/nothing").status_code == 404
    assert requests.post(f"{server}/execute", data="no json").status_code == 400
    answer = requests.post(f"{server}/execute", json={"command": ["no-such-program"]})
    assert answer.status_code == 500 and "no-such-program" in answer.json()["message"]
    assert desktop.controller.get_terminal_output() is None
    assert desktop.controller.get_vm_platform() == "Linux"


def test_execute_steps_repeat_until_they_hold(desktop):
    counting = "echo >> /tmp/count; wc -l < /tmp/count"
    desktop.setup._execute_setup(counting, shell=True, until={"stdout": "3"})
    assert desktop.controller.get_file("/tmp/count") == b"\n\n\n"
    desktop.setup._command_setup(["touch", "~/made"])
    assert desktop.controller.get_file("~/made") == b""
    for line in ("python -c 'import sys; sys.exit(1)' || true", "python -c 'exit('\"$(echo 0)\"')'"):  # for a shell
        answer = desktop.setup._execute_with_verification_setup(["true"], {"command_success": line}, 60, 0.1)
        assert answer["verification"] == "passed"


def test_wallpaper_is_shown_and_given_back(desktop):
    desktop.controller.execute_python_command(
        "from PIL import Image; Image.new('RGB', (8, 8), (255, 0, 9)).save('w.png')"
    )
    desktop.controller.get_screenshot()  # an unchanged screen is not looked at twice
    desktop.setup._change_wallpaper_setup("/home/user/w.png")
    screenshot = io.BytesIO(desktop.controller.get_screenshot())
    assert Image.open(screenshot).getpixel((5, 5)) == (255, 0, 9)
    assert desktop.controller.get_vm_wallpaper() == desktop.controller.get_file("/home/user/w.png")


@pytest.mark.skipif(not os.path.exists(BACKGROUND_SCHEMA), reason="needs gsettings-desktop-schemas")
def test_wallpaper_that_a_program_chose_in_gnomes_settings_is_given(desktop):
    assert desktop.controller.get_vm_wallpaper() is None
    desktop.sh("echo picture > ~/'a b.png'")
    desktop.sh("gsettings set org.gnome.desktop.background picture-uri 'file:///home/user/a%20b.png'")
    assert desktop.controller.get_vm_wallpaper() == desktop.controller.get_file("/home/user/a b.png")


@pytest.mark.skipif(bool(packages.missing_packages(packages.ACCESSIBILITY)), reason="needs AT-SPI")
def test_accessible_objects_are_told_as_osworld_tells_them(desktop):
    desktop.setup._launch_setup(
        ["env", "-u", "NO_AT_BRIDGE", "zenity", "--info", "--title=Hello", "--no-markup", "--text=a & b"]
    )
    label = re.compile(r'<label name="a &amp; b"[^>]*>')
    found = eventually(lambda: label.search(desktop.controller.get_accessibility_tree()))
    assert 'st:showing="true"' in found[0] and re.search(r'cp:size="\(\d+, \d+\)"', found[0])
    at = ET.fromstring(desktop.controller.get_accessibility_tree())
    (window,) = at.findall("application[@name='zenity']/dialog")
    assert window.get("name") == "Hello"


@pytest.mark.skipif(shutil.which("gnome-terminal") is None, reason="needs gnome-terminal")
def test_text_of_gnomes_terminal_is_told_while_the_keyboard_goes_to_it(desktop):
    desktop.setup._launch_setup(["gnome-terminal"])
    eventually(lambda: (desktop.controller.get_terminal_output() or "").endswith("$"))
    desktop.controller.execute_python_command(r"import pyautogui; pyautogui.write('echo $((6 * 9))\n')")
    eventually(lambda: desktop.controller.get_terminal_output().splitlines()[1:2] == ["54"])
    desktop.setup._launch_setup(["zenity", "--info", "--title=Hello"])
    eventually(lambda: desktop.controller.get_terminal_output() is None)


def test_packages_that_accessible_objects_need_are_named(monkeypatch):
    monkeypatch.setattr(accessibility, "PYTHON", "/bin/false")
    answer = accessibility.tree(None)
    assert answer.status == 501 and b"require_a11y_tree=False" in answer.body and b"gir1.2-atspi" in answer.body


def test_program_that_listens_in_the_guest_is_reached_through_its_port(desktop):
    desktop.setup._launch_setup(["socat", "tcp-listen:8080,fork,reuseaddr", "exec:cat"])
    eventually(lambda: ":1F90" in desktop.sh("cat /proc/net/tcp"))
    payload = b"x" * 300_000
    with socket.create_connection(("127.0.0.1", desktop.setup.vlc_port), 60) as connection:
        connection.sendall(payload)
        connection.shutdown(socket.SHUT_WR)
        echo = b"".join(iter(lambda: connection.recv(65536), b""))
    assert echo == payload
    eventually(lambda: not desktop.provider._relay._tasks)  # both ends are closed again


def test_port_that_nothing_listens_on_closes_at_once(desktop):
    with socket.create_connection(("127.0.0.1", desktop.setup.chromium_port), 60) as connection:
        assert connection.recv(1) == b""


def drawn(title, more_than, texts=()):
    code = f'from arpo_guest.drawn import require; require("{title}", {more_than}, {texts})'
    return {"command_success": f"python -c '{code}'"}


@pytest.mark.release
def test_a_window_is_drawn_once_it_shows_with_the_focus_and_looks_the_same_twice(desktop):
    def wait(title: str, more_than: int, seconds: int) -> dict:
        return desktop.setup._execute_with_verification_setup(["true"], drawn(title, more_than), seconds, 0.02)

    desktop.setup._launch_setup(["xterm", "-T", "name of it", "-e", "seq 30; sleep 60"])
    assert wait("name of it", 1500, 60)["verification"] == "passed"
    assert desktop.sh("xdotool getactivewindow getwindowname") == "name of it"
    for title, more_than in (("name", 1500), ("name of it", 10_000_000)):
        with pytest.raises(Exception, match="verification_failed"):
            wait(title, more_than, 1)


def test_a_window_is_drawn_once_its_texts_can_be_seen(desktop):
    """A window that is still is not yet one that shows its text: a blank one's title bar is as large a picture."""
    desktop.setup._launch_setup(["xmessage", "-title", "Told", "-geometry", "+50+50", "-buttons", "Apple", "Lemon"])
    window, wallpaper = (50, 50, 150, 120), (5, 5, 30, 30)
    execute = desktop.setup._execute_with_verification_setup
    assert execute(["true"], drawn("Told", 0, [window]), 60, 0.02)["verification"] == "passed"
    with pytest.raises(Exception, match="verification_failed"):
        execute(["true"], drawn("Told", 0, [window, wallpaper]), 1, 0.02)


def test_the_x_server_is_given_dejavu_and_keeps_its_own_fonts(desktop):
    offer = ["python", "-c", "from arpo_guest.fonts import offer; offer(); offer()"]
    listed = "from Xlib.display import Display; print(*Display().list_fonts('{}', 99))"
    desktop.setup._execute_setup(offer)
    fonts = desktop.sh(f'python -c "{listed.format("-dejavu-*")}"').split()
    assert [name.split("-")[2] for name in fonts] == ["mono", "sans", "serif"]
    assert desktop.sh(f'python -c "{listed.format("fixed")}"').strip() == "fixed"
