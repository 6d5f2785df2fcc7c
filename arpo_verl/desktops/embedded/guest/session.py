"""Start a user's session from nothing: home, X server, message bus, window manager."""

from __future__ import annotations

import os
import select
import shutil
import time

from Xlib import X, Xatom
from Xlib.display import Display
from Xlib.protocol.event import ClientMessage

from . import children, keyboard, layout

BACKGROUND = 0x4A6984
LOOK_INTERVAL_MS = 5
STEP_TIMEOUT_S = 20.0
"""How long a part of the session may take; a healthy one takes 0.1 s."""


class BootError(Exception):
    """A part of the session did not come up."""


def make_home() -> None:
    """Make fresh folders and settings."""
    for path in (layout.HOME, layout.RUNTIME_DIR, layout.FRAMEBUFFER_DIR, layout.LOG_DIR):
        os.makedirs(path, 0o700)
    os.mkdir("/tmp/.X11-unix")
    os.chmod("/tmp/.X11-unix", 0o1777)
    shutil.copytree(
        os.path.join(os.path.dirname(__file__), "skeleton"),
        layout.HOME,
        copy_function=shutil.copyfile,
        dirs_exist_ok=True,
    )
    for path in (*layout.HOME_FOLDERS, ".cache", ".local/share", ".local/state"):
        os.makedirs(os.path.join(layout.HOME, path), exist_ok=True)
    os.chmod(layout.HOME, 0o755)
    os.chdir(layout.HOME)


def start(width: int, height: int) -> Display:
    """Start the X server, the message bus and the window manager; return a connection for `await_ready`.

    Raises:
        BootError: one did not start; the message has its last words.
    """
    x_ready = _start_x_server(width, height)
    # Programs that the bus starts, such as GNOME's terminal, show their content through accessibility.
    bus = ["dbus-daemon", "--session", "--nofork", "--nopidfile", f"--address=unix:path={layout.BUS_SOCKET}"]
    children.spawn(bus, NO_AT_BRIDGE="0")
    await_line(x_ready, "Xvfb")
    display = Display(layout.DISPLAY)
    keyboard.mend(display)
    _prepare_root(display, width, height)
    children.spawn(["openbox", "--sm-disable"])
    return display


def await_ready(display: Display) -> None:
    """Wait until each part that `start` started works; other parts of a boot can run before this call.

    Raises:
        BootError: one did not start; the message has its last words.
    """
    try:
        _await_window_manager(display)
    finally:
        display.close()
    deadline = time.monotonic() + STEP_TIMEOUT_S
    while not os.path.exists(layout.BUS_SOCKET):
        if time.monotonic() > deadline:
            raise BootError(f"dbus-daemon did not start: {children.log_tail('dbus-daemon')}")
        time.sleep(0.002)


def _start_x_server(width: int, height: int) -> int:
    """Start Xvfb; return the file on which it reports that it listens. Without GLX it takes 18 MB instead of 73.

    It does not repeat a key that is held down: on a busy machine any key may stay down for half a second.
    """
    ready, tell = os.pipe()
    command = ["Xvfb", layout.DISPLAY, "-screen", "0", f"{width}x{height}x24", "-dpi", "96", "-displayfd", str(tell)]
    options = ["-r", "-extension", "GLX", "-nolisten", "tcp", "-noreset", "-fbdir", layout.FRAMEBUFFER_DIR]
    children.spawn([*command, *options], pass_fd=tell)
    os.close(tell)
    return ready


def await_line(fd: int, program: str) -> None:
    """Wait until `program` has written a line on `fd`, which closes if it dies.

    Raises:
        BootError: the line did not come.
    """
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    line = b""
    while not line.endswith(b"\n"):  # Xvfb writes number and line end apart, and dies if nobody reads the latter
        piece = os.read(fd, 64) if poller.poll(STEP_TIMEOUT_S * 1000) else b""
        if not piece:
            os.close(fd)
            raise BootError(f"{program} did not start: {children.log_tail(program)}")
        line += piece
    os.close(fd)


def _prepare_root(display: Display, width: int, height: int) -> None:
    """Paint a plain background, and move the pointer into a corner, where it hovers over no window."""
    root = display.screen().root
    root.change_attributes(background_pixel=BACKGROUND, event_mask=X.PropertyChangeMask)
    root.clear_area()
    root.warp_pointer(width - 2, height - 2)
    display.sync()


def _await_window_manager(display: Display) -> None:
    """Wait until openbox answers.

    It announces itself before it looks at events. One that comes in between stays unread until the next, so a program's
    first window did not show. So we ask it about a window that is never shown, until it answers.
    """
    root = display.screen().root
    probe = root.create_window(0, 0, 1, 1, 0, X.CopyFromParent, event_mask=X.PropertyChangeMask)
    announced = display.intern_atom("_NET_SUPPORTING_WM_CHECK")
    answer = display.intern_atom("_NET_FRAME_EXTENTS")
    question = ClientMessage(
        window=probe, client_type=display.intern_atom("_NET_REQUEST_FRAME_EXTENTS"), data=(32, [0] * 5)
    )
    poller = select.poll()
    poller.register(display.fileno(), select.POLLIN)
    deadline = time.monotonic() + STEP_TIMEOUT_S
    while probe.get_full_property(answer, Xatom.CARDINAL) is None:
        if time.monotonic() > deadline:
            raise BootError(f"openbox did not start: {children.log_tail('openbox')}")
        if root.get_full_property(announced, Xatom.WINDOW) is not None:
            root.send_event(question, X.SubstructureRedirectMask | X.SubstructureNotifyMask)
        poller.poll(LOOK_INTERVAL_MS)  # a property of the root or of the window changed, or it is time to ask again
        while display.pending_events():
            display.next_event()
    probe.destroy()
