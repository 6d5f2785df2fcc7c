"""What is written whole is there whole or not at all."""

import os

import pytest

from arpo_verl import files


@pytest.mark.parametrize("sync", [True, False])
def test_a_write_that_the_disk_refuses_leaves_what_was_there_and_no_part(tmp_path, monkeypatch, sync):
    path = tmp_path / "file"
    files.write_whole(path, b"before", sync=sync)

    def refuse(source, target):
        raise OSError("no space")

    with monkeypatch.context() as full:
        full.setattr(os, "replace", refuse)
        with pytest.raises(OSError, match="no space"):
            files.write_whole(path, b"after", sync=sync)
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["file"]
    files.write_whole(path, b"after", sync=sync)
    assert path.read_bytes() == b"after" and os.listdir(tmp_path) == ["file"]


def test_only_what_is_asked_for_is_synced(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    files.write_whole(tmp_path / "a", b"a", sync=False)
    assert not synced
    files.write_whole(tmp_path / "b", b"b")
    assert len(synced) == 1


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


def test_a_scratch_folder_whose_process_was_killed_goes_when_the_next_one_comes(tmp_path):
    if (child := os.fork()) == 0:
        held = files.ScratchFolder(tmp_path, "kind-")
        held.path.joinpath("content").touch()
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    (left,) = tmp_path.iterdir()
    new = files.ScratchFolder(tmp_path, "kind-")
    assert list(tmp_path.iterdir()) == [new.path] and not left.exists()


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

    def refuse(source, target):
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="no space"), files.replacing_directory(tmp_path / "policy"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
