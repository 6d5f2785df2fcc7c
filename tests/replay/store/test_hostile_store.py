"""A store that somebody else made: its checksums hold, and yet nothing of it hangs, leads elsewhere or is half read."""

import base64
import json
import zlib
from array import array

import pytest
from support.hostile_files import KINDS, forge_store, replace
from support.pictures import screenshot
from support.replay_trajectories import stored

from arpo_verl.errors import ReplayError
from arpo_verl.replay.store.export import export_store
from arpo_verl.replay.store.inspection import inspect_store
from arpo_verl.replay.store.merging import merge_stores
from arpo_verl.replay.store.persistence import MANIFEST, Fingerprint, load_store, save_store
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.tools.cli.main import main

PRINT = Fingerprint(tokenizer="aaaa", processor="bbbb", prompt="cccc")


@pytest.fixture
def folder(tmp_path):
    """A store of two tasks, one success each."""
    store = SuccessStore(2)
    store.add(stored("one", 1, [screenshot(1)]))
    store.add(stored("two", 2, [screenshot(2)]))
    save_store(store, tmp_path / "store", PRINT)
    return tmp_path / "store"


def refused_everywhere(folder, match):
    """A run's start, a resumed run, and the commands say why; nothing is written, nothing is loaded."""
    out, into = folder.parent / "out", SuccessStore(2)
    for use in (
        lambda: load_store(folder, PRINT, into=into),
        lambda: load_store(folder, PRINT, into=into, leave_out_damaged=True),
        lambda: export_store(folder, out),
        lambda: merge_stores([folder], into),
    ):
        with pytest.raises(ReplayError, match=match):
            use()
        assert len(into) == 0
    assert not out.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("serials", ["/../../../escaped", 1]),
        ("serials", [0, -1]),
        ("trajectories", "../../elsewhere.jsonl"),
        ("trajectories", "/dev/zero"),
        ("capacity_per_task", 0),
        ("capacity_per_task", 10**19 * 1.0),
        ("fingerprint", {"tokenizer": "aaaa", "processor": "bbbb"}),
        ("fingerprint", {"tokenizer": "aaaa", "processor": "bbbb", "prompt": "\x1b[2J"}),
        ("saved_at", "\x1b[2J"),
    ],
)
def test_s1_a_manifest_is_typed_and_no_path_comes_of_it(folder, name, value):
    """`replay export` took a serial for a part of a path, and wrote outside of its folder."""
    forge_store(folder, **{name: value})
    refused_everywhere(folder, rf"store.json must be a replay store's manifest.*{name}")
    with pytest.raises(ReplayError):
        inspect_store(folder)
    assert not (folder.parent.parent / "escaped").exists()


def test_s3_equal_serials_are_refused(folder):
    """The later of both stood in the store under both tasks."""
    forge_store(folder, serials=[0, 0])
    refused_everywhere(folder, "two serials are equal")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pattern", ["store.json", "trajectories-*.jsonl", "screenshots/*.png"])
def test_s2_what_is_no_regular_file_is_refused_at_once(folder, pattern, kind):
    """A FIFO hung whoever read it, and a link to /dev/zero took all memory."""
    replace(next(folder.glob(pattern)), kind)
    with pytest.raises(ReplayError, match="cannot be read|is not complete"):
        load_store(folder, PRINT)
    with pytest.raises(ReplayError, match="cannot be read|is not complete"):
        export_store(folder, folder.parent / "out")


@pytest.mark.parametrize("name", ["/dev/zero", "../store.json", "..", "", "0" * 64 + ".png/../../x", "0" * 63 + ".png"])
def test_s2_no_path_comes_of_a_records_screenshots(folder, name):
    forge_store(folder, lambda records: records[0].update(screenshots=[name]))
    refused_everywhere(folder, "a screenshot of a store must be named by its SHA-256")
    with pytest.raises(ReplayError):
        inspect_store(folder)


def packed(type_code, values):
    return base64.b64encode(zlib.compress(array(type_code, values).tobytes())).decode()


def bomb(size):
    """Few bytes that unpack to many."""
    packer = zlib.compressobj(9)
    content = b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()
    return base64.b64encode(content).decode()


def test_s2_a_column_that_unpacks_to_very_much_is_refused(folder):
    forge_store(folder, lambda records: records[1].update(response_ids=bomb(64 << 20)))
    refused_everywhere(folder, r"line 2 of .*a column must be complete and unpack to at most 16 MiB")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task_id", ""),
        ("step", -1),
        ("step", True),
        ("step", 10**18),
        ("screenshots", [1]),
        ("rows", [[1, 2, 3]]),
        ("rows", [["a", 2, 0, 1]]),
        ("episode", {"step": 1, "uid": "u", "session": "0"}),
        ("prompt_ids", "\u00e9"),
        ("prompt_ids", "AAAA"),
        ("prompt_ids", packed("i", [])),
        ("prompt_ids", packed("i", [1, -1])),
        ("response_ids", packed("i", [-5, 1])),
        ("response_ids", packed("B", [1, 2, 3])),
        ("response_ids", packed("i", [1, 2])[:-8]),
        ("response_mask", packed("B", [1, 2])),
        ("response_mask", packed("B", [1])),
        ("rollout_log_probs", packed("f", [float("nan"), 0.0])),
        ("rollout_log_probs", packed("f", [float("-inf"), 0.0])),
        ("something", "new"),
    ],
)
def test_a_record_is_typed_and_checked_before_a_run_begins(folder, name, value):
    """What was wrong in a column was told in the training step that replayed it."""
    forge_store(folder, lambda records: records[0].update({name: value}))
    refused_everywhere(folder, "line 1 of .*trajectories-")


@pytest.mark.parametrize("name", ["task_id", "step", "screenshots", "success", "response_mask"])
def test_a_field_that_is_missing_is_told(folder, name):
    forge_store(folder, lambda records: records[0].pop(name))
    refused_everywhere(folder, name)


def test_a_manifest_as_deep_or_as_long_as_may_be_is_told(folder):
    for text in ("[" * 100_000, "1" * 100_000, '{"serials": [' + "9" * 400 + "]}", "[]", "3", "", "\xff", "null"):
        (folder / MANIFEST).write_text(text, encoding="latin-1")
        with pytest.raises(ReplayError, match="must be a replay store's manifest"):
            load_store(folder, PRINT)


def test_s4_nothing_that_is_printed_moves_the_cursor(folder, capsys):
    evil = "\x1b]0;owned\x07\x9b2J\r\u202eX"
    forge_store(folder, lambda records: records[0].update(task_id=evil))
    assert main(["replay", "inspect", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "owned" in printed and all(line.isprintable() for line in printed.split("\n"))
    assert main(["replay", "inspect", "--json", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["tasks"][0]["task_id"] == evil and printed.isascii() and "\x1b" not in printed
    assert main(["replay", "export", str(folder), str(folder.parent / "out")]) == 0
    assert all(name.isprintable() for name in map(str, (folder.parent / "out").rglob("*")))
    for changes in ({"success": evil}, {"success": None}, {evil: 1}, {"screenshots": [evil]}):
        forge_store(folder, lambda records, changes=changes: records[0].update({"success": 1.0, **changes}))
        assert main(["replay", "inspect", str(folder)]) == 2
        said = capsys.readouterr().err
        assert all(line.isprintable() for line in said.split("\n")) and len(said) < 1200


def test_a_task_with_a_long_name_in_any_script_is_exported(folder):
    forge_store(folder, lambda records: records[0].update(task_id="\u65e5" * 300))
    assert export_store(folder, folder.parent / "out") == 2
    assert sorted(path.name for path in (folder.parent / "out").iterdir()) == ["_" * 80, "two"]


def test_a_later_version_says_who_wrote_it_in_plain_text(folder):
    values = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**values, "version": "\x1b[2J" * 99, "written_by": "\x1b[2J" * 99}))
    with pytest.raises(ReplayError, match="must be of version 1 or .* or 6, got .*, written by ") as told:
        load_store(folder, PRINT)
    assert str(told.value).isprintable() and len(str(told.value)) < 600
