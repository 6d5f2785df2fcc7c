"""Ask a guest whether its desktop shows, and give a new clone the right time and its own randomness.

A clone's clock and randomness are set by QEMU's agent in the guest, which runs as root, or, if an image has none, by
OSWorld's server there, with `sudo`. This happens once, before a task is set up: no policy's program has run by then, in
the clone or in its template. What an agent sends later is never read.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import secrets
import time
from collections.abc import Sequence
from typing import Any

from arpo_verl.desktops.machine_provider import SERVER_PORT
from arpo_verl.desktops.vm.machine import VirtualMachine, run_async
from arpo_verl.errors import DesktopBootError
from arpo_verl.lib.relay import HOST

POLL_S = 0.05
MOST_BYTES = 64 << 20
MAX_SKEW_S = 1.0
AGENT_TIMEOUT_S = 60.0
_AGENT_POLL_S = 0.01

# Arguments: the time of the request, and random bytes. The script may then wait for a processor for any time, so the
# clock on the machine's board, which also runs while the machine is saved, bounds the time that it sets. The kernel
# uses the random bytes only after RNDRESEEDCRNG of linux/random.h; the other call is RTC_RD_TIME of linux/rtc.h.
_RESUME = """
import fcntl, os, struct, sys, time
with open("/dev/urandom", "wb", buffering=0) as pool:
    pool.write(bytes.fromhex(sys.argv[2]))
    fcntl.ioctl(pool, 0x5207)
os.environ["TZ"] = "UTC"
time.tzset()
with open("/proc/self/stat") as stat:
    started = int(stat.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
with open("/dev/rtc0", "rb") as board:
    second, minute, hour, day, month, year = struct.unpack("9i", fcntl.ioctl(board, 0x80247009, bytes(36)))[:6]
least = time.mktime((1900 + year, 1 + month, day, hour, minute, second, 0, 0, 0))
age = time.clock_gettime(time.CLOCK_BOOTTIME) - started
time.clock_settime(time.CLOCK_REALTIME, min(max(float(sys.argv[1]) + age, least), least + 1))
print(time.time(), os.urandom(16).hex())
"""


def screenshot(machine: VirtualMachine, timeout_s: float = 10.0) -> bytes | None:
    """Return the guest's screenshot as it was sent; None if the guest does not answer."""
    connection = http.client.HTTPConnection(HOST, machine.ports[SERVER_PORT], timeout=timeout_s)
    try:
        connection.request("GET", "/screenshot")
        response = connection.getresponse()
        content = response.read(MOST_BYTES)
        return content if response.status == http.client.OK and content else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def await_desktop(machine: VirtualMachine, timeout_s: float) -> None:
    """Wait until the guest shows its screen.

    Raises:
        DesktopBootError: the machine ended, or shows no screen within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while screenshot(machine) is None:
        if not machine.is_alive():
            raise DesktopBootError(f"the machine ended while it booted: {machine.why_gone()}")
        if time.monotonic() > deadline:
            raise DesktopBootError(
                f"the machine's guest did not answer within {timeout_s:g} s; its console: {machine.console()[-2000:]}"
            )
        time.sleep(POLL_S)


def has_agent(machine: VirtualMachine) -> bool:
    """Return whether QEMU's agent runs in the guest. Only a template is asked: no clone inherits its connection.

    Raises:
        DesktopBootError: the agent runs but does not answer.
    """
    ends = {one["label"]: one["frontend-open"] for one in machine.ask("query-chardev")}
    if not ends["agent"]:
        return False
    try:
        run_async(_execute(machine, ["-c", ""]), AGENT_TIMEOUT_S)
    except Exception as error:  # QMP's own, a time-out, or a wrong answer
        raise DesktopBootError(f"the guest's agent runs but does not answer: {error!r}") from error
    return True


def resume(machine: VirtualMachine, timeout_s: float, password: str | None = None) -> str:
    """Set a clone's clock and give it its own randomness. Return random bytes that it then drew.

    Args:
        password: password of the guest's user for `sudo`; None if an agent runs in the guest.

    Raises:
        DesktopBootError: the guest did not do it, or its clock is still wrong.
    """
    asked = time.time()
    words = ["-I", "-S", "-c", _RESUME, repr(asked), secrets.token_hex(64)]
    try:
        if password is None:
            said = run_async(_execute(machine, words), timeout_s)
        else:
            said = _execute_by_server(machine, words, password, timeout_s)
        told, drawn = said.split()
        is_right = asked - MAX_SKEW_S <= float(told) <= time.time() + MAX_SKEW_S
    except Exception as error:  # QMP's, the server's, a time-out, or a wrong answer of the guest
        raise DesktopBootError(f"the clone did not set its clock and randomness: {error!r}") from error
    if not is_right:
        raise DesktopBootError(f"the clone's clock shows {told} after it was set at {asked}")
    return drawn


async def _execute(machine: VirtualMachine, words: Sequence[str]) -> str:
    """Run Python by the guest's agent, and return its output."""
    agent = await machine.connect_agent()
    try:
        await agent.execute("guest-sync", {"id": secrets.randbelow(1 << 30)})
        given = {"path": "/usr/bin/python3", "arg": list(words), "capture-output": True}
        started: Any = await agent.execute("guest-exec", given)
        while True:
            state: Any = await agent.execute("guest-exec-status", {"pid": started["pid"]})
            if state["exited"]:
                break
            await asyncio.sleep(_AGENT_POLL_S)
    finally:
        await agent.disconnect()
    if state.get("exitcode") != 0:
        raise DesktopBootError(base64.b64decode(state.get("err-data", ""))[-500:].decode(errors="replace"))
    return base64.b64decode(state.get("out-data", "")).decode()


def _execute_by_server(machine: VirtualMachine, words: Sequence[str], password: str, timeout_s: float) -> str:
    """Run Python as root by OSWorld's server in the guest, and return its output."""
    line = 'printf "%s\\n" "$0" | sudo -S -p "" /usr/bin/python3 "$@"'
    body = json.dumps({"command": ["/bin/sh", "-c", line, password, *words], "shell": False})
    connection = http.client.HTTPConnection(HOST, machine.ports[SERVER_PORT], timeout=timeout_s)
    with contextlib.closing(connection):
        connection.request("POST", "/execute", body, {"Content-Type": "application/json"})
        return str(json.loads(connection.getresponse().read(MOST_BYTES))["output"])
