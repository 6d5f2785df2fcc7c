"""A run whose Ray has lost its head ends without a word of Python: the driver says before how it goes on."""

import queue
import socket

import pytest

from arpo_verl.plugin import head_watch
from arpo_verl.plugin.head_watch import HeadWatch
from arpo_verl.records.layout import LATEST_CHECKPOINT


@pytest.fixture
def watch(tmp_path, monkeypatch):
    """A watch of an address, and the lines that it prints."""
    printed, watches = queue.Queue(), []
    monkeypatch.setattr("builtins.print", lambda line, **_: printed.put(line))

    def start(address):
        watches.append(HeadWatch(tmp_path, address, poll_s=0.01))
        return printed

    yield start
    for one in watches:
        one.close()


@pytest.fixture
def head():
    """A port at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_head_that_is_gone_is_said_with_the_step_that_the_run_resumes_after(watch, head, tmp_path):
    (tmp_path / LATEST_CHECKPOINT).write_text("8")
    address = f"127.0.0.1:{head.getsockname()[1]}"
    printed = watch(lambda: address)
    head.accept()[0].close()  # it was asked
    assert printed.empty()
    head.close()
    said = printed.get(timeout=30)
    assert "within a minute. The same command resumes after step 8." in said


def test_without_a_checkpoint_the_run_begins_anew(watch):
    assert "begins anew, since nothing was saved yet" in watch(lambda: "127.0.0.1:1").get(timeout=30)


def test_nothing_is_said_before_there_is_a_ray_and_after_the_end(watch, monkeypatch):
    asked = queue.Queue()
    printed = watch(lambda: asked.put(True))
    for _ in range(head_watch._REFUSALS + 2):
        asked.get(timeout=30)
    assert printed.empty()


def test_this_process_has_no_head_before_it_is_part_of_a_ray(monkeypatch):
    monkeypatch.delitem(head_watch.sys.modules, "ray", raising=False)
    assert head_watch._head_address() is None
