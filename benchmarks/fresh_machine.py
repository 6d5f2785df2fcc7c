"""What does a new user type and see on a machine that has nothing of ours?

    python benchmarks/fresh_machine.py [--smoke] [--json PATH] [--transcript PATH]

Needs root and Debian's mmdebstrap and bubblewrap. Installs a minimal Debian with Python and make into a folder, puts
this checkout there, and types every command and every Python example of README as it stands: the demo first, and the
viewer while it trains. Package registries are reached as this machine reaches them. The transcript has each line that
was shown, with the second in which it came. Some examples name tasks or a trained policy of yours: what is written
about those is the transcript's to show, and their failure is no failure here.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from figures import Arguments, machine, report

ROOT = Path(__file__).parents[1]
HOME = "/root/arpo_verl"
SYSTEM = "python3,python3-venv,make,ca-certificates"
CARRIED = re.compile(r"PIP_\w+|SSL_CERT_\w+|\w+_CA_BUNDLE|\w*_proxy", re.IGNORECASE)
"""Environment variables by which registries are reached."""
CONFIGS = ("/etc/pip.conf", "~/.config/pip/pip.conf", "~/.pip/pip.conf", "/etc/resolv.conf")
STEP = re.compile(r"step +\d+ of \d+  ")
REGISTRIES = re.compile("Looking in (indexes|links):")
"""What pip says of this machine's alone: left out of the transcript."""
PLACEHOLDERS = re.compile("TASKS.json|runs/trained")
VIEW_S = 120.0
ENDED_WELL = (0, -signal.SIGINT, 128 + signal.SIGINT)


@dataclass
class Typed:
    """A command, and each line that it showed with the second in which it came."""

    command: str
    status: int | None = None
    seconds: float = 0.0
    lines: list[tuple[float, str]] = field(default_factory=list)


class FreshMachine:
    """A folder with a Debian of its own; what runs there sees nothing else of this machine but its registries."""

    def __init__(self, folder: Path, env: dict[str, str]):
        self.root = folder / "root"
        sources = next(Path("/etc/apt").glob("sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
        release = re.findall(r"VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text())[0]
        install = ["mmdebstrap", "--variant=minbase", f"--include={SYSTEM}", release, str(self.root), str(sources)]
        subprocess.run(install, check=True)
        place = self.root / HOME.lstrip("/")
        place.mkdir()
        packed = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(place)], input=packed, check=True)
        self._env = {
            "HOME": "/root",
            "TERM": "dumb",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        }
        carried = {name: value for name, value in os.environ.items() if CARRIED.fullmatch(name)}
        self._env |= carried | env
        configs = [os.path.expanduser(path) for path in CONFIGS]
        texts = [*carried.values(), *(Path(path).read_text() for path in configs if os.path.isfile(path))]
        named = {path for text in texts for path in re.findall(r"(?:file://)?(/[\w./-]+)", text)}
        self._shown = sorted(path for path in {*configs, *named} if os.path.exists(path) and path != "/")

    def start(self, words: Sequence[str], path: str = "", stdin: str | None = None) -> subprocess.Popen[str]:
        """Start a command in the checkout there; `path` is in front of PATH. Its errors come with its output."""
        box = ["bwrap", "--bind", str(self.root), "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc"]
        box += ["--bind", "/sys", "/sys", "--cap-add", "ALL", "--unshare-pid", "--die-with-parent"]
        for shown in self._shown:
            box += ["--ro-bind", os.path.realpath(shown), shown]
        env = {**self._env, "PATH": path + self._env["PATH"]}
        begun = subprocess.Popen(
            [*box, "--chdir", HOME, *words],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert begun.stdin is not None
        begun.stdin.write(stdin or "")
        begun.stdin.close()
        return begun


def follow(process: subprocess.Popen[str], typed: Typed) -> Iterator[str]:
    """Its lines as they come, to its end; `typed` keeps them."""
    started = time.monotonic()
    assert process.stdout is not None
    for line in process.stdout:
        typed.lines.append((time.monotonic() - started, line.rstrip("\n")))
        yield typed.lines[-1][1]
    typed.status, typed.seconds = process.wait(), time.monotonic() - started


def watch(fresh: FreshMachine, command: str, typed: Typed, path: str = "") -> None:
    """Type the viewer's command, open the address that it prints, and stop it as Ctrl-C does."""
    process = fresh.start(shlex.split(command), path)
    threading.Timer(VIEW_S, process.kill).start()
    for line in follow(process, typed):
        if address := re.search(r"http://\S+", line):
            with urllib.request.urlopen(address[0], timeout=VIEW_S) as page:  # noqa: S310  the viewer's, on loopback
                typed.lines.append((0.0, f"[the page answers {page.status}, {len(page.read())} bytes]"))
            subprocess.run(["pkill", "-INT", "-f", f"arpo-verl {command.split(maxsplit=1)[1]}"], check=False)


def examples(language: str) -> list[str]:
    """README's blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)


def commands_of(block: str) -> list[str]:
    """Its commands, without `git clone`, since the checkout is there; none of a block for a cluster's nodes."""
    lines = [] if "ray start" in block else [line.partition("#")[0].strip() for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("git clone ")]


def type_all(fresh: FreshMachine) -> list[Typed]:
    """Type everything, in README's order but for the viewer, which is opened while the demo trains."""
    demo, view, *rest = [command for block in examples("bash") for command in commands_of(block)]
    typed = [Typed(demo), Typed(view)]
    viewer = threading.Thread(target=watch, args=(fresh, view, typed[1]))
    for line in follow(fresh.start(shlex.split(demo)), typed[0]):
        print(line, flush=True)
        if STEP.match(line) and viewer.ident is None:
            viewer.start()
    if viewer.ident is not None:
        viewer.join()
    inside = f"{HOME}/.venv/bin:"
    for command in rest:
        typed.append(Typed(command))
        if command.startswith("arpo-verl view"):
            watch(fresh, command, typed[-1], inside)
        else:
            list(follow(fresh.start(["bash", "-c", command], inside), typed[-1]))
    for code in examples("python"):
        typed.append(Typed(f"python <<'END'\n{code}END"))
        list(follow(fresh.start(["python", "-"], inside, code), typed[-1]))
    return typed


def figures_of(typed: Sequence[Typed]) -> dict[str, float]:
    """What the first hour is judged by."""
    demo = typed[0]
    steps = [(at, number) for number, (at, line) in enumerate(demo.lines) if STEP.match(line)]
    bad = [one.command for one in typed if one.status not in ENDED_WELL]
    failed = [command for command in bad if not PLACEHOLDERS.search(command)]
    for command in failed:
        print(f"failed: {command}")
    first_s, before = steps[0] if steps else (float("nan"), len(demo.lines))
    between = steps[-1][1] - before if len(steps) > 1 else 0
    return {
        "minutes_to_first_step": round(first_s / 60, 1),
        "minutes": round(demo.seconds / 60, 1),
        "lines_before_first_step": before,
        "lines_a_step": round(between / max(len(steps) - 1, 1), 2),
        "steps": len(steps),
        "commands": len(typed),
        "failed": len(failed),
    }


def main() -> None:
    """Walk and report."""
    parser = Arguments(__doc__, "one training step without validation")
    parser.add_argument("--transcript", type=Path, help="where all that was shown is written")
    arguments = parser.parse()
    short = "trainer.total_training_steps=1 trainer.val_before_train=false trainer.test_freq=-1"
    with tempfile.TemporaryDirectory(prefix="fresh-machine-") as folder:
        fresh = FreshMachine(Path(folder), {"RECIPE_ARGS": short} if arguments.smoke else {})
        typed = type_all(fresh)
    if arguments.transcript is not None:
        shown = [f"$ {one.command}\n{_shown(one)}[status {one.status}, {one.seconds:.0f} s]\n" for one in typed]
        arguments.transcript.write_text("\n".join(shown))
    report({**machine(), **figures_of(typed)}, arguments.json)


def _shown(typed: Typed) -> str:
    return "".join(f"{at:6.0f} s  {line}\n" for at, line in typed.lines if not REGISTRIES.match(line))


if __name__ == "__main__":
    main()
