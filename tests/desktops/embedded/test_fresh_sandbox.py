"""Two episodes in a row have nothing in common but the machine: the second sandbox is another one in all that it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.desktop_harness import Desktop, attach

from arpo_verl.desktops.embedded.provider import EmbeddedProvider

pytestmark = pytest.mark.desktop

# As many of the kernel's kinds of namespaces as each sandbox has of its own; the machine may have more kinds.
ALWAYS_OWN = {"net", "pid", "mnt", "ipc", "uts"}


def namespaces(provider: EmbeddedProvider) -> dict[str, int]:
    """Those of its process 1, by kind."""
    assert provider._guest is not None
    folder = Path(f"/proc/{provider._guest._process.pid}/ns")
    return {name: os.stat(folder / name).st_ino for name in os.listdir(folder) if "_for_" not in name}


# What an episode changes and can look at: by name, a shell line that changes it, and one that shows it.
TRACES = {
    "sockets that wait": (
        'python3 -c \'from socket import *; at = "localhost", 9222; own = create_server(at); '
        "one = create_connection(at); own.accept()'",
        "awk '$4 == \"06\"' /proc/net/tcp | wc -l",
    ),
    "counters of the network": (
        "for n in $(seq 30); do echo x > /dev/udp/127.0.0.1/9; done",
        "grep -E '^(Udp|Tcp|Ip|Icmp):' /proc/net/snmp; tail -n +3 /proc/net/dev",
    ),
    "priority of input and output": ("ionice -c 3 -p 1 $PPID; ionice -c 3 -p $$", "ionice -p 1; ionice -p $PPID"),
    "priority": ("renice -n 5 -p 1 $PPID; true", "cut -d' ' -f19 /proc/1/stat; nice"),
    "clipboard": (
        "echo left | xclip -selection clipboard > /dev/null 2>&1",
        "xclip -o -selection clipboard 2>&1",
    ),
    "keyboard": ("setxkbmap de", "setxkbmap -query"),
    "limits of process 1": (
        "prlimit --pid 1 --fsize=2000000:2000000 --nofile=64:64; renice -n 19 -p 1; chrt -i -p 0 1; true",
        "ulimit -Ha; nice; chrt -p $$ | cut -d: -f2",
    ),
    "files": ("touch /tmp/left ~/left /var/tmp/left /run/left /dev/shm/left", "ls -d /*/left /*/*/left 2> /dev/null"),
    "what is in the home": ("mkdir -p a/b locked; touch a/b/c locked/x; chmod 0 locked", "ls -a ~ /run/user/1000"),
    "start-up files": ("echo changed >> ~/.bashrc", "cat ~/.bashrc"),
    "windows": (
        "setsid xterm > /dev/null 2>&1 & until wmctrl -lx | grep -q xterm; do sleep 0.1; done",
        "wmctrl -lx | grep -c xterm; pgrep -x xterm",
    ),
    "System V memory": ("ipcmk -M 4096", "cat /proc/sysvipc/shm"),
    "processes": ("setsid sleep 1234 > /dev/null 2>&1 &", "pgrep -x sleep"),
    # Last: nobody else writes there then.
    "modes of folders": ("chmod 555 /var/tmp /dev/shm; chmod 700 /tmp", "stat -c %a /home /tmp /run /var/tmp /dev/shm"),
    "host name": ("hostname left; true", "hostname"),
}
REFUSED = {"priority of input and output", "priority", "limits of process 1", "modes of folders", "host name"}
"""What the kernel may refuse an episode."""
SET_IN_PYTHON = "import builtins, os; builtins.left = 1; os.environ['LEFT'] = '1'; os.chdir('/tmp')"
SHOWN_BY_PYTHON = "import builtins, os; print(hasattr(builtins, 'left'), os.environ.get('LEFT'), os.getcwd())"


def seen(desktop: Desktop) -> dict[str, str]:
    """All that shows, before anything was changed."""
    # First, since every look adds to it.
    first = {name: desktop.sh(TRACES[name][1]) for name in ("counters of the network", "sockets that wait")}
    rest = {name: desktop.sh(shows) for name, (_, shows) in TRACES.items() if name not in first}
    python = desktop.controller.execute_python_command(SHOWN_BY_PYTHON)["output"]
    return {**first, **rest, "interpreter": python}


def test_the_next_of_two_episodes_sees_what_the_first_saw(jail, attacked):
    """The second was booted behind the first, while that one changed all it could; the third after the second had."""
    before = seen(jail)
    for is_ahead in (True, False):
        own = namespaces(attacked)
        assert own.keys() >= ALWAYS_OWN
        if is_ahead:
            attacked.boot_next()
        desktop = attach(attacked)
        for change, _ in TRACES.values():
            desktop.sh(change)
        desktop.controller.execute_python_command(SET_IN_PYTHON)
        changed = seen(desktop)
        assert {name for name in before if changed[name] == before[name]} <= REFUSED
        attacked.revert_to_snapshot()

        assert seen(attach(attacked)) == before
        others = namespaces(attacked)
        shared = {name for name in own if own[name] == others[name]}
        # One user of the machine each, or a namespace of users each; clocks are the machine's.
        assert shared <= {"user", "time"} and ("user" in shared) == (attacked._guest._user is not None)


def test_one_desktop_at_most_is_booted_ahead(booted, monkeypatch):
    """However often an episode is begun."""
    booted.revert_to_snapshot()
    booted.boot_next()
    ahead = booted._next
    booted.boot_next()
    assert booted._next is ahead
    guest = ahead.result()
    attach(booted).controller.get_vm_screen_size()
    booted.revert_to_snapshot()
    assert booted._guest is guest and booted._next is None
