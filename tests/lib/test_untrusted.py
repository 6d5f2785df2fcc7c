"""The one reader of what somebody else may have made."""

import pytest
from support.hostile_files import KINDS

from arpo_verl.errors import ConfigError
from arpo_verl.lib.untrusted import (
    MOST_DEPTH,
    MOST_JSON_BYTES,
    parse_json,
    printable,
    printable_lines,
    read_regular,
    read_text,
)
from arpo_verl.records.layout import LATEST_CHECKPOINT, saved_step
from arpo_verl.tools.cli.by_hand import read_replies


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_not_read_and_the_message_names_it(tmp_path, kind):
    path = tmp_path / "file"
    KINDS[kind](path)
    for read in (read_regular, lambda path: read_text(path, 1000)):
        with pytest.raises(OSError, match=r"file (is|leads)|/dev/zero is not a regular file"):
            read(path)


def test_a_link_is_followed_only_where_the_user_named_it(tmp_path):
    (tmp_path / "other").write_bytes(b"other")
    (tmp_path / "link").symlink_to("other")
    with pytest.raises(OSError, match="link is a link, which we do not follow; copy the file itself"):
        read_regular(tmp_path / "link")
    assert read_text(tmp_path / "link", 5) == "other"
    with pytest.raises(OSError, match="is larger than"):
        read_text(tmp_path / "link", 4)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 200_000, "nested too deeply"),
        ("[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1), "nested too deeply"),
        ('{"a": ' * (MOST_DEPTH + 1) + "1" + "}" * (MOST_DEPTH + 1), "nested too deeply"),
        ("1" * 400, "more than 20 digits"),
        ("[" + "1" * 10_000 + "]", "more than 20 digits"),
        (" " * (MOST_JSON_BYTES + 1), "longer than 32 MiB"),
        (b"\xff", "decode"),
        ("{", "Expecting"),
    ],
    ids=range(8),
)
def test_json_beyond_all_bounds_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_json(text)


def test_json_within_them_is_what_it_says():
    deepest = "[" * MOST_DEPTH + "]" * MOST_DEPTH
    assert str(parse_json(deepest)) == deepest
    text = '{"a": [1, -18446744073709551615, 1.5, NaN, 1e999, null, "x"]}'
    assert str(parse_json(text)) == "{'a': [1, -18446744073709551615, 1.5, nan, inf, None, 'x']}"
    as_none = parse_json(f"[{'1' * 400}, NaN, -Infinity, 1e999, 2.5, 3]", odd_number=lambda _: None)
    assert as_none == [None, None, None, None, 2.5, 3]


@pytest.mark.parametrize("text", ["\x1b[2J", "\x9b31m", "a\rb", "\u202eevil", "a\x08b", "\ud800", "\u2028", "\x07"])
def test_nothing_of_a_text_moves_a_cursor(text):
    assert printable(text).isprintable() and len(printable(text)) == len(text)
    assert all(line.isprintable() for line in printable_lines(f"one\n{text}\nthree").split("\n"))
    readable = "d\u00e9j\u00e0 vu \u65e5\u672c \U0001f600"
    assert printable(readable) == readable and printable_lines("a\n\nb") == "a\n\nb"


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_reads_a_small_file_of_a_run_or_a_user_refuses_what_is_none(tmp_path, kind):
    (tmp_path / LATEST_CHECKPOINT).write_text("-5")
    assert saved_step(tmp_path) is None, "a step before the first"
    (tmp_path / LATEST_CHECKPOINT).unlink()
    KINDS[kind](tmp_path / LATEST_CHECKPOINT)
    assert saved_step(tmp_path) is None
    with pytest.raises(ConfigError, match="--replies must be a text file of replies"):
        read_replies(tmp_path / LATEST_CHECKPOINT)


@pytest.mark.parametrize("text", ["[" * 9999, '{"turns": [{"text": 1}]}', '{"turns": [], "image_size": ["a", 1]}', "3"])
def test_a_recorded_episode_to_play_again_is_typed(tmp_path, text):
    (tmp_path / "episode.json").write_text(text)
    with pytest.raises(ConfigError, match="--replies must be an episode.json"):
        read_replies(tmp_path / "episode.json")
