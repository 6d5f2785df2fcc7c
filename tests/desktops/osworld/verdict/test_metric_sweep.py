"""A sweep over all of OSWorld's metrics: a right result scores 1.0, and what a policy may leave in its place does not.

What it may leave is garbage, nothing, a part, another file, or lists and pages that name the expected file. The table
is `support/metric_table.py`: it lists with the reason what scores 1.0 for less, and which functions are not tried.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("desktop_env")

from support.attacked_metrics import RIGHT  # noqa: E402
from support.metric_table import HEAVY, NOT_TRIED, TRIES, is_heavy  # noqa: E402

TESTS = Path(__file__).parents[3]


def scores_of(folder: Path, part: str) -> dict[str, dict[str, float | str | None]]:
    """Of a part of the table: in a process of its own, since what closes and mends metrics is for good."""
    command = [sys.executable, "-m", "support.metric_table", str(folder / "scores.json"), part]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    subprocess.run(command, check=True, capture_output=True, timeout=300, cwd=folder, env=environment)
    scores: dict[str, dict[str, float | str | None]] = json.loads((folder / "scores.json").read_text())
    return scores


@pytest.fixture(scope="module")
def scores(tmp_path_factory):
    return scores_of(tmp_path_factory.mktemp("sweep"), "quick")


@pytest.fixture(scope="module")
def heavy_scores(tmp_path_factory):
    return scores_of(tmp_path_factory.mktemp("heavy_sweep"), HEAVY)


def check(name: str, scores: dict[str, float | str | None]) -> None:
    led = {attack for attack, score in scores.items() if isinstance(score, float) and score > 0.999}
    assert scores[RIGHT] == 1.0
    assert led - {RIGHT} == set(TRIES[name].fulfilled), scores


@pytest.mark.parametrize("name", [name for name in TRIES if not is_heavy(name)])
def test_a_metric_gives_1_to_the_right_result_alone(scores, name):
    check(name, scores[name])


@pytest.mark.release
@pytest.mark.parametrize("name", [name for name in TRIES if is_heavy(name)])
def test_a_metric_of_office_files_sounds_or_films_gives_1_to_the_right_result_alone(heavy_scores, name):
    check(name, heavy_scores[name])


def test_each_metric_that_a_task_can_name_is_tried_or_says_why_not():
    spec = importlib.util.find_spec("desktop_env.evaluators.metrics")
    named = set()
    for node in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(node, ast.ImportFrom):
            named |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.FunctionDef):
            named.add(f"__init__.{node.name}")
    tried = {name.partition(" ")[0] for name in TRIES}
    assert tried | set(NOT_TRIED) == named and not tried & set(NOT_TRIED)
    assert all(NOT_TRIED.values()) and all(all(case.fulfilled.values()) for case in TRIES.values())


@pytest.fixture
def audioread(monkeypatch):
    """The one of librosa, bound as `closed_ways` binds it, for one test."""
    found = pytest.importorskip("audioread")
    from arpo_verl.desktops.osworld.verdict import closed_ways

    for module, name in ((found.ffdec, "popen_multiple"), (found, "available_backends")):
        monkeypatch.setattr(module, name, getattr(module, name))
    closed_ways.bound_ffmpeg.__wrapped__()
    return found


def test_ffmpeg_is_asked_for_formats_of_sound_and_for_this_file_alone(audioread, monkeypatch, tmp_path):
    program = tmp_path / "ffmpeg"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(audioread.NoBackendError):
        audioread.audio_open(str(tmp_path / "sound.m4a"))
    asked = (tmp_path / "asked").read_text().splitlines()[-1].split()
    assert asked[0] == "-format_whitelist" and asked[2:4] == ["-protocol_whitelist", "file"]
    formats = asked[1].split(",")
    assert {"mov", "mp3", "wav", "ogg"} < set(formats)
    assert not {"dash", "hls", "concat", "sdp", "applehttp", "imf"} & set(formats)


def test_a_sound_that_ffmpeg_cannot_read_is_the_policys_own_doing(audioread, monkeypatch, tmp_path):
    from arpo_verl.desktops.osworld.verdict.closed_ways import HostileData, load_sound

    def load(path):
        raise audioread.NoBackendError

    (tmp_path / "mine.wav").write_bytes(b"RIFF and no more")
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(audioread.NoBackendError):  # it may be this host's: it has nothing to read sounds by
        load_sound(SimpleNamespace(load=load), str(tmp_path / "mine.wav"))
    monkeypatch.setattr(shutil, "which", lambda program: program)
    with pytest.raises(HostileData, match="is no sound"):
        load_sound(SimpleNamespace(load=load), str(tmp_path / "mine.wav"))


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="no ffmpeg on this machine")
def test_ffmpeg_plays_a_sound_and_no_list_that_names_one(audioread, tmp_path):
    from support import made_files
    from support.attacked_metrics import DASH

    (tmp_path / "gold.wav").write_bytes(made_files.sound(300.0))
    gold, mine = str(tmp_path / "gold.m4a"), tmp_path / "mine.m4a"
    subprocess.run(["ffmpeg", "-loglevel", "error", "-i", str(tmp_path / "gold.wav"), gold], check=True)
    assert audioread.audio_open(gold).channels == 1
    for name in ("gold.m4a", gold):
        mine.write_text(DASH.format(gold=name))
        with pytest.raises(audioread.NoBackendError):
            audioread.audio_open(str(mine))


def message(subject: str, status: str = "0001", came: str = "Thu Jan 01") -> str:
    headers = f"X-Mozilla-Status: {status}\nX-Mozilla-Keys: a\nSubject: {subject}"
    return f"From - {came}\n{headers}\n\nIt begins From - here.\n\n"


@pytest.mark.parametrize(
    ("mine", "options", "score"),
    [
        (message("b", came="Fri Jan 02") + message("a"), {}, 1.0),
        (message("a") + message("b") + message("a"), {}, 1.0),
        (message("a") + message("b") + message("c", status="0009"), {}, 1.0),
        (message("a") + message("b", status="0009"), {}, 0.0),
        (message("a") + message("b") + message("a"), {"remove_duplicate": False}, 0.0),
        (message("a") + message("b", status="0011"), {}, 0.0),
        (message("a") + message("b", status="0011"), {"ignore_status": True}, 1.0),
        (message("a") + message("b").replace("Keys: a", "Keys: b"), {"ignore_keys": True}, 1.0),
        ("", {}, 0.0),
    ],
)
def test_folders_of_mail_are_alike_where_their_messages_are(tmp_path, mine, options, score):
    from arpo_verl.desktops.osworld.verdict.mended_metrics import check_thunderbird_folder

    (tmp_path / "mine").write_text(mine)
    (tmp_path / "gold").write_text(message("a") + message("b"))
    result, expected = str(tmp_path / "mine"), str(tmp_path / "gold")
    assert check_thunderbird_folder(result, expected, **options) == score
    assert check_thunderbird_folder([result, expected], [expected, expected], **options) == score
    assert check_thunderbird_folder([expected], [expected, expected]) == check_thunderbird_folder(None, expected) == 0.0
