"""What a hostile program in the desktop cannot do. Both as root and in a user namespace, as without root."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.desktop_harness import running

from arpo_verl.desktops.embedded import sandbox
from arpo_verl.desktops.embedded.cgroups import Limits
from arpo_verl.lib.bubblewrap import PACKAGE

pytestmark = pytest.mark.desktop
CAP_SYS_RESOURCE = 1 << 24


def test_it_is_an_ordinary_user_without_capabilities(jail):
    assert jail.sh("id -un; id -gn; echo $HOME; id -G | wc -w").split() == ["user", "user", "/home/user", "1"]
    assert jail.sh("id -u") != "0"
    capabilities = jail.sh("grep -h -E 'Cap(Inh|Prm|Eff|Amb)' /proc/self/status /proc/1/status").split()
    assert set(capabilities[1::2]) == {"0000000000000000"}
    assert jail.sh("grep NoNewPrivs /proc/self/status").endswith("1")


def test_it_writes_nowhere_but_to_its_own_memory(jail):
    places = "/ /etc /usr /usr/bin /var /opt /opt/arpo /opt/arpo/arpo_guest /root /dev /proc /sys"
    jail.sh(f"for d in {places} {PACKAGE} {os.path.dirname(os.__file__)}; do touch $d/desktop-wrote; done; true")
    assert jail.sh("find / -xdev -name desktop-wrote 2>/dev/null; ls {/dev,/etc}/desktop-wrote 2>/dev/null; true") == ""
    assert jail.sh("for d in ~ /tmp /run /var/tmp /dev/shm; do touch $d/own && echo ok; done") == "\n".join(["ok"] * 5)
    assert not any(Path(place, "desktop-wrote").exists() for place in (*places.split(), "/tmp", "/home"))


def test_it_does_not_see_the_hosts_homes_files_or_secrets(jail, tmp_path):
    (tmp_path / "file").write_text("host")
    assert "No such file" in jail.sh(f"cat {tmp_path}/file")
    assert jail.sh("ls /home") == "user"
    assert "swordfish" not in jail.sh("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")
    if os.geteuid() == 0 and jail.sh("id -u") != "1000":
        assert "Permission denied" in jail.sh("cat /etc/shadow")


def test_it_does_not_see_the_tasks_evaluators_or_expert(jail):
    assert jail.sh(f"ls {PACKAGE}/tasks 2>&1 | grep -v 'No such'") == ""
    own = jail.sh(f"ls {sandbox.GUEST_ROOT}").split()
    assert [name for name in own if name != "chrome"] == ["arpo_guest", "bin"]  # the browser lies there if installed


def test_package_inside_a_visible_folder_is_covered(monkeypatch, tmp_path):
    words = sandbox._mounts([])
    assert str(PACKAGE) not in words
    covered = sandbox._mounts([str(PACKAGE.parent)])
    assert covered[covered.index(str(PACKAGE)) - 1] == "--tmpfs"


def test_it_reaches_no_network_and_no_port_of_the_host(jail):
    with socket.create_server(("127.0.0.1", 0)) as host:
        port = host.getsockname()[1]
        assert "refused" in jail.sh(f"echo > /dev/tcp/127.0.0.1/{port}")
    assert "unreachable" in jail.sh("echo > /dev/tcp/192.0.2.1/80")
    assert jail.sh("ls /sys/class/net 2>/dev/null; tail -n +3 /proc/net/dev | cut -d: -f1").split() == ["lo"]


def test_it_sees_only_its_own_processes_and_cannot_touch_the_first(jail):
    names = jail.sh("ps -eo comm=").split()
    assert {"Xvfb", "openbox", "dbus-daemon"} <= set(names) and "pytest" not in names
    jail.sh("kill -9 1; true")
    for file in ("mem", "environ", "maps"):
        assert "Permission denied" in jail.sh(f"head -c 1 /proc/1/{file}")
    assert jail.sh("for n in $(seq 0 20); do readlink /proc/1/fd/$n; done; true") == ""
    assert jail.controller.get_screenshot()


def test_a_fork_bomb_has_a_limit(jail):
    assert int(jail.sh("ulimit -u")) <= Limits.pids + 1
    assert jail.sh("ulimit -c") == "0"


def test_its_programs_die_no_later_than_the_trainer_where_memory_runs_out():
    """A pod of Kubernetes may have a higher score, which it may not lower."""
    source = (
        "from support.desktop_harness import running\n"
        "open('/proc/self/oom_score_adj', 'w').write('900')\n"
        "lines = 'cat /proc/self/oom_score_adj; echo 0 > /proc/self/oom_score_adj'\n"
        "with running() as desktop: print(desktop.sh(lines))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    assert said[0] == "900"
    if os.geteuid() == 0 and CAP_SYS_RESOURCE & _own_capabilities():
        assert "Permission denied" in said[1]


def _own_capabilities():
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff")), 16)


def test_extra_folders_are_readable_and_not_writable(tmp_path):
    (tmp_path / "data").write_text("readable")
    (tmp_path / "data").chmod(0o666)
    tmp_path.chmod(0o755)
    with running(extra_read_only=[str(tmp_path)]) as desktop:
        assert desktop.sh(f"cat {tmp_path}/data") == "readable"
        assert "Read-only" in desktop.sh(f"touch {tmp_path}/data")
        desktop.provider.revert_to_snapshot()
        assert desktop.sh(f"cat {tmp_path}/data") == "readable"
    assert (tmp_path / "data").read_text() == "readable"


def test_a_machine_that_lacks_a_file_of_ours_has_desktops_too(monkeypatch, tmp_path):
    """A minimal Debian has no /etc/hosts, and bubblewrap makes none in a folder that may only be read."""
    monkeypatch.setattr(sandbox, "HOSTS", "/etc/hosts-of-ours")
    tmp_path.chmod(0o755)
    with running(extra_read_only=[str(tmp_path)]) as desktop:
        assert desktop.sh("cat /etc/hosts-of-ours").startswith("127.0.0.1 localhost desktop")
        assert desktop.sh("id -un; ls /etc/fonts").splitlines()[:2] == ["user", "conf.avail"]
        for file in ("hosts-of-ours", "new"):
            assert desktop.sh(f"touch /etc/{file}").endswith(("Read-only file system", "Permission denied"))
