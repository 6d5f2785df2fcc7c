"""A run as a folder that opens from disk; that a browser opens it is tested beside."""

import json
import shutil

import pytest
from support.pictures import png

from arpo_verl.errors import ConfigError
from arpo_verl.tools.viewer.export import export_run


@pytest.fixture
def export(run, tmp_path):
    """Export the run, or a selection, to a folder; returns the folder."""

    def write(snapshot=None, name="exported"):
        exported = export_run(run, snapshot or run.snapshot(), tmp_path / name, progress=False)
        assert exported.index == tmp_path / name / "index.html"
        return tmp_path / name

    return write


def read(folder, path):
    """A document as the page gets it: the arguments of the one call that its script makes."""
    script = (folder / "data" / f"{path.removeprefix('api/')}.js").read_text("ascii")
    assert script.startswith("ARPO_RUN(")
    assert script.endswith(");\n")
    name, document = json.loads(f"[{script[9:-3]}]")
    assert name == path
    return document


def test_documents_and_screenshots_are_all_there(written, export):
    id = written.episode(1)
    written.metrics(1, loss=2.0)
    folder = export()
    assert 'data-source="files"' in (folder / "index.html").read_text()
    assert (folder / "assets" / "source.js").is_file()
    assert read(folder, "api/run")["live"] is False
    assert read(folder, "api/episodes")["rows"][0][0] == id
    assert read(folder, "api/metrics")["series"] == {"loss": [2.0]}
    assert len(read(folder, f"api/episode/{id}")["turns"]) == 2
    assert (folder / "shots" / id / "01.png").read_bytes() == png()


def test_text_of_a_model_ends_no_script(written, export):
    text = "</script><script>alert(1)</script> \u2028 \u2029 \ud800 <!-- 中"
    id = written.episode(1, instruction=text)
    folder = export()
    script = (folder / "data" / "episode" / f"{id}.js").read_bytes()
    assert script.isascii()
    assert b"</" not in script
    assert read(folder, f"api/episode/{id}")["instruction"] == text


def test_an_export_knows_nothing_of_what_is_left_out(written, run, export):
    old = written.episode(1, uid="old")
    new = written.episode(2, uid="new")
    replay = {"step": 1, "uid": "old", "session": 0}
    written.group(2, "new", {"session": 0, "reward": 1, "advantage": 1, "replay": replay})
    folder = export(run.select(lambda episode: episode.step == 2))
    assert [row[0] for row in read(folder, "api/episodes")["rows"]] == [new]
    assert old not in (folder / "data" / "episode" / f"{new}.js").read_text()
    assert not (folder / "shots" / "step_000001").exists()
    with pytest.raises(ConfigError, match="no episode in .* matches"):
        export(run.select(lambda _: False))


def test_an_export_is_replaced_by_a_later_one(written, run, export):
    written.episode(1)
    export()
    kept = written.episode(2)
    folder = export(run.select(lambda episode: episode.step == 2))
    assert [path.name for path in (folder / "shots").iterdir()] == ["step_000002"]
    assert [path.name for path in (folder / "data" / "episode").iterdir()] == ["step_000002"]
    assert (folder / "shots" / kept / "00.png").is_file()


def test_a_folder_with_something_else_in_it_is_refused(written, export, tmp_path):
    written.episode(1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "data").mkdir()
    (tmp_path / "mine" / "data" / "thesis.txt").touch()
    with pytest.raises(ConfigError, match="new or empty folder, or an earlier export"):
        export(name="mine")
    with pytest.raises(ConfigError, match="new or empty folder, or an earlier export"):
        export(name="mine/data/thesis.txt")
    assert (tmp_path / "mine" / "data" / "thesis.txt").exists()


def test_links_and_missing_screenshots_are_left_out(written, export, tmp_path):
    id = written.episode(1, screenshots=3)
    folder = written.trajectories / id
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "00.png").unlink()
    (folder / "01.png").unlink()
    (folder / "01.png").symlink_to(tmp_path / "secret")
    exported = export()
    assert [path.name for path in (exported / "shots" / id).iterdir()] == ["02.png"]


def test_an_episode_taken_away_meanwhile_is_left_out(written, run, export):
    gone, kept = written.episode(1), written.episode(2)
    snapshot = run.snapshot()
    shutil.rmtree(written.trajectories / gone)
    folder = export(snapshot)
    assert (folder / "shots" / kept).is_dir()
    assert not (folder / "data" / "episode" / f"{gone}.js").exists()
