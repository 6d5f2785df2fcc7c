"""`arpo-verl view` as one types it."""

import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
import requests
from support import take_interrupts

from arpo_verl.tools.cli import view
from arpo_verl.tools.cli.main import main

COMMAND = [sys.executable, "-m", "arpo_verl.tools.cli.main", "view"]


@contextmanager
def started(*args):
    """The command and the address that it printed."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*COMMAND, *args], **pipes, preexec_fn=take_interrupts)
    try:
        line = process.stdout.readline()
        yield process, re.search(r"http://\S+", line)[0]
    finally:
        process.kill()
        process.communicate()


def test_it_serves_where_it_says_until_interrupted(written):
    written.episode(1)
    with started(str(written.path), "--port", "0") as (process, url):
        assert requests.get(url + "api/run").json()["num_episodes"] == 1
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=600)
    assert (process.returncode, stderr) == (0, "")


def test_another_host_than_loopback_gets_a_token(written):
    with started(str(written.path), "--port", "0", "--host", "0.0.0.0") as (_, url):
        found = re.fullmatch(r"http://[^/]+:(\d+)/(\?token=[\w-]{32})", url)
        local = f"http://127.0.0.1:{found[1]}/"
        assert requests.get(local).status_code == 403
        assert requests.get(local + found[2]).status_code == 200


def test_a_port_in_use_is_passed_over_unless_it_was_asked_for():
    with view._listen("127.0.0.1", None) as first, view._listen("127.0.0.1", None) as second:
        ports = [listener.getsockname()[1] for listener in (first, second)]
        assert view.DEFAULT_PORT <= ports[0] < ports[1]
        with pytest.raises(view.ConfigError, match=f"port {ports[0]} of 127.0.0.1: .* in use .*; leave out --port"):
            view._listen("127.0.0.1", ports[0])


@pytest.mark.parametrize(
    "args, steps",
    [
        ([], [1, 2, 3, 12]),
        (["--steps", "2"], [2]),
        (["--steps", "2-3"], [2, 3]),
        (["--steps=-2"], [1, 2]),
        (["--steps", "3-"], [3, 12]),
    ],
)
def test_an_export_holds_what_was_asked_for(written, tmp_path, capsys, args, steps):
    for step in (1, 2, 3, 12):
        written.episode(step, uid=f"u{step}")
    assert main(["view", str(written.path), "--export", str(tmp_path / "out"), *args]) == 0
    assert sorted(int(path.name[5:]) for path in (tmp_path / "out" / "shots").iterdir()) == steps
    assert f"{len(steps)} episodes" in capsys.readouterr().out
