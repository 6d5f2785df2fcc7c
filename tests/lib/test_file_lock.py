"""The lock on files and folders, against other processes."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from arpo_verl.lib.file_lock import FileLock, LockedError


@pytest.fixture(params=["file", "folder"])
def path(request, tmp_path):
    return tmp_path if request.param == "folder" else tmp_path / "lock"


def test_another_lock_is_refused_until_the_first_is_closed(path):
    lock = FileLock(path)
    with pytest.raises(LockedError) as refused:
        FileLock(path)
    assert refused.value.holder.startswith("unknown" if path.is_dir() else f"process {os.getpid()} on ")
    lock.close()
    lock.close()
    FileLock(path).close()


def test_neither_forks_nor_programs_of_a_killed_holder_keep_it(path):
    """The flock of an evaluation stayed with what its process had forked."""
    code = (
        "import os, subprocess, sys, time; from pathlib import Path; from arpo_verl.lib.file_lock import FileLock\n"
        "lock = FileLock(Path(sys.argv[1])); sleeping = subprocess.Popen(['sleep', '60'], stdout=2)\n"
        "if os.fork() == 0: print(sleeping.pid, os.getpid(), flush=True)\n"  # by the fork, which has let go of it
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True) as holder:
        children = [int(word) for word in holder.stdout.readline().split()]
        try:
            with pytest.raises(LockedError):
                FileLock(path)
            holder.kill()
            holder.wait()
            assert all(os.path.exists(f"/proc/{child}") for child in children)
            FileLock(path).close()
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)


def test_a_closed_lock_is_free_at_once_beside_forks(path):
    """A fork that had just begun still had it open, so its own process was refused."""
    ended = threading.Event()

    def fork():
        while not ended.is_set():
            if (child := os.fork()) == 0:
                os._exit(0)
            os.waitpid(child, 0)

    thread = threading.Thread(target=fork)
    thread.start()
    try:
        for _ in range(300):
            FileLock(path).close()
    finally:
        ended.set()
        thread.join()


def test_another_name_of_somebodys_file_leaves_its_content(tmp_path):
    (tmp_path / "file").write_text("content")
    os.link(tmp_path / "file", tmp_path / "lock")
    FileLock(tmp_path / "lock").close()
    assert (tmp_path / "file").read_text() == "content"


def test_a_link_is_not_followed(path, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError):
        FileLock(link)
    assert path == tmp_path or not path.exists()


def test_a_file_that_is_replaced_while_it_is_locked_is_not_locked(tmp_path, monkeypatch):
    path, opened = tmp_path / "lock", os.open

    def open_and_replace(*arguments):
        descriptor = opened(*arguments)
        path.unlink()
        path.write_bytes(b"")
        return descriptor

    with monkeypatch.context() as patch, pytest.raises(FileNotFoundError):
        patch.setattr(os, "open", open_and_replace)
        FileLock(path)
    FileLock(path).close()


def test_what_the_file_says_reaches_no_terminal_as_an_escape(tmp_path):
    lock = FileLock(tmp_path / "lock")
    (tmp_path / "lock").write_bytes(b"\x1b]0;title\x07\xff" + b"x" * 1000)
    with pytest.raises(LockedError) as refused:
        FileLock(tmp_path / "lock")
    lock.close()
    assert refused.value.holder.isprintable() and len(refused.value.holder) <= 200


def test_a_full_disk_does_not_refuse_it(tmp_path, monkeypatch):
    """What frees the disk of abandoned folders locks them first."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    FileLock(tmp_path / "lock").close()
