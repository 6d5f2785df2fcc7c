"""What is done with a model's text and with files from somebody else, each with the check that nothing came of it but
data.

A target takes any text, and raises `AssertionError` where a promise is broken. `benchmarks/fuzz.py` runs them under a
coverage-guided fuzzer, `tests/test_hostile_text.py` under hypothesis.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import functools
import importlib.util
import io
import json
import re
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from PIL import Image

from arpo_verl.agent.actions import typing
from arpo_verl.agent.actions.keys import KEY_NAMES, format_keys, parse_keys
from arpo_verl.agent.actions.pyautogui import to_code
from arpo_verl.agent.actions.pyautogui_code import actions_alone
from arpo_verl.agent.actions.reply import MAX_ACTIONS, MAX_REPLY_CHARS
from arpo_verl.agent.models.family import SHIPPED, load_family
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.agent.rollout.episode import Episode, play
from arpo_verl.agent.rollout.scoring import Score
from arpo_verl.agent.rollout.scripted import ScriptedConversation, replies_of
from arpo_verl.errors import ActionParseError, ConfigError, ReplayError, TaskError
from arpo_verl.lib import untrusted
from arpo_verl.plugin.resume import RECORD_FILE, ResumeRecord, read_record
from arpo_verl.records.documents import EpisodeRecord
from arpo_verl.records.json_files import dump_json, parse_json
from arpo_verl.records.recorded import read_episodes
from arpo_verl.records.run import open_run
from arpo_verl.replay.store.inspection import format_contents, inspect_store
from arpo_verl.replay.store.persistence import FORMAT, MANIFEST, VERSION, load_store, save_store
from arpo_verl.replay.store.record import decode_record, encode_record
from arpo_verl.tasks.loader import load_tasks
from arpo_verl.tools.migration.recipe import convert, describe
from arpo_verl.tools.migration.settings import read_settings
from arpo_verl.types import (
    Action,
    Click,
    Drag,
    Evaluation,
    Fail,
    Finish,
    Hotkey,
    Move,
    Observation,
    Scroll,
    Size,
    StopReason,
    Task,
    TypeText,
    Wait,
)

IMAGE, SCREEN = Size(364, 252), Size(640, 480)
MESSAGE_CHARS = 500
"""Longest message of a refusal: it may end up in a record of every episode."""
NAME_BYTES = 255
"""Longest name of a file on Linux's file systems (NAME_MAX)."""

Call = tuple[str, tuple[Any, ...], dict[str, Any]]

_CALLS = {
    *(f"pyautogui.{name}" for name in ("click", "moveTo", "dragTo", "hotkey", "write", "scroll", "hscroll")),
    "pyautogui.keyDown",
    "pyautogui.keyUp",
    "time.sleep",
}


# --- Code ------------------------------------------------------------------------------------------------------------


def calls_in(code: str) -> list[Call]:
    """The calls that code makes: its statements must be these alone, by name, with literals for arguments."""
    calls = []
    for statement in ast.parse(code).body:
        assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call), ast.dump(statement)[:200]
        name = ast.unparse(statement.value.func)
        assert name in _CALLS, name
        keywords = {keyword.arg or "**": ast.literal_eval(keyword.value) for keyword in statement.value.keywords}
        calls.append((name, tuple(ast.literal_eval(argument) for argument in statement.value.args), keywords))
    return calls


@functools.cache
def clients_source(file: str, name: str) -> ast.AST | None:
    """A function or class of OSWorld's client, out of its source, since importing it takes seconds; None where it is
    not installed."""
    spec = importlib.util.find_spec("desktop_env")
    if spec is None or spec.origin is None:
        return None
    tree = ast.parse(Path(spec.origin).parent.joinpath(file).read_text(encoding="utf-8"))
    return next(node for node in tree.body if getattr(node, "name", "") == name)


@functools.cache
def clients_rewriting() -> Callable[[str], str]:
    """What OSWorld's client does to every command before the guest runs it: its regular expressions, its imports in
    front. Nothing where it is not installed."""
    function = clients_source("desktop_env.py", "_fix_pyautogui_less_than_bug")
    controller = clients_source("controllers/python.py", "PythonController")
    if function is None or controller is None:
        return lambda code: code
    names: dict[str, Any] = {"re": re}
    exec(compile(ast.Module([function], []), "desktop_env.py", "exec"), names)  # the client's own, as it would run
    prefixes = [node.value for node in ast.walk(controller) if isinstance(node, ast.Constant)]
    prefix: str = next(value for value in prefixes if isinstance(value, str) and value.endswith("{command}"))
    return lambda code: prefix.format(command=names["_fix_pyautogui_less_than_bug"](code))


def check_brought(text: str) -> None:
    """A guest that is not ours gets the same text as one literal, behind code that depends on no text."""
    brought, typed = typing.by_x_keys(""), typing.by_x_keys(text)
    call = brought.index("type_text(pyautogui.")
    assert typed[:call] == brought[:call]
    (statement,) = ast.parse(typed[call:]).body
    assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    assert ast.literal_eval(statement.value.args[1]) == text
    assert clients_rewriting()(typed).endswith(typed)


SIGNS = dict(zip("`1234567890-=[]\\;',./", '~!@#$%^&*()_+{}|:"<>?', strict=True))
"""What the keys of an American keyboard give with Shift."""
SHIFTS = frozenset({"shift", "shiftleft", "shiftright"})
LEFT = {"shiftleft": "shift", "ctrlleft": "ctrl", "altleft": "alt", "winleft": "win"}


class Keyboard:
    """What keys give that pyautogui presses, which holds Shift for a sign while it presses that."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.given: list[str] = []

    def press(self, name: str) -> None:
        """A key that is down already gives nothing, and for `<` pyautogui presses the wrong one."""
        assert name != "<"
        key = next((key for key, sign in SIGNS.items() if sign == name), LEFT.get(name, name))
        assert key not in self.down, f"{name} is down"
        self.down |= {key, "shift"} if name in SIGNS.values() else {key}
        shift = bool(self.down & {"shift", "shiftright"})
        if key not in SHIFTS:
            self.given.append(SIGNS.get(key, key.upper() if len(key) == 1 else key) if shift else key)
        if name in SIGNS.values():
            self.down.discard("shift")

    def release(self, name: str) -> None:
        """The key, whatever it gave."""
        self.down.discard(next((key for key, sign in SIGNS.items() if sign == name), LEFT.get(name, name)))


def given_by(calls: list[Call]) -> list[str]:
    """What the keys of these calls give, in order; none stays down."""
    keyboard = Keyboard()
    for name, keys, _ in calls:
        assert name in ("pyautogui.hotkey", "pyautogui.keyDown", "pyautogui.keyUp"), name
        for key in keys if name != "pyautogui.keyUp" else ():
            keyboard.press(key)
        for key in keys if name != "pyautogui.keyDown" else ():
            keyboard.release(key)
    assert not keyboard.down
    return keyboard.given


def said_by(names: Sequence[str]) -> list[str]:
    """What keys give that are held together, of which one that comes again is pressed again."""
    said = []
    for number, name in enumerate(names):
        shift = not SHIFTS.isdisjoint(names[:number])
        if name not in SHIFTS:
            name = LEFT.get(name, name)
            said.append(SIGNS.get(name, name.upper() if len(name) == 1 else name) if shift else name)
    return said


def check_code(action: Action) -> None:
    """An action's code is what it is, and stays so when OSWorld's client has rewritten it."""
    code = to_code(action)
    assert code.isascii()
    calls = calls_in(code)
    sent = ast.parse(clients_rewriting()(code)).body
    assert "\n".join(map(ast.unparse, sent)).endswith(ast.unparse(ast.parse(code)))
    assert len(sent) - len(calls) in (0, 3)  # with the client's own: two imports and one setting
    match action:
        case TypeText(text=text):
            plain = text.replace("\r\n", "\n").replace("\r", "\n")
            assert calls == [("pyautogui.write", (plain,), {})]
            check_brought(plain)
        case Hotkey(keys=keys):
            assert given_by(calls) == said_by(keys)
        case Click() | Move() | Drag() | Scroll() | Wait():
            strings = [value for _, positional, named in calls for value in (*positional, *named.values())]
            assert not [s for s in strings if isinstance(s, str) and s not in ("left", "right", "middle")]


# --- Replies ---------------------------------------------------------------------------------------------------------


def check_reply(grammar: str, text: str) -> None:
    """A reply is refused with a short reason, or it is a few actions on the screen, which are written as they are."""
    try:
        reply = load_family(grammar).read(text, IMAGE, SCREEN)
    except ActionParseError as error:
        assert len(str(error)) < MESSAGE_CHARS
        return
    assert len(text) <= MAX_REPLY_CHARS and 0 < len(reply.actions) <= MAX_ACTIONS
    for action in reply.actions:
        if not isinstance(action, (Finish, Fail)):
            check_code(action)
    try:
        written = load_family(grammar).format(reply, IMAGE, SCREEN)
    except ActionParseError:
        return  # read, but not written by us: a middle click, a thought with the grammar's own tags
    again = load_family(grammar).parse(written, IMAGE, SCREEN)
    # Points may lie between the pixels that the written form has; everything else is the same.
    assert list(map(_without_points, again.actions)) == list(map(_without_points, reply.actions)), written


def _without_points(action: Action) -> str:
    return re.sub(r"Point\(x=\d+, y=\d+\)", "Point", repr(action))


def check_keys(text: str) -> None:
    """Names of keys are known ones, and read back as they were."""
    try:
        keys = parse_keys(text)
    except ActionParseError as error:
        assert len(str(error)) < MESSAGE_CHARS
        return
    assert keys and set(keys) <= KEY_NAMES
    check_code(Hotkey(keys))
    assert parse_keys(format_keys(keys)) == keys


def check_typed(text: str) -> None:
    """Any text is typed as it is, whether or not a grammar would let it through."""
    check_code(TypeText(text))


def check_program(text: str) -> None:
    """Of a program's code nothing is left but calls by name, with plain arguments."""
    try:
        code = actions_alone(text)
    except ActionParseError as error:
        assert len(str(error)) < MESSAGE_CHARS
        return
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    assert names <= {"pyautogui", "time", "pyperclip", "platform", "print"}, names
    assert actions_alone(code) == code


# --- Episodes --------------------------------------------------------------------------------------------------------


class _Desktop:
    """Shows a grey screen, whatever is done to it."""

    def __init__(self) -> None:
        stream = io.BytesIO()
        Image.new("RGB", SCREEN, "grey").save(stream, "PNG")
        self._observation = Observation(stream.getvalue())

    async def reset(self, task: Task) -> Observation:
        return self._observation

    async def step(self, action: Action) -> Observation:
        return self._observation

    async def evaluate(self) -> Evaluation:
        return Evaluation(0.0)


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


@functools.cache
def _screen() -> tuple[_Desktop, Image.Image]:
    return _Desktop(), Image.new("RGB", SCREEN)


def check_episode(text: str) -> None:
    """Replies are played to an end and recorded, and what is recorded is JSON that says the same.

    The text up to the first zero byte names grammar and task, each one after it is a reply.
    """
    name, *replies = text.split("\0")
    grammar = SHIPPED[len(name) % len(SHIPPED)]
    desktop, image = _screen()

    async def decode(observation: Observation) -> Image.Image:
        return image

    config = GuiAgentConfig(max_steps=3, max_screenshots=None, model_family=grammar, between_actions_s=0.0)
    conversation = ScriptedConversation(replies_of(replies or [""]), IMAGE)
    task = Task(name, name, {})
    episode = _loop().run_until_complete(play(task, desktop, conversation, config, decode=decode))
    assert 1 <= len(episode.turns) <= 3
    assert episode.format_error == (not episode.turns[-1].actions)
    if episode.stop_reason is StopReason.FINISHED:
        assert any(isinstance(action, Finish) for action in episode.turns[-1].actions)
    check_record(episode, name)


def check_record(episode: Episode, name: str) -> None:
    """What is written of an episode reads back, from a folder whose name stays in its place."""
    record = EpisodeRecord.of_row({"global_steps": 1, "uid": name, "session_id": 0}, episode, Score(0.0))
    folder = record.folder
    assert len(folder.parts) == 2 and folder.parts[0] == "step_000001" and not folder.name.startswith(".")
    assert all(len(part.encode()) <= NAME_BYTES - 20 for part in folder.parts)  # a prefix and a suffix find room
    content = json.loads(json.dumps(record.content))
    assert parse_json(dump_json(record.content)) == content
    said = [(turn["text"], turn["parse_error"]) for turn in content["turns"]]
    assert said == [(turn.text, turn.parse_error) for turn in episode.turns]


# --- Files from somebody else ----------------------------------------------------------------------------------------


MEMORY_DISK = Path("/dev/shm")


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    """A folder for what a target reads; it goes with the process."""
    return tempfile.TemporaryDirectory(prefix="arpo-fuzz-", dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None)


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a pair that stands for no byte
        return text.encode("utf-8", "surrogatepass")


def _write(name: str, content: bytes) -> Path:
    path = Path(_scratch().name, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def check_stored(text: str) -> None:
    """A line of a store is refused, or is a trajectory that is written as it was read."""

    def named(name: str) -> bytes:
        return name.encode("ascii", "backslashreplace")

    try:
        trajectory = decode_record(_bytes(text), named)
    except ReplayError:
        return
    assert f"{trajectory.step:06d}".isdigit()
    names = [screenshot.decode() for screenshot in trajectory.screenshots]
    written = encode_record(trajectory, names)
    assert encode_record(decode_record(written, named), names) == written


def check_store(text: str) -> None:
    """A store is refused, or is shown in lines for a terminal and is the same after it was saved again.

    The text up to the first zero byte holds fields of the manifest, as JSON, what is behind it the records. Whoever
    makes a store can make its checksums, too.
    """
    fields, _, lines = text.partition("\0")
    try:
        given = untrusted.parse_json(fields)
    except ValueError:
        given = {}
    name = f"trajectories-{sha256(_bytes(lines)).hexdigest()}.jsonl"
    values = {"format": FORMAT, "version": VERSION, "trajectories": name, **(given if isinstance(given, dict) else {})}
    values.pop("checksum", None)
    checksum = sha256(json.dumps(values, sort_keys=True).encode("ascii")).hexdigest()
    records = _write(f"store/{name}", _bytes(lines))
    folder = _write(f"store/{MANIFEST}", json.dumps({**values, "checksum": checksum}).encode("ascii")).parent
    again = folder.with_name("again")
    try:
        contents = inspect_store(folder)
        fingerprint = contents.manifest.fingerprint
        assert all(line.isprintable() for line in format_contents(contents).split("\n"))
        store = load_store(folder, fingerprint)
        save_store(store, again, fingerprint)
        assert list(load_store(again, fingerprint).records()) == list(store.records())
    except ReplayError as error:
        assert str(error).isprintable()
    finally:
        records.unlink()


def check_recorded(text: str) -> None:
    """A run's folder is read to what lists, charts and seeds are made of; the rest is passed over or refused.

    Its files hold the text up to the first zero byte, its tokens what is behind it.
    """
    content, _, tokens = text.partition("\0")
    step = "run/trajectories/step_000001"
    for name in ("metrics.jsonl", "starts.jsonl", "pool.json"):
        _write(f"run/{name}", _bytes(content))
    for name in ("groups.jsonl", ".two/live.json", "one/episode.json"):
        _write(f"{step}/{name}", _bytes(content))
    run = open_run(_write(f"{step}/one/tokens.json", _bytes(tokens or "[]")).parents[3])
    episodes = [[getattr(one, name) for name in one.__slots__] for one in run.episodes()]
    running = [[one.content, one.turns] for one in run.running()]
    shown = [episodes, running, run.pool(), dict(run.metrics().series), [group.records() for group in run.groups()]]
    assert json.loads(dump_json(shown))[0] == json.loads(json.dumps(episodes))
    try:
        recorded = list(read_episodes(run.trajectories))
    except ReplayError:
        return
    for episode in recorded:
        assert all(isinstance(one, str) for one in (episode.task_id, episode.instruction, *episode.replies))


def check_resumed(text: str) -> None:
    """What a checkpoint says of its run is refused in a line, or compared with a run in words for a terminal."""
    checkpoint = _write(f"checkpoint/{RECORD_FILE}", _bytes(text)).parent
    try:
        record = read_record(checkpoint)
    except ConfigError as error:
        assert str(error).isprintable()
        return
    assert record is not None
    words = record.order_change(ResumeRecord(("a",), {}))
    assert words.isprintable() and len(words) < 1000


def check_task(text: str) -> None:
    """A file of tasks is refused in lines for a terminal, or has tasks with ids that name a file in a folder."""
    try:
        tasks = load_tasks(_write("tasks/task.json", _bytes(text)))
    except TaskError as error:
        assert all(line.isprintable() for line in str(error).split("\n"))
        return
    for task in tasks:
        assert re.fullmatch(r"[\w.-]+", task.task_id, re.ASCII) and task.task_id not in (".", "..")
        assert isinstance(task.instruction, str) and isinstance(task.spec, Mapping)


def check_convert(name: str, text: str) -> None:
    """A script or a configuration of another trainer is refused, or becomes options that are told in plain lines."""
    try:
        made = [convert(settings) for settings in read_settings(_write(f"theirs/{name}", _bytes(text)), {})]
    except ConfigError:
        return
    assert all(line.isprintable() for one in made for line in describe(one))


def check_printed(text: str) -> None:
    """A text for a terminal has its length, and nothing in it moves the cursor."""
    shown = untrusted.printable(text)
    assert len(shown) == len(text) and shown.isprintable()


TARGETS: Mapping[str, Callable[[str], None]] = {
    **{name: functools.partial(check_reply, name) for name in SHIPPED},
    "keys": check_keys,
    "typed": check_typed,
    "program": check_program,
    "episode": check_episode,
    "stored": check_stored,
    "store": check_store,
    "recorded": check_recorded,
    "resumed": check_resumed,
    "task": check_task,
    "script": functools.partial(check_convert, "run.sh"),
    "configuration": functools.partial(check_convert, "config.yaml"),
    "printed": check_printed,
}

MANIFEST_FIELDS = {
    "fingerprint": {"tokenizer": "aa", "processor": "bb", "prompt": "cc"},
    "capacity_per_task": 8,
    "serials": [0],
    "saved_at": "2026-01-01T00:00:00+00:00",
    "written_by": "arpo-verl",
}
STORED: dict[str, Any] = {
    **{"task_id": "a", "step": 1, "success": 1.0, "reward": 1.0, "num_turns": 1, "screenshots": [], "episode": None},
    **{"extra_fields": {}, "mm_processor_kwargs": None, "rollout_log_probs": None},
    **dict.fromkeys(("prompt_ids", "response_ids"), base64.b64encode(zlib.compress(bytes(8))).decode()),
    "response_mask": base64.b64encode(zlib.compress(bytes(2))).decode(),
}
EPISODE: dict[str, Any] = {
    **{"task_id": "a", "instruction": "b", "step": 1, "uid": "u", "session": 0, "success": 1.0, "reward": 1.0},
    **{"stop_reason": "finished", "screenshots": ["/dev/zero"], "turns": [{"text": "t"}], "image_size": [1, 2]},
    **{"prompt_tokens": 1, "response_tokens": 1, "format_error": False, "validation": False, "reward_extra_info": {}},
}
TASK: dict[str, Any] = {
    **{"id": "a", "instruction": "b", "config": [{"type": "launch", "parameters": {"command": ["x"]}}]},
    "evaluator": {"func": "exact_match", "result": {"type": "vm_file", "path": "/x"}, "expected": {"type": "rule"}},
}

RESUMED: dict[str, Any] = {
    **{"format": "arpo-verl resume", "version": 1, "written_by": "arpo-verl"},
    **{"tasks": ["a\x1b", "b"], "settings": {"data.seed": "1"}},
}

# Whatever is not text of a model's own: what the fuzzer and hypothesis begin with and put together.
SNIPPETS = (
    "Thought: t\nAction: click(start_box='<|box_start|>(182,126)<|box_end|>')",
    "Action: type(content='it\\'s \"x\" < y\\n')\n\nhotkey(key='ctrl shift t')",
    "Action: drag(start_box='(1,2,3,4)', end_box='<point>5 6</point>')\nscroll(point='(1,2)', direction='down')",
    "Action: finished(content='one\n\ntwo')\u3000",
    "<tool_call>\n<function=computer_use>\n<parameter=action>\nscroll\n</parameter>\n<parameter=pixels>\n-3\n</parameter>\n"
    "<parameter=coordinate>\n[182, 126]\n</parameter>\n</function>\n</tool_call>",
    "Action: finished(content='42')",
    "pyautogui.press('<')",
    "pyautogui.typewrite('a<b')",
    'pyautogui.typewrite("\\u003c")',
    "'); __import__('os').system('true') #",
    "a\n\u00e9 < \u65e5\u672c pyautogui.typewrite('<')\r\n\u2028",
    *(
        f'<tool_call>\n{{"name": "computer_use", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
        for arguments in (
            {"action": "left_click", "coordinate": [182, 126]},
            {"action": "type", "text": "x < y '\"\\\n"},
            {"action": "key", "keys": ["ctrl+shift", "<"]},
            {"action": "scroll", "pixels": -3.5, "coordinate": [1, 1]},
            {"action": "terminate", "status": "failure"},
        )
    ),
    *(
        f"## Thought:\nt\n\n## Action:\na\n\n## Code:\n```python\n{code}\n```"
        for code in (
            "pyautogui.click(x=12, y=0.5, button='right')",
            "pyautogui.moveTo(1, 2)\npyautogui.dragTo(3, 4)",
            "pyautogui.write('a\\n \\d')  # it's",
            "pyautogui.press(['a', 'a', '<'], presses=2)",
            "pyautogui.hotkey('ctrl', 'c')\ncomputer.terminate(status='success', answer='b')",
        )
    ),
    "ctrl+shift+t",
    "page down ctrl--",
    *(json.dumps(value) for value in (STORED, {**STORED, "step": 10**400}, EPISODE, TASK, [TASK], {"os": ["../one"]})),
    f"{json.dumps(MANIFEST_FIELDS)}\0{json.dumps(STORED)}\n",
    f"{json.dumps({**MANIFEST_FIELDS, 'serials': ['/../../x']})}\0{json.dumps(STORED)}\n",
    json.dumps(RESUMED),
    json.dumps({"step": 1, "data": {"rollout/success_mean": 0.5}, "time": 1, "rows": [], "uid": "u"}) + "\n",
    "python -m verl.trainer.main config=config.yaml data.seed=3 \\\n  worker.actor.model.model_path=p",
    "data: {seed: 7}\nworker: {actor: {model: {model_path: \x1b[2J}}}\n",
    "a: &a [x, x]\nb: &b [*a, *a]\n",
    "[" * 500,
)

WORDS = (
    *("Action:", "Thought:", "click(", "type(", "content='", "start_box='", "')", "\\'", "\\n", "<point>", "</point>"),
    *("<|box_start|>", "(1,2)", "<tool_call>", "</tool_call>", "</think>", '{"name": "computer_use", "arguments": {'),
    *('"action": "', '"text": "', '"keys": ["', '"coordinate": [1, 2]', "}}", "\u2697", "\\ud800", "\\u003c", "1e999"),
    *("## Action:\na\n", "```", "\n", "click(x=1, y=2)", "computer.wait()", "presses=", "r'", "'''", ";"),
    *("pyautogui.", "typewrite(", "press(", "hotkey(", "'<'", "ctrl", "+", "-", "<", "'", '"', "\\", "\n", "\0", "#"),
)
