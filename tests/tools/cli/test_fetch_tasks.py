"""`arpo-verl fetch-tasks`: the download, from a server of this test; and archives that are not what they should be."""

import errno
import json
import os
import re
import ssl
import tarfile
from dataclasses import dataclass, field

import pytest
from support.http_server import Server
from support.osworld_archive import INDEX, TASKS, packed, publish

from arpo_verl.tools.cli.main import main
from arpo_verl.versions import OSWORLD_ARCHIVE, OSWORLD_COMMIT

LINK = tarfile.TarInfo("OSWorld/evaluation_examples/examples/os/a.json")
LINK.type, LINK.linkname = tarfile.SYMTYPE, "/etc/passwd"


@dataclass
class Published:
    """What the server sends, and what it was asked for."""

    content: bytes = b""
    asked: list = field(default_factory=list)
    url: str = ""


@pytest.fixture
def published(monkeypatch):
    publish(monkeypatch)
    here = Published(packed())

    def respond(request, body):
        here.asked.append(request.path)
        if request.path not in ("/osworld.tar.gz", "/broken"):
            return request.send_error(404)
        sent = here.content[:100] if request.path == "/broken" else here.content
        return request.answer(200, sent, Content_Length=len(here.content))

    with Server(respond) as server:
        here.url = f"{server.url}/osworld.tar.gz"
        yield here


def fetch(folder, *words):
    return main(["fetch-tasks", "--folder", str(folder), *words])


def test_tasks_are_fetched_once_and_counted(published, tmp_path, capsys):
    for _ in range(2):
        assert fetch(tmp_path, "--url", published.url) == 0
        said = capsys.readouterr().out
        assert "3 tasks: os 2, gimp 1\n" in said and f"data.train_files={tmp_path}/test_all.json\n" in said
    assert published.asked == ["/osworld.tar.gz"]
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == {INDEX, *TASKS}
    assert (tmp_path / "examples/os/a.json").read_bytes() == TASKS["examples/os/a.json"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"<html>log in</html>", "is not a complete .tar.gz archive"),
        (packed()[:-4], "is not a complete .tar.gz archive"),
        (packed(commit="0" * 40), "is of commit '0000"),
        (packed(commit=None), "does not say of which commit it is"),
        (packed({INDEX: b'{"os": ["a"]}'}), "test_all.json is not the one of"),
        (packed({"examples/os/a.json": None}), "examples/os/a.json: missing"),
        (packed({"examples/os/a.json": b"{"}), "examples/os/a.json: not JSON"),
        (packed({"examples/os/a.json": TASKS["examples/os/b.json"]}), "examples/os/a.json: its id is 'b'"),
        (packed({"examples/os/a.json": b'{"id": "a"}'}), "examples/os/a.json: a task must have"),
        (packed({"examples/os/a.json": b" " * (2 << 20)}), "must be a file of at most 1 MiB"),
        (packed({"examples/os/a.json": LINK}), "os/a.json must be a file"),
    ],
)
def test_another_archive_leaves_nothing_and_is_told(published, tmp_path, capsys, content, told):
    published.content = content
    assert fetch(tmp_path, "--url", published.url) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_nothing_but_the_expected_names_is_written(published, tmp_path):
    evil = {name: TASKS["examples/os/a.json"] for name in ("../../up.json", "examples/../../up.json", "run.py")}
    published.content = packed({**evil, "examples/os/.hidden.json": b"{}", "README.md": b"x"})
    assert fetch(tmp_path / "in", "--url", published.url) == 0
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == {
        f"in/{name}" for name in (INDEX, *TASKS)
    }


@pytest.mark.parametrize(
    ("bound", "told"), [("MAX_ARCHIVE_BYTES", "sends more than"), ("_MAX_UNPACKED_BYTES", "unpacks to more than")]
)
def test_a_download_and_what_it_unpacks_to_are_bounded(published, tmp_path, monkeypatch, capsys, bound, told):
    monkeypatch.setattr(f"arpo_verl.tasks.osworld_files.{bound}", 100)
    assert fetch(tmp_path, "--url", published.url) == 2
    assert told in capsys.readouterr().err


def test_without_a_network_the_two_other_ways_are_named(published, tmp_path, capsys):
    for url, told in [
        ("http://127.0.0.1:1/x", "Connection refused"),
        (published.url + "x", "answered 404"),
        (published.url.replace("osworld.tar.gz", "broken"), "the connection ended"),
        ("ftp://x", "must begin with https"),
        ("http://[::1", "must be a web address"),
        ("http://a..b/x", "must be a web address"),
        ("http://127.0.0.1:1/a b", "must be a web address"),
        ("http://127.0.0.1:1/\u2603", "must be a web address"),
    ]:
        assert fetch(tmp_path, "--url", url) == 2
        said = capsys.readouterr().err
        assert told in said and "--url" in said and ("--archive" in said) == ("must" not in told)


def test_a_network_that_breaks_in_the_middle_is_named_as_such(published, tmp_path, monkeypatch, capsys):
    def broken(*_):
        raise ssl.SSLEOFError(ssl.SSL_ERROR_EOF, "EOF occurred in violation of protocol")

    with monkeypatch.context() as patch:
        patch.setattr("http.client.HTTPResponse.read", broken)
        assert fetch(tmp_path, "--url", published.url) == 2
    said = capsys.readouterr().err
    assert f"the download of {published.url} failed" in said and "violation of protocol" in said and "--archive" in said


def test_a_copied_archive_needs_no_network(published, tmp_path, capsys):
    (tmp_path / "osworld.tar.gz").write_bytes(published.content)
    assert fetch(tmp_path / "tasks", "--archive", str(tmp_path / "osworld.tar.gz")) == 0
    assert not published.asked and (tmp_path / "osworld.tar.gz").exists()
    assert fetch(tmp_path / "other", "--archive", str(tmp_path / "none.tar.gz")) == 2
    assert "none.tar.gz" in capsys.readouterr().err


def test_your_own_files_stay_and_a_missing_one_comes_back(published, tmp_path, capsys):
    assert fetch(tmp_path, "--url", published.url) == 0
    (tmp_path / "mine.json").write_text('["a"]')
    (tmp_path / "examples/os/b.json").unlink()
    assert fetch(tmp_path, "--url", published.url) == 0
    assert (tmp_path / "examples/os/b.json").exists() and (tmp_path / "mine.json").exists()
    changed = json.dumps({**json.loads(TASKS["examples/os/b.json"]), "instruction": "mine", "id": "c"})
    (tmp_path / "examples/os/b.json").write_text(changed)
    assert fetch(tmp_path, "--url", published.url) == 2
    assert "we do not overwrite them" in capsys.readouterr().err
    assert (tmp_path / "examples/os/b.json").read_text() == changed


@pytest.mark.parametrize("function", ["write_whole", "download"])
def test_a_full_disk_is_told_and_the_same_command_goes_on(published, tmp_path, monkeypatch, capsys, function):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(f"arpo_verl.tasks.osworld_files.{function}", full)
        assert fetch(tmp_path, "--url", published.url) == 2
    assert "is full; free some space" in capsys.readouterr().err and not (tmp_path / INDEX).exists()
    assert fetch(tmp_path, "--url", published.url) == 0


def test_the_address_is_of_the_pinned_commit():
    assert re.fullmatch("[0-9a-f]{40}", OSWORLD_COMMIT) and OSWORLD_COMMIT in OSWORLD_ARCHIVE
