"""Count the lines of the package and the tests, and fail if there are more than `[tool.arpo_verl.lines]` allows."""

import sys
import tomllib
from pathlib import Path

ROOT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]

status = 0
for folder, most in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["arpo_verl"]["lines"].items():
    lines = sum(path.read_bytes().count(b"\n") for path in (ROOT / folder).rglob("*.py"))
    print(f"{folder}: {lines:,} lines of Python (at most {most:,})")
    if lines > most:
        status = 1
        print(
            f"{folder} is {lines - most:,} over its budget. Remove as many lines; or raise {folder} in pyproject.toml, "
            "[tool.arpo_verl.lines], in a commit whose message says what for."
        )
sys.exit(status)
