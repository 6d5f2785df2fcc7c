"""Whether typed text arrives: lines of mixed text into real programs of embedded desktops, beside busy processes.

    python benchmarks/typed_text.py [--smoke] [--json [PATH]] [--lines N] [--busy N] [--only PROGRAM ...]

Each line is a `TypeText` that goes through `OSWorldEnvironment.step`. A listener on the desktop (X's RECORD extension)
notes each key event and each change of the key map in the order in which the X server handles them. The text that they
spell must be the line. What the program made of it is read from a file, where the program is one that changes nothing
(`Program.keeps_text`). The clipboard holds a text that the agent copied; after each batch of lines it must still.

`wrong_lines` counts the lines that came out wrong at the X server or in a program, `clipboard_changed` the batches that
changed the clipboard. Speeds are characters a second, of steps with their screenshots; `another_guest` types as
guests that are not ours: a Python of its own for each part, which gets the code that types along.

A program whose figures are in the file already is not typed into again, so a run that was ended goes on.
"""

from __future__ import annotations

import base64
import contextlib
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from figures import Arguments, busy, machine, report, write

from arpo_verl.actions import typing
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.osworld.environment import OSWorldEnvironment
from arpo_verl.types import Action, Hotkey, Size, Task, TypeText

SCREEN = Size(1024, 768)
BATCH = 25
COPIED = "what the agent copied: é中"
PATIENCE_S = 60.0
TASK = Task("typing", "", {"id": "typing", "instruction": "", "config": [], "evaluator": {"func": "infeasible"}})
PYTHON = "/opt/arpo/bin/python"

# --- Lines -----------------------------------------------------------------------------------------------------------

ASCII = "".join(map(chr, range(33, 127)))
CODE = (
    "if (a[i] <= b && !c) { x += y << 2; } // ~{n}",
    "def f(x: dict[str, int] | None) -> str: return f'{x!r:>10}'  # {n}",
    "grep -rnE '^[a-z_]+\\(' src/*.c | sed 's/\\t/ /g' > out-{n}.txt; echo $?",
    "SELECT \"name\", count(*) FROM `t{n}` WHERE x <> 'a' GROUP BY 1;",
    '{"key": [1, 2.5e-3, null], "n": {n}, "path": "C:\\\\temp\\\\new"}',
)
HTML = (
    "<a href=\"https://example.org/?q=1&amp;n={n}\" class='b'>é &lt; “ü”</a>",
    '<!-- {n} --><p style="color:#fff">100% — naïve</p><br/>',
)
SENTENCES = (
    "Voilà un été à Nîmes, où l'œuvre coûte 5 €.",
    "Zażółć gęślą jaźń; příliš žluťoučký kůň.",
    "Größe, Übermaß, Straße, ÄÖÜ, ñandú, ¿qué?",
    "Съешь ещё этих мягких французских булок.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "これは日本語の文章です。「引用」…",
    "他说:“今天天气很好!”——真的吗?",
    "다람쥐 헌 쳇바퀴에 타고파. 한국어 글자",
    "‘single’ “double” «guillemets» „low“ ‹x› ′″",
    "→ ± × ÷ ≤ ≥ ≠ ∞ √ ∑ µ ° § ¶ † • … ‰ ™ ½ ²",
)
EMOJI = ("👩\u200d💻", "🏳️\u200d🌈", "👍🏽", "👨\u200d👩\u200d👧\u200d👦", "❤️", "🇩🇪", "1️⃣", "😀", "e\u0301", "\u200f")
SYLLABLES = range(0xAC00, 0xD7A4)
IDEOGRAPHS = range(0x4E00, 0x9FA6)


def lines(count: int, seed: int) -> list[str]:
    """Lines of mixed text; each begins with its number."""
    draw = random.Random(seed)
    kinds: tuple[Callable[[int], str], ...] = (
        lambda n: "".join(draw.sample(ASCII, 40)),
        lambda n: draw.choice(CODE).replace("{n}", str(n)),
        lambda n: draw.choice(HTML).replace("{n}", str(n)),
        lambda n: draw.choice(SENTENCES),
        lambda n: " ".join(draw.choice(EMOJI) for _ in range(8)),
        lambda n: "".join(chr(draw.choice(IDEOGRAPHS)) for _ in range(30)),
        lambda n: "".join(chr(draw.choice(SYLLABLES)) for _ in range(30)),
        lambda n: "".join(draw.choice((ASCII[n % 94], "é", "中", "한", " ", "😀")) for _ in range(40)).strip(),
    )
    return [f"{n} {kinds[n % len(kinds)](n)}" for n in range(count)]


# --- Programs --------------------------------------------------------------------------------------------------------

PAGE = """<title>loading</title><input autofocus size=100 onfocus="document.title='field'"><script>
let sent = Promise.resolve();
document.querySelector("input").onkeydown = event => {
  if (event.key != "Enter") return;
  const body = event.target.value + "\\n";
  event.target.value = "";
  sent = sent.then(() => fetch("/", {method: "POST", body}));
};
</script>"""
WEB = f"""
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Type", "text/html; charset=utf-8"); self.end_headers()
        self.wfile.write({PAGE!r}.encode())
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open("/tmp/typed", "ab") as file: file.write(body)
        self.send_response(204); self.end_headers()
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8123), Handler).serve_forever()
"""
FORM = (
    f"n=0; while :; do n=$((n+1)); yad --form --scroll --title=form-$n --separator='\\n' --width=700 --height=600 "
    f"$(seq {BATCH + 1} | sed 's/.*/--field=x/') | head -n {BATCH} >> /tmp/typed; done"
)


@dataclass(frozen=True)
class Program:
    """One kind of program: how it starts, what its window is called, and how it gives back what was typed."""

    name: str
    command: str
    title: str
    """Part of the title of the window that has the keyboard; `{batch}` is the batch's number from 1."""
    end: str = "\n"
    """What is typed behind each line."""
    after_batch: tuple[Action, ...] = ()
    keeps_text: bool = True


PROGRAMS = (
    Program("gtk_field", FORM, "form-{batch}", "\t", (Hotkey(("enter",)),)),
    Program("gtk_editor", "touch /tmp/typed; mousepad /tmp/typed", "typed", after_batch=(Hotkey(("ctrl", "s")),)),
    Program("xterm", "xterm -T terminal -e sh -c 'exec cat > /tmp/typed'", "terminal"),
    Program("gnome_terminal", "gnome-terminal --title=terminal -- sh -c 'exec cat > /tmp/typed'", "terminal"),
    Program("chromium_field", "google-chrome --no-first-run --app=http://127.0.0.1:8123/", "field"),
    Program("libreoffice_writer", "soffice --norestore --nologo --writer", "Writer", keeps_text=False),
)

# --- The listener ----------------------------------------------------------------------------------------------------

LISTENER = """
import struct
from Xlib.display import Display
from Xlib.ext import record
control, data = Display(), Display()
log = open("/tmp/heard", "w", buffering=1)
first = control.display.info.min_keycode
for code, row in enumerate(control.get_keyboard_mapping(first, control.display.info.max_keycode - first + 1), first):
    print("m", code, *row, file=log)
def heard(reply):
    if reply.category == record.FromServer:
        for at in range(0, len(reply.data), 32):
            print("pr"[(reply.data[at] & 0x7F) - 2], reply.data[at + 1], file=log)
    elif reply.category == record.FromClient:
        rest = reply.data
        while rest:
            count, units, code, width = struct.unpack_from("<xBHBB", rest)
            symbols = struct.unpack_from(f"<{count * width}I", rest, 8)
            for key in range(count):
                print("m", code + key, *symbols[key * width:(key + 1) * width], file=log)
            rest = rest[4 * units:]
none = {"core_replies": (0, 0), "ext_requests": (0, 0, 0, 0), "ext_replies": (0, 0, 0, 0), "delivered_events": (0, 0)}
none |= {"errors": (0, 0), "client_started": False, "client_died": False}
wanted = {"core_requests": (100, 100), "device_events": (2, 3)}  # ChangeKeyboardMapping; KeyPress, KeyRelease
context = control.record_create_context(0, [record.AllClients], [none | wanted])
control.sync()
data.record_enable_context(context, heard)
"""
SHIFT, CONTROL, SCROLL_LOCK = 0xFFE1, 0xFFE3, 0xFF14
NAMED = {0xFF09: "\t", 0xFF0D: "\n"}


class Heard:
    """What key events spell, by the key map that holds at each."""

    def __init__(self) -> None:
        self._rows: dict[int, list[int]] = {}
        self._down: set[int] = set()
        self.text = ""
        self.marks = 0
        """How often Scroll Lock was pressed, which nothing types."""

    def hear(self, line: str) -> None:
        """One line of the listener's."""
        kind, code, *symbols = line.split()
        if kind == "m":
            self._rows[int(code)] = list(map(int, symbols))
            return
        row = self._rows[int(code)]
        (self._down.add if kind == "p" else self._down.discard)(row[0])
        self.marks += kind == "p" and row[0] == SCROLL_LOCK
        if kind == "p" and CONTROL not in self._down:
            symbol = row[SHIFT in self._down] or row[0]
            if symbol < 0x100 or symbol >= 0x01000000:
                self.text += chr(symbol & 0xFFFFFF)
            else:
                self.text += NAMED.get(symbol, "")


# --- One desktop -----------------------------------------------------------------------------------------------------


class Desktop:
    """An embedded desktop with the listener on it and something in the clipboard."""

    def __init__(self) -> None:
        config = EnvironmentConfig(screen_size=SCREEN, action_pause_s=0.0, wait_s=0.1, setup_pause_s=0.0)
        self.environment = OSWorldEnvironment(config)
        self.environment.reset(TASK)
        self._server = f"http://{self.environment._running().address}"
        self._heard, self._offset = Heard(), 0
        self.put("/tmp/listener.py", LISTENER)
        self.launch(f"{PYTHON} /tmp/listener.py")
        self.put("/tmp/copied", COPIED)
        self.sh("xclip -selection clipboard < /tmp/copied > /dev/null 2>&1")
        self.until("the listener hears", self._hears)
        self.spelt()

    def _hears(self) -> bool:
        self.environment.step(Hotkey(("shift",)))
        return "\np" in self.sh("cat /tmp/heard")

    def sh(self, line: str) -> str:
        """What a shell's line prints."""
        answer = requests.post(f"{self._server}/run_bash_script", json={"script": line}, timeout=90)
        return str(answer.json()["output"])

    def launch(self, line: str) -> None:
        """Start a program."""
        requests.post(f"{self._server}/setup/launch", json={"command": line, "shell": True}, timeout=90)

    def python(self, code: str) -> None:
        """Run code in a Python of its own, as OSWorld's own guest does."""
        command = [PYTHON, "-c", f"import pyautogui; import time; pyautogui.FAILSAFE = False; {code}"]
        answer = requests.post(f"{self._server}/execute", json={"command": command}, timeout=90).json()
        assert answer["returncode"] == 0, answer

    def put(self, path: str, text: str) -> None:
        """Write a file."""
        self.sh(f"echo {base64.b64encode(text.encode()).decode()} | base64 -d > {path}")

    def read(self, path: str) -> str:
        """A file's text; empty where it is not there yet."""
        answer = requests.post(f"{self._server}/file", data={"file_path": path}, timeout=90)
        return answer.content.decode(errors="replace") if answer.status_code == 200 else ""

    def until(self, what: str, condition: Callable[[], Any]) -> None:
        """Wait until the condition holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:g} s; {self.sh('wmctrl -l')}"
            time.sleep(0.05)

    def await_focus(self, title: str) -> None:
        """Wait until a window of this title has had the keyboard for a while."""
        ask = "xdotool getactivewindow getwindowname 2>/dev/null"
        self.until(f"a window {title!r} with the keyboard", lambda: title in self.sh(f"{ask}; sleep 0.5; {ask}"))

    def spelt(self) -> str:
        """What the key events spell since the last call."""
        self.environment.step(Hotkey(("scrolllock",)))
        self.until("the listener hears all", self._heard_mark)
        text, self._heard.text, self._heard.marks = self._heard.text, "", 0
        return text

    def _heard_mark(self) -> bool:
        new = self.sh(f"tail -c +{self._offset + 1} /tmp/heard")
        whole = new[: new.rfind("\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._heard.hear(line)
        return self._heard.marks > 0

    def type(self, text: str) -> float:
        """Seconds that it took to type."""
        start = time.perf_counter()
        self.environment.step(TypeText(text))
        return time.perf_counter() - start


@contextlib.contextmanager
def desktop() -> Iterator[Desktop]:
    made = None
    try:
        made = Desktop()
        yield made
    finally:
        if made is not None:
            made.environment.close()


# --- Measuring -------------------------------------------------------------------------------------------------------


def differing(expected: list[str], got: list[str]) -> list[int]:
    """Which lines came out otherwise."""
    got = [*got, *[""] * len(expected)]
    return [n for n, line in enumerate(expected) if got[n] != line]


def measure(program: Program, texts: list[str]) -> dict[str, Any]:
    """Type lines into a program."""
    wrong_keys, changed, seconds = 0, 0, 0.0
    with desktop() as one:
        one.put("/tmp/web.py", WEB)
        one.launch(f"{PYTHON} /tmp/web.py")
        one.launch(program.command)
        for number, start in enumerate(range(0, len(texts), BATCH), 1):
            batch = texts[start : start + BATCH]
            one.await_focus(program.title.format(batch=number))
            one.spelt()
            seconds += sum(one.type(line + program.end) for line in batch)
            wrong = differing(batch, one.spelt().split(program.end))
            wrong_keys += len(wrong)
            for action in program.after_batch:
                one.environment.step(action)
            changed += one.sh("timeout 5 xclip -o -selection clipboard") != COPIED
            if wrong:
                print(f"{program.name}: at the X server not {[batch[n] for n in wrong]}", file=sys.stderr)
        figures = {
            "lines": len(texts),
            "wrong_at_x": wrong_keys,
            "clipboard_changed": changed,
            "characters_per_s": sum(map(len, texts)) / seconds,
        }
        if program.keeps_text:
            figures["wrong_in_program"] = len(wrong_in_program(one, program, texts))
    return figures


def wrong_in_program(one: Desktop, program: Program, texts: list[str]) -> list[int]:
    """Which lines the program's file has otherwise, once it has as many."""
    deadline = time.monotonic() + PATIENCE_S / 2
    while one.read("/tmp/typed").count("\n") < len(texts) and time.monotonic() < deadline:
        time.sleep(0.2)
    got = one.read("/tmp/typed").split("\n")
    wrong = differing(texts, got)
    for n in wrong[:10]:
        print(f"{program.name}: {texts[n]!r} came as {dict(enumerate(got)).get(n)!r}", file=sys.stderr)
    return wrong


def measure_speed(texts: list[str]) -> dict[str, float]:
    """Characters a second of long texts into a terminal: here, and as on guests that are not ours."""
    plain = "".join(f"{n} {line}\n" for n, line in enumerate((CODE[0], CODE[2]) * 500))[: 2 * typing.PART_CHARS]
    mixed = "".join(f"{line}\n" for line in texts * 100)[: 2 * typing.PART_CHARS]
    figures = {}
    with desktop() as one:
        one.launch(PROGRAMS[3].command)
        one.await_focus(PROGRAMS[3].title)
        for name, text in (("ascii", plain), ("mixed", mixed)):
            figures[f"characters_per_s_embedded_{name}"] = len(text) / one.type(text)
            start = time.perf_counter()
            for part in typing.parts(text):
                one.python(typing.by_x_keys(part))
            figures[f"characters_per_s_another_guest_{name}"] = len(text) / (time.perf_counter() - start)
    return figures


def main() -> None:
    parser = Arguments(__doc__, "few lines, and not into programs that take long to start", name="typing")
    parser.add_size("--lines", 1000, 8, "lines into each program")
    parser.add_size("--busy", 2, 2, "busy processes beside")
    names = [program.name for program in PROGRAMS]
    parser.add_argument("--only", nargs="+", choices=names, help="these programs alone")
    arguments = parser.parse()
    chosen = arguments.only or (names[:3] if arguments.smoke else names)
    texts = lines(arguments.lines, 33)
    path: Path | None = arguments.json
    figures: dict[str, Any] = json.loads(path.read_text()) if path is not None and path.exists() else {}
    if figures.get("lines_each") != len(texts):
        figures = {**machine(), "busy_processes": arguments.busy, "lines_each": len(texts), "programs": {}}
    with busy(arguments.busy):
        for program in PROGRAMS:
            if program.name in chosen and program.name not in figures["programs"]:
                figures["programs"][program.name] = measure(program, texts)
                write(figures, path)
        figures |= measure_speed(texts)
    programs = figures["programs"].values()
    figures["keep_text"] = [program.name for program in PROGRAMS if program.keeps_text]
    figures["wrong_lines"] = sum(one["wrong_at_x"] + one.get("wrong_in_program", 0) for one in programs)
    figures["clipboard_changed"] = sum(one["clipboard_changed"] for one in programs)
    report(figures, path)


if __name__ == "__main__":
    main()
