"""What is written whole is there whole or not at all."""

import os

import psutil
import pytest
from support.desktop_harness import eventually

from arpo_verl.lib import file_lock, files


@pytest.mark.parametrize("sync", [True, False])
def test_a_write_that_the_disk_refuses_leaves_what_was_there_and_no_part(tmp_path, monkeypatch, sync):
    path, synced = tmp_path / "file", []
    monkeypatch.setattr(os, "fsync", synced.append)
    files.write_whole(path, b"before", sync=sync)
    assert len(synced) == sync
    with monkeypatch.context() as full, pytest.raises(OSError, match="no space"):
        full.setattr(os, "replace", refuse)
        files.write_whole(path, b"after", sync=sync)
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["file"]
    files.write_whole(path, b"after", sync=sync)
    assert path.read_bytes() == b"after" and os.listdir(tmp_path) == ["file"]


def refuse(source, target):
    raise OSError("no space")


def test_a_scratch_folder_is_left_alone_while_its_owner_lives_and_goes_with_it(tmp_path):
    first = files.ScratchFolder(tmp_path, "kind-", "one-")
    other = tmp_path / "kind-foreign"
    other.mkdir()
    second = files.ScratchFolder(tmp_path, "kind-", "two-")
    assert first.path.is_dir() and first.path.name.startswith("kind-one-")
    first.remove()
    first.remove()
    assert sorted(tmp_path.iterdir()) == sorted([other, second.path])
    path = second.path
    del second
    assert not path.exists()


def killed_fork(act):
    """A fork of this process that does what kills it."""
    if (child := os.fork()) == 0:
        try:
            act()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9


def kill_itself(*_, **__):
    os.kill(os.getpid(), 9)


def hold_a_folder(root, before_the_end=lambda: None):
    held = files.ScratchFolder(root, "kind-")
    held.path.joinpath("content").touch()
    before_the_end()
    kill_itself()


def kill_children():
    for child in psutil.Process().children():
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    "before_the_end, path",
    [(lambda: None, None), (kill_children, None), (lambda: None, "/nothing")],
    ids=["", "after it killed its children", "without a program on the path"],
)
def test_a_scratch_folder_goes_when_its_process_is_killed(tmp_path, monkeypatch, before_the_end, path):
    """A worker of Ray's whose head died kills its children: what was to remove the folder was one of them."""
    if path is not None:
        monkeypatch.setenv("PATH", path)
    killed_fork(lambda: hold_a_folder(tmp_path, before_the_end))
    eventually(lambda: not list(tmp_path.iterdir()))


def test_a_name_with_a_line_s_end_does_not_remove_what_stands_behind_that(tmp_path):
    with pytest.raises(ValueError, match="must have no line's end"):
        files.reaper.remove_at_end(tmp_path / "mine\n" / "victim")


def test_a_scratch_folder_that_a_kill_left_all_the_same_goes_when_the_next_one_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(files.reaper, "remove_at_end", lambda folder: None)
    killed_fork(lambda: hold_a_folder(tmp_path))
    (left,) = tmp_path.iterdir()
    new = files.ScratchFolder(tmp_path, "kind-")
    assert list(tmp_path.iterdir()) == [new.path] and not left.exists()


def test_a_folder_that_becomes_a_link_while_it_is_taken_for_abandoned_costs_nobody_a_file(tmp_path, monkeypatch):
    """In /tmp it may be another user's, and we may be root."""
    shared, ours = tmp_path / "shared", tmp_path / "ours"
    left = shared / "kind-left"
    for folder in (left, ours / "folder"):
        folder.mkdir(parents=True)
        (folder / ".in-use").touch()
    (ours / "file").touch()

    class Lock(file_lock.FileLock):
        def __init__(self, path, **options):
            super().__init__(path, **options)
            if path.parent == left:
                left.rename(shared / "other")
                left.symlink_to(ours)

    monkeypatch.setattr(files, "FileLock", Lock)
    files.ScratchFolder(shared, "kind-")
    assert left.is_symlink() and sorted(os.listdir(ours)) == ["file", "folder"]


def test_what_a_process_left_that_was_killed_while_it_made_its_folder_goes_later(tmp_path, monkeypatch):
    killed_fork(
        lambda: (monkeypatch.setattr(file_lock.fcntl, "flock", kill_itself), files.ScratchFolder(tmp_path, "kind-"))
    )
    (left,) = tmp_path.iterdir()
    new = files.ScratchFolder(tmp_path, "kind-")
    assert list(tmp_path.iterdir()) == [new.path] and left != new.path


def test_a_folder_that_another_took_for_abandoned_while_it_was_made_is_made_again(tmp_path, monkeypatch):
    made, mkdtemp = [], files.tempfile.mkdtemp

    def swept(**arguments):
        made.append(mkdtemp(**arguments))
        if len(made) == 1:
            os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(files.tempfile, "mkdtemp", swept)
    scratch = files.ScratchFolder(tmp_path, "kind-")
    assert len(made) == 2 and list(tmp_path.iterdir()) == [scratch.path]


def test_a_folder_is_replaced_when_its_block_ends_well_and_else_kept(tmp_path):
    target = tmp_path / "target"
    for name in ("first", "second"):
        with files.replacing_directory(target) as scratch:
            (scratch / name).touch()
        assert os.listdir(target) == [name]
    with pytest.raises(KeyError), files.replacing_directory(target) as scratch:
        raise KeyError
    assert os.listdir(tmp_path) == ["target"] and os.listdir(target) == ["second"]


def test_a_kill_while_the_old_folder_goes_leaves_the_new_one_whole(tmp_path, monkeypatch):
    target, scratch = tmp_path / "policy", tmp_path / "scratch"
    for folder, content in ((target, "old"), (scratch, "new")):
        folder.mkdir()
        (folder / "file").write_text(content)

    def killed(*args, **kwargs):
        raise SystemExit

    monkeypatch.setattr(files.shutil, "rmtree", killed)
    with pytest.raises(SystemExit):
        files.replace_directory(scratch, target)
    assert [(path.name, path.read_text()) for path in target.iterdir()] == [("file", "new")]


def test_a_replacement_that_the_disk_refuses_leaves_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "policy").mkdir()
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no space"), files.replacing_directory(tmp_path / "policy"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
