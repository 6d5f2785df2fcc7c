"""A recipe's file that somebody else made, as far as reading it goes: what a recipe names is run, so it is trusted."""

from itertools import pairwise

import pytest

pytest.importorskip("verl")
from support.hostile_files import KINDS  # noqa: E402

from arpo_verl.tools.cli.main import main  # noqa: E402

LAUGHS = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in pairwise("abcdefghijklmnop"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, kind, capsys):
    KINDS[kind](tmp_path / "mine.yaml")
    assert main(["train", str(tmp_path / "mine.yaml")]) == 2
    assert "mine.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LAUGHS, r"has a YAML alias (*NAME), which we do not read; write the value out"),
        ("a: " + "{a: " * 100_000, "has more than 50 nested levels"),
        ("a: '\x1b[2J", "is not YAML"),
    ],
    ids=["aliases", "depth", "escape"],
)
def test_a_recipe_that_hydra_would_be_endless_about_is_refused(tmp_path, text, reason, capsys):
    (tmp_path / "mine.yaml").write_text(text)
    assert main(["train", str(tmp_path / "mine.yaml")]) == 2
    said = capsys.readouterr().err
    assert reason in said and all(line.isprintable() for line in said.split("\n"))
