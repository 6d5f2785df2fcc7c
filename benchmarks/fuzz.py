"""A coverage-guided fuzzer over what reads a model's text or somebody's files, with what must hold of each
(`fuzz_targets.py`).

    .venv/bin/python benchmarks/fuzz.py [--smoke] [--inputs N] [--target NAME] [--seed N] [--json PATH]

Each target runs in a process of its own under Atheris (libFuzzer), from the same snippets, with a share of the inputs.
An input that breaks a promise ends its target: it is printed with the error, kept below `--found`, and the command ends
with 1. `inputs` counts executions, `edges` is the coverage that libFuzzer saw within `arpo_verl`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import Arguments, machine, report

ROOMS = ("agent.actions", "agent.rollout", "lib.untrusted", "records", "replay", "tasks", "tools.migration")
INSTRUMENTED = [f"arpo_verl.{room}" for room in ROOMS]
MAX_BYTES = 2048
"""Of an input: long enough for any path through the grammars; what long ones cost is `tests/test_scanners.py`'s."""
SLOW_S = 20
"""An input that takes longer ends its target as one that breaks a promise does."""
TARGET = "FUZZ_TARGET"
"""Names the child's target: its command line is libFuzzer's."""


def fuzz(name: str) -> None:
    """Be a child: fuzz one target until libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from fuzz_targets import TARGETS

    check = TARGETS[name]
    atheris.Setup(sys.argv, lambda data: check(data.decode("utf-8", errors="surrogateescape")))
    atheris.Fuzz()


def run_target(name: str, inputs: int, seed: int, found: Path) -> dict[str, Any]:
    """Fuzz one target in a child; what libFuzzer says of it.

    Raises:
        RuntimeError: the fuzzer itself failed.
    """
    from fuzz_targets import SNIPPETS, WORDS

    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder, "corpus")
        corpus.mkdir()
        for number, snippet in enumerate(SNIPPETS):
            text = f"task\0{snippet}" if name == "episode" else snippet
            (corpus / str(number)).write_bytes(text.encode("utf-8", "surrogateescape"))
        words = Path(folder, "words")
        words.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in word.encode()) + '"\n' for word in WORDS))
        flags = [f"-runs={inputs}", f"-seed={seed}", f"-max_len={MAX_BYTES}", f"-dict={words}", f"-timeout={SLOW_S}"]
        flags += [f"-artifact_prefix={found}/{name}-", "-print_final_stats=1", "-reload=0"]
        began = time.perf_counter()
        command = [sys.executable, __file__, *flags, str(corpus)]
        done = subprocess.run(command, env={**os.environ, TARGET: name}, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    executed = re.findall(r"stat::number_of_executed_units:\s*(\d+)", said)
    status = re.findall(r"cov: (\d+) ft: \d+ corp: (\d+)", said)
    if not executed or not status:
        raise RuntimeError(f"the fuzzer did not run {name}:\n{said[-4000:]}")
    if done.returncode != 0:
        print(done.stdout[-4000:], done.stderr[-2000:], file=sys.stderr)  # Python's words, and the input
    return {
        "inputs": int(executed[-1]),
        "seconds": round(time.perf_counter() - began, 1),
        "edges": int(status[-1][0]),
        "corpus": int(status[-1][1]),
        "broken": done.returncode != 0,
    }


def main() -> int:
    arguments = Arguments(__doc__, "a thousand inputs a target")
    arguments.add_size("--inputs", 1_000_000, 6_000, "inputs of all targets together")
    arguments.add_argument("--target", metavar="NAME", help="this one alone")
    arguments.add_argument("--seed", type=int, default=1, metavar="N", help="of libFuzzer's mutations; 1 by default")
    arguments.add_argument("--found", type=Path, default=Path(".cache/fuzz"), metavar="DIR", help="keep finds there")
    chosen = arguments.parse()
    from fuzz_targets import TARGETS

    names = [name for name in TARGETS if chosen.target in (None, name)]
    if not names:
        raise SystemExit(f"--target must be one of {', '.join(TARGETS)}, got {chosen.target}")
    figures: dict[str, Any] = machine()
    share = -(-chosen.inputs // len(names))
    by_target = {name: run_target(name, share, chosen.seed, chosen.found) for name in names}
    figures["inputs"] = sum(target["inputs"] for target in by_target.values())
    figures["broken"] = [name for name, target in by_target.items() if target["broken"]]
    report({**figures, **by_target}, chosen.json)
    return 1 if figures["broken"] else 0


if __name__ == "__main__":
    if TARGET in os.environ:
        fuzz(os.environ[TARGET])
    else:
        raise SystemExit(main())
