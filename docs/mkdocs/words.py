"""Is what we write short and plain? `make docs` fails where it is not.

    python docs/mkdocs/words.py [--list] [FILE...]

It counts the words of prose and of tables in README, CONTRIBUTING, SECURITY and docs/, without code and without the
pages that are generated. It lists sentences that are too long, and words that we do not use there, in docstrings and in
messages. `--list` shows the count of each page.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/*.md")),
]
MAX_PROSE, MAX_TABLES, MAX_SENTENCE = 18_750, 14_900, 40
AVOIDED = re.compile(r"\b(tells?|told|reckon(?:s|ed)?|whoever)\b", re.IGNORECASE)
_CODE_BLOCK = re.compile(r"^( *)(```|~~~).*?^\1\2[^\S\n]*$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_PICTURE_OR_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\[\d])|\n\s*\n|\n\s*(?:[-*]|\d+\.)\s")


def main() -> int:
    """Count, list what is wrong, and fail where something is."""
    names = [name for name in sys.argv[1:] if not name.startswith("-")]
    counts = {name: count(ROOT / name) for name in names or PAGES}
    if "--list" in sys.argv or names:
        for name, (prose, tables, _) in counts.items():
            print(f"{prose:6} {tables:6}  {name}")
    prose, tables = (sum(each[kind] for each in counts.values()) for kind in (0, 1))
    print(f"{prose:,} words of prose (at most {MAX_PROSE:,}), {tables:,} in tables (at most {MAX_TABLES:,})")
    wrong = [f"{name}: {words}" for name, (_, _, found) in counts.items() for words in found]
    if not names:
        wrong += [f"{place}: {words}" for place, words in in_code()]
    if prose > MAX_PROSE or tables > MAX_TABLES:
        wrong.append("These are too many words: remove what another page says; --list counts each page.")
    for line in wrong:
        print(line)
    return int(bool(wrong))


def count(page: Path) -> tuple[int, int, list[str]]:
    """Words of prose, words in tables, and what is wrong with either."""
    text = _COMMENT.sub("", _CODE_BLOCK.sub("\n", page.read_text(encoding="utf-8")))
    text = _PICTURE_OR_LINK.sub(r"\1", text)
    lines = text.splitlines()
    tables = "\n".join(line for line in lines if line.lstrip().startswith("|"))
    prose = "\n".join("" if line.lstrip().startswith(("|", "#")) else line for line in lines)
    found = [
        f"{sum(1 for _ in _words(each))} words: {' '.join(each.split())[:90]}"
        for each in _SENTENCE_END.split(prose)
        if sum(1 for _ in _words(each)) > MAX_SENTENCE
    ]
    found += [f"{word!r} is a word we avoid" for word in sorted({match[0].lower() for match in AVOIDED.finditer(text)})]
    return sum(1 for _ in _words(prose)), sum(1 for _ in _words(tables)), found


def in_code() -> Iterator[tuple[str, str]]:
    """Where a docstring or a message of the package has a word that we avoid."""
    for path in sorted((ROOT / "arpo_verl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                for match in AVOIDED.finditer(node.value):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", f"{match[0]!r} is a word we avoid"


def _words(text: str) -> Iterator[str]:
    """What a reader reads as words: at least one letter or digit."""
    return (word for word in text.split() if any(letter.isalnum() for letter in word))


if __name__ == "__main__":
    sys.exit(main())
