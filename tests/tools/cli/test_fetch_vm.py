"""`arpo-verl fetch-vm`: the client's own download, from a server of this test."""

import functools
import io
import threading
import zipfile
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

manager = pytest.importorskip("desktop_env.providers.docker.manager")

from arpo_verl.tools.cli.main import main  # noqa: E402


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A folder that is served in the place of OSWorld's."""
    folder = tmp_path / "published"
    folder.mkdir()
    handler = functools.partial(SimpleHTTPRequestHandler, directory=folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/Ubuntu.qcow2.zip"
    monkeypatch.setattr(manager, "UBUNTU_X86_URL", url)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    yield folder
    server.shutdown()
    server.server_close()


def zipped(content, name="Ubuntu.qcow2"):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def test_the_machine_is_fetched_once_and_its_path_printed(published, tmp_path, capsys):
    (published / "Ubuntu.qcow2.zip").write_bytes(zipped(b"a disk"))
    for _ in range(2):
        assert main(["fetch-vm", "--folder", str(tmp_path / "here")]) == 0
        path = tmp_path / "here" / "docker_vm_data" / "Ubuntu.qcow2"
        assert f"environment.path_to_vm={path}" in capsys.readouterr().out
        assert path.read_bytes() == b"a disk"
        (published / "Ubuntu.qcow2.zip").unlink(missing_ok=True)


def test_a_failed_download_is_told(published, tmp_path, capsys):
    assert main(["fetch-vm", "--folder", str(tmp_path / "here")]) == 2
    assert "fetching the Ubuntu VM" in capsys.readouterr().err


def test_a_machine_that_was_half_unpacked_is_not_taken_for_a_whole_one(published, tmp_path, capsys):
    (published / "Ubuntu.qcow2.zip").write_bytes(zipped(b"a disk"))
    path = tmp_path / "docker_vm_data" / "Ubuntu.qcow2"
    assert main(["fetch-vm", "--folder", str(tmp_path)]) == 0
    path.write_bytes(b"a di")
    assert main(["fetch-vm", "--folder", str(tmp_path)]) == 2
    assert f"the unpacking of {path} was interrupted; remove that file" in capsys.readouterr().err
    path.unlink()
    assert main(["fetch-vm", "--folder", str(tmp_path)]) == 0
    assert path.read_bytes() == b"a disk"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"<html>log in</html>", "is not a complete .zip archive (File is not a zip file); remove the .zip"),
        (zipped(b"a disk", "Other.qcow2"), "Ubuntu.qcow2.zip does not contain Ubuntu.qcow2; remove it"),
    ],
)
def test_another_archive_is_told_with_the_way_out(published, tmp_path, capsys, content, told):
    (published / "Ubuntu.qcow2.zip").write_bytes(content)
    assert main(["fetch-vm", "--folder", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err
