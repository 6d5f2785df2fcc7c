"""A run's folder that somebody else made: links, pipes, screenshots that are none, names as long as may be."""

import json
import os
import threading

import pytest
from support.viewer_run import png

from arpo_verl.records.film_strip import Frame, thumbnail
from arpo_verl.records.recorded import read_episodes
from arpo_verl.records.run import open_run
from arpo_verl.records.starts import read_starts

SECRET = "the contents of another's file"


def within_a_minute(function):
    """What `function` returns; a reader that hangs on a pipe is a failure and hangs nobody."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function()), daemon=True)
    thread.start()
    thread.join(60)
    assert results, "hung, or raised"
    return results[0]


def read_everything(path):
    run = open_run(path)
    read = [run.episodes(), run.groups(), run.metrics(), run.running(), run.pool(), read_starts(path)]
    try:
        read.extend(read_episodes(path / "trajectories"))
    except ValueError as error:
        read.append(str(error))
    return repr(read)


FILES = ("metrics.jsonl", "starts.jsonl", "pool.json", "trajectories/step_000001/groups.jsonl")
EPISODE_FILES = ("episode.json", "tokens.json", "live.json", "00.png")


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("name", [*FILES, *EPISODE_FILES])
def test_a_link_is_not_followed_and_a_pipe_hangs_nobody(written, tmp_path, name, kind):
    episode = written.trajectories / written.episode(1)
    path = episode / name if name in EPISODE_FILES else written.path / name
    secret = {"task_id": SECRET, "training/global_step": 1, "step": 1, "data": {SECRET: 1.0}, "rows": [], "uid": SECRET}
    (tmp_path / "secret").write_text(json.dumps({**secret, "recipe": {SECRET: 1}, "versions": {}, "time": 1e12}))
    (written.path / "metrics.jsonl").touch()
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "secret")
    assert SECRET not in within_a_minute(lambda: read_everything(written.path))


def test_a_screenshot_as_thin_as_a_hair_is_none():
    for size in ((1, 60000), (2, 3000)):
        small = thumbnail(Frame(png(size=size), ""), 300)
        assert small.height <= 1200
    assert thumbnail(Frame(png(size=(64, 128)), ""), 300).size == (300, 600)


def test_a_report_takes_the_place_of_a_link(written, tmp_path):
    pytest.importorskip("matplotlib")
    from arpo_verl.viewer.report import write_report

    written.episode(1)
    (tmp_path / "precious").write_text("precious")
    report = written.path / "report.html"
    report.symlink_to(tmp_path / "precious")
    write_report(open_run(written.path), report)
    assert (tmp_path / "precious").read_text() == "precious"
    assert not report.is_symlink() and "<html" in report.read_text()


def test_an_episode_whose_name_leaves_no_room_is_left_out_of_an_export(written, tmp_path):
    from arpo_verl.viewer.export import export_run

    kept = written.episode(1)
    (written.trajectories / written.episode(1, uid="u2")).rename(written.trajectories / "step_000001" / ("n" * 255))
    run = open_run(written.path)
    assert len(run.episodes()) == 2
    export_run(run, run.snapshot(), tmp_path / "export", progress=False)
    assert [path.stem for path in (tmp_path / "export/data/episode/step_000001").iterdir()] == [kept.partition("/")[2]]


def test_half_a_surrogate_pair_is_told_by_its_escape(written):
    pytest.importorskip("pandas")
    written.episode(1, instruction="Do \ud800.")
    frame = open_run(written.path).episodes().to_pandas()
    assert frame.instruction[0] == "Do \\ud800."
    frame.to_csv()
