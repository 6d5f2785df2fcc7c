"""Mock web applications of a task are files that somebody else made."""

import os
import time

import pytest

from arpo_verl.desktops.embedded.web_apps import MAX_BYTES, START_PAGE, WebApp, pack
from arpo_verl.errors import DesktopSetupError


@pytest.fixture
def app(tmp_path):
    (tmp_path / START_PAGE).write_text("<p>mail</p>")
    return WebApp("mail", tmp_path, 3000)


def test_a_sparse_file_is_refused_before_it_is_read(app):
    with (app.folder / "huge.js").open("wb") as file:
        file.truncate(1 << 40)
    begin = time.process_time()
    with pytest.raises(DesktopSetupError, match=f"{MAX_BYTES >> 20} MiB together, but .*huge.js is larger than"):
        pack([app])
    assert time.process_time() - begin < 0.5


def test_all_files_together_are_bounded(app, monkeypatch):
    monkeypatch.setattr("arpo_verl.desktops.embedded.web_apps.MAX_BYTES", 1 << 20)
    for name in ("a.js", "b.js"):
        (app.folder / name).write_bytes(b" " * 600_000)
    with pytest.raises(DesktopSetupError, match=r"b\.js is larger"):
        pack([app])


def test_links_and_pipes_are_left_out(app):
    (app.folder / "link.js").symlink_to("/etc/passwd")
    os.mkfifo(app.folder / "pipe.js")
    packed = pack([app])
    assert b"<p>mail</p>" in packed and b"link.js" not in packed and b"pipe.js" not in packed
