"""docs/verdicts.md, cell by cell: what each fault comes to, for each family of OSWorld's getters."""

import asyncio
import contextlib
import json
import os
import re
import socket
import sys
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("desktop_env")

from ray.exceptions import ActorDiedError  # noqa: E402
from support import ROOT  # noqa: E402
from support.scripted_guest import (  # noqa: E402
    CLICK,
    DROP,
    HANG,
    SIZE,
    Cut,
    EvaluatedHere,
    Large,
    executed,
    png,
    task,
)

from arpo_verl.desktops.config import EnvironmentConfig  # noqa: E402
from arpo_verl.desktops.embedded.guest.layout import WATCHED  # noqa: E402
from arpo_verl.desktops.embedded.guest_process import GuestProcess  # noqa: E402
from arpo_verl.desktops.embedded.provider import EmbeddedProvider  # noqa: E402
from arpo_verl.desktops.machine_provider import proof_of  # noqa: E402
from arpo_verl.desktops.osworld import environment as environment_module  # noqa: E402
from arpo_verl.desktops.osworld import guest_http, pages  # noqa: E402
from arpo_verl.desktops.osworld.calls import log  # noqa: E402
from arpo_verl.desktops.osworld.docker_containers import why_not_running, why_powered_off  # noqa: E402
from arpo_verl.desktops.pool.desktop_pool import Desktop  # noqa: E402
from arpo_verl.desktops.pool.lease_queue import Grant  # noqa: E402
from arpo_verl.desktops.vm.events import Events  # noqa: E402
from arpo_verl.errors import DesktopEndedError, DesktopError, DesktopUnclearError  # noqa: E402
from arpo_verl.types import Size  # noqa: E402

PREFERENCES = json.dumps({"default_search_provider_data": {"template_url_data": {"short_name": "Bing"}}})
ERRNO_2 = json.dumps({"status": "error", "message": "[Errno 2] No such file or directory: 'a'"})
TREE = {"type": "accessibility_tree"}
FILE = {"type": "vm_file", "path": "/a", "dest": "a"}
SLOW_S = 1.0


def cells_of_the_document():
    """Of each table of docs/verdicts.md, by its first cell: the outcome of each fault for each column that has one.

    A row's faults are separated by semicolons.
    """
    text = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
    tables = {}
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines()]
        tables[head[0]] = {
            fault: {name: cell for name, cell in zip(head[1:], row[1:], strict=True) if cell != "—"}
            for row in rows
            for fault in row[0].split("; ")
        }
    return tables


CELLS = cells_of_the_document()

# --- The guest's server -------------------------------------------------------------------------------------------

# Each family: a task that scores 1 where all answers are as they should be, the path that fails, and a good answer.
SERVER = {
    "command": (task(), "/execute", executed("yes")),
    "file": (
        task(func="compare_text_file", result=FILE, expected=FILE | {"path": "/b", "dest": "b"}),
        "/file",
        (200, "x"),
    ),
    "profile": (
        task(result={"type": "default_search_engine"}, expected={"type": "rule", "rules": {"expected": "Bing"}}),
        "/file",
        (200, PREFERENCES),
    ),
    "tree": (
        task(result=TREE, expected={"type": "rule", "rules": {"expected": "<tree/>"}}),
        "/accessibility",
        (200, json.dumps({"AT": "<tree/>"})),
    ),
    "postconfig": (
        task(postconfig=[{"type": "execute", "parameters": {"command": ["save"]}}]),
        "/setup/execute",
        executed(),
    ),
}
# Each fault: what is answered instead of the good answer, by how often the path was asked. None: the good one.
ANSWERS = {
    "the connection breaks off": lambda asked: DROP,
    "no answer in time": lambda asked: HANG,
    "a server error": lambda asked: (500, "<html>Internal Server Error</html>"),
    "the guest's disk is full": lambda asked: (500, json.dumps({"message": "[Errno 28] No space left on device"})),
    "the answer is cut off": lambda asked: Cut(),
    "no JSON, or without its field": lambda asked: (200, "{}"),
    "a server error in the system's words: no such file": lambda asked: (500, ERRNO_2),
    "not found (404)": lambda asked: (404, "not here"),
    "the answer is too large": lambda asked: Large(100_000),
    "it fails once, and then answers": lambda asked: DROP if asked == 1 else None,
    "another request of the kind goes well after it": lambda asked: DROP if asked == 1 else None,
}
SERVER_CELLS = CELLS["the guest's server"]


def commanded(guest):
    """What a command of the evaluator's prints."""
    return executed("Linux" if b"platform" in guest.requests[-1][1] else "yes")


@pytest.fixture
def evaluated(scripted, monkeypatch):
    """What a task comes to, evaluated in this process: `verdict`, `0`, `fault`, `unclear` or `ended`."""

    def play(spec, before=lambda environment: None, call="evaluate", hangs=False, **options):
        environment = scripted(**options)
        environment._evaluator = EvaluatedHere(environment._config.partial_credit > 0)
        environment.reset(spec)
        if hangs:  # the others have the client's own patience: a busy machine is no fault
            monkeypatch.setattr(guest_http, "DEFAULT_TIMEOUT_S", SLOW_S)
        before(environment)
        try:
            if call == "step":
                return "goes on" if environment.step(CLICK).screenshot else ""
            score = environment.evaluate().score
        except DesktopUnclearError:
            return "unclear"
        except DesktopError:
            return "fault"
        except DesktopEndedError:
            return "ended"
        return "0" if score == 0.0 else "verdict"

    return play


@pytest.mark.parametrize("family", SERVER)
def test_each_family_scores_where_nothing_fails(family, guest, evaluated):
    spec, path, good = SERVER[family]

    def answer(environment):
        guest.replies["/execute"] = lambda: commanded(guest)
        guest.replies[path] = lambda: good

    assert evaluated(spec, answer) == "verdict"


@pytest.mark.parametrize("family, fault", [(family, fault) for fault in ANSWERS for family in SERVER_CELLS[fault]])
def test_an_answer_of_the_guests_server(family, fault, guest, evaluated, monkeypatch):
    spec, path, good = SERVER[family]
    monkeypatch.setitem(guest_http.MAX_ANSWER, path, 10_000)
    is_file = fault == "no JSON, or without its field" and path == "/file"
    answers = (lambda asked: None) if is_file else ANSWERS[fault]  # any bytes are a file
    asked = 0

    def reply():
        nonlocal asked
        asked += 1
        answer = answers(asked)
        return good if answer is None else answer

    def break_it(environment):
        guest.replies["/execute"] = lambda: commanded(guest)
        guest.replies[path] = reply

    once = fault == "it fails once, and then answers"
    attempts, hangs = 2 if once else 1, fault == "no answer in time"
    assert evaluated(spec, break_it, guest_attempts=attempts, hangs=hangs) == SERVER_CELLS[fault][family]


# --- The same, asked for again --------------------------------------------------------------------------------------


def contains(text):
    return {"type": "rule", "rules": {"expected": [text]}}


def over_one_file(conj, *texts):
    """Checks of one file, each for a text of its own."""
    count = len(texts)
    expected = [contains(text) for text in texts]
    return task(func=["file_contains"] * count, conj=conj, result=[FILE] * count, expected=expected)


# Who asks for the same twice: the first answer is `x`, or for the getter in a getter, `yes`.
AGAIN = {
    "`or`": over_one_file("or", "x", "y"),
    "`and`, partial credit": over_one_file("and", "x", "x"),
    "four times": over_one_file("or", "x", "y", "z", "w"),
    "result and expected": task(func="compare_text_file", result=FILE, expected=FILE | {"dest": "b"}),
    # It asks for each kind of film by `get_vm_command_line`, and for the first kind twice.
    "getter in a getter": task(result={"type": "default_video_player"}),
}
MET_LAST = {
    "`or`": over_one_file("or", "y", "x"),
    "`and`, partial credit": over_one_file("and", "y", "x"),
    "four times": over_one_file("or", "y", "z", "w", "x"),
}
LOST = (500, json.dumps({"message": "out of memory"}))
AGAIN_ANSWERS = {
    "the first answer is lost": lambda asked: LOST if asked == 1 else None,
    "the first answer is lost, and a later check is met": lambda asked: LOST if asked == 1 else None,
    "each is lost once, and comes when the same getter asks again": lambda asked: LOST if asked % 2 else None,
    "it is not there": lambda asked: (404, "not here"),
}
AGAIN_CELLS = CELLS["the same, asked for again"]


@pytest.mark.parametrize("asker, fault", [(asker, fault) for fault in AGAIN_CELLS for asker in AGAIN_CELLS[fault]])
def test_the_same_asked_for_again(asker, fault, guest, evaluated):
    spec = MET_LAST[asker] if "later check" in fault else AGAIN[asker]
    answers, asked = AGAIN_ANSWERS[fault], 0

    def reply(good, absent):
        nonlocal asked
        asked += 1
        answer = answers(asked)
        return good if answer is None else absent if answer[0] == 404 else answer

    def execute():
        is_kind = b"xdg-mime" in guest.requests[-1][1]
        return reply(executed("yes"), executed("")) if is_kind else commanded(guest)

    def answer_it(environment):
        guest.replies["/execute"] = execute
        guest.replies["/file"] = lambda: reply((200, "x"), (404, "not here"))

    options = {"partial_credit": 0.5} if "partial" in asker else {}
    attempts = 2 if "asks again" in fault else 1
    assert evaluated(spec, answer_it, guest_attempts=attempts, guest_retry_s=0, **options) == AGAIN_CELLS[fault][asker]


def test_what_one_getter_asks_for_twice_it_is_owed_twice(guest, evaluated):
    twice = {"type": "vm_file", "multi": True, "path": ["/a", "/a"], "dest": ["a", "b"], "gives": [0, 1]}
    answers = iter([LOST, (200, "x")])

    def answer_it(environment):
        guest.replies["/file"] = lambda: next(answers)

    assert evaluated(task(result=twice), answer_it, guest_attempts=1) == "unclear"


# --- Programs of the guest, and pages ------------------------------------------------------------------------------

TABS = {"type": "open_tabs_info"}
SHOP = "https://shop.example/cart"
PAGE = {"type": "page_info", "url": SHOP}
PROGRAM_CELLS = CELLS["a program of the guest"]
NO_SUCH_PAGE = f"net::ERR_NAME_NOT_RESOLVED at {SHOP}"
CONNECT_ERRORS = {
    "it is closed": "connect ECONNREFUSED 127.0.0.1:9222",
    "it hangs": "Timeout 30000ms exceeded.",
    "it hangs at one check, and not at the next": "Timeout 30000ms exceeded.",
    "it answers with an error": "Unexpected status 500 when connecting to http://127.0.0.1/json/version/",
    "the desktop is not reached": "Unexpected status 504 when connecting to http://127.0.0.1/json/version/",
}
VLC_ANSWERS = {
    "it hangs in the middle of an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n<",
    "it answers with an error": b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
    "the desktop is not reached": b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 0\r\n\r\n",
}


class Browser:
    """Stands for Playwright: what its calls raise, the first `times` of them."""

    def __init__(self, driver="", connect="", goto="", times=1000):
        self.times = times
        self.errors = {"driver": driver, "connect": connect, "goto": goto}
        self.url = SHOP
        self.contexts = [self]
        self.pages = [self]
        self.chromium = self
        self.connect_over_cdp = lambda url: pages._noted(Browser._connect, pages.CONNECT)(self, url)
        self.goto = lambda url, **_: pages._noted(Browser._goto, pages.GOTO)(self, url)

    def _connect(self, url):
        self._fail("connect")
        return self

    def _goto(self, url):
        self._fail("goto")

    def _fail(self, kind):
        if self.errors[kind] and self.times > 0:
            self.times -= 1
            raise RuntimeError(self.errors[kind])

    def __enter__(self):
        self._fail("driver")
        return self

    def __exit__(self, *_):
        pass

    def new_page(self):
        return self

    def __getattr__(self, name):  # title(), close(), wait_for_load_state(): nothing to see
        return lambda *_, **__: None


@pytest.fixture
def no_rests(monkeypatch):
    """The getters rest 3 to 8 s between their attempts."""
    from desktop_env.evaluators.getters import chrome

    monkeypatch.setattr(chrome, "time", SimpleNamespace(sleep=lambda seconds: None))


@pytest.mark.parametrize("fault", [fault for fault in PROGRAM_CELLS if "browser" in PROGRAM_CELLS[fault]])
def test_the_browser_of_the_guest(fault, evaluated, monkeypatch, no_rests):
    getter = PAGE if "page that the task" in fault else TABS
    browser = Browser(connect=CONNECT_ERRORS.get(fault, ""))
    if "driver" in fault:
        browser = Browser(driver="Connection closed while reading from the driver")
    if "page" in fault:
        browser = Browser(goto=f"Page.goto: {NO_SUCH_PAGE}")
    monkeypatch.setattr("playwright.sync_api.sync_playwright", lambda: browser)
    if "policy chose" in fault:
        getter = {"type": "active_tab_info"}
        monkeypatch.setattr("desktop_env.evaluators.getters.chrome.get_active_url_from_accessTree", lambda *_: SHOP)
    spec = task(result=getter)
    if "at one check" in fault:
        browser.times = 2  # the getters try twice
        rules = [{"type": "rule", "rules": {"expected": "no"}}] * 2
        spec = task(func=["exact_match"] * 2, conj="or", result=[getter] * 2, expected=rules)
    assert evaluated(spec) == PROGRAM_CELLS[fault]["browser"]
    assert browser.times > 0 or "at one check" in fault


def test_a_page_may_fail_only_for_the_getter_that_has_backups(evaluated, monkeypatch, no_rests):
    browser = Browser(goto=f"Page.goto: {NO_SUCH_PAGE}")
    monkeypatch.setattr("playwright.sync_api.sync_playwright", lambda: browser)
    with_backups = {"type": "info_from_website", "url": SHOP, "infos": [], "backups": []}
    for getter, outcome in ((with_backups, "verdict"), (PAGE, "fault")):
        spec = task(func="literal_match", result=getter, expected=with_backups)
        assert evaluated(spec) == outcome


@pytest.mark.parametrize("fault", [fault for fault in PROGRAM_CELLS if "VLC" in PROGRAM_CELLS[fault]])
def test_vlc_in_the_guest(fault, guest, evaluated):
    spec = task(result={"type": "vlc_playing_info", "dest": "status.xml"})
    with socket.create_server(("127.0.0.1", 0)) as vlc, _closed() as nobody:
        guest.ports = (9222, (nobody if fault == "it is closed" else vlc).getsockname()[1])
        if fault in VLC_ANSWERS:
            threading.Thread(target=_answer, args=(vlc, VLC_ANSWERS[fault]), daemon=True).start()
        assert evaluated(spec, hangs=fault.startswith("it hangs")) == PROGRAM_CELLS[fault]["VLC"]


@contextlib.contextmanager
def _closed():
    """A socket whose port nobody listens on, nor can get meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held


def _answer(server, answer):
    connection, _ = server.accept()
    with connection:
        connection.recv(65536)
        connection.sendall(answer)
        connection.recv(65536)  # until the client has had enough


def test_playwright_itself_tells_what_it_was_asked_and_that_nobody_listens():
    """The real one: a refused connection is a closed browser, by its own words."""
    from arpo_verl.desktops.osworld import client  # noqa: F401  it has the names replaced

    log.clear()
    with _closed() as nobody, pages.noted_playwright() as playwright, pytest.raises(Exception, match="ECONNREFUSED"):
        playwright.chromium.connect_over_cdp(f"http://127.0.0.1:{nobody.getsockname()[1]}")
    driver, connect = log.page_calls
    assert (driver.kind, driver.error) == (pages.DRIVER, "") and connect.browser_is_closed


def test_a_page_that_loads_in_the_end_and_a_download_are_no_failures():
    log.clear()
    for error in ("TimeoutError: Timeout 60000ms exceeded", ""):
        log.page_calls.append(pages.PageCall(pages.GOTO, SHOP, error))
    log.page_calls.append(pages.PageCall(pages.GOTO, f"{SHOP}.pdf", "Error: Page.goto: net::ERR_ABORTED"))
    assert pages.failed_calls() == []


# --- This host -----------------------------------------------------------------------------------------------------

HOST_CELLS = CELLS["this host"]
TEST_SUITE = task(
    func="check_python_file_by_test_suite",
    result=FILE,
    expected={"type": "vm_file", "path": "/suite.py", "dest": "suite.py"},
)


def _full(environment):
    os.symlink("/dev/full", f"{environment._client.cache_dir}/a")


def _serve(guest, content):
    guest.replies["/file"] = lambda: (200, content)


def _raising(error):
    def metric(*_, **__):
        raise error

    return metric


@pytest.mark.parametrize("fault, where", [(fault, where) for fault in HOST_CELLS for where in HOST_CELLS[fault]])
def test_trouble_of_this_host(fault, where, guest, evaluated, monkeypatch):
    spec, before = SERVER["file"][0], lambda environment: _serve(guest, "content")
    if "disk" in fault:

        def before(environment):
            _serve(guest, "content")
            _full(environment)
            if "sent" in fault:
                lone = SimpleNamespace(f_blocks=1, f_frsize=4)
                monkeypatch.setattr("arpo_verl.desktops.osworld.evaluation.os.statvfs", lambda path: lone)

    if "memory" in fault:
        spec = task(func="compare_docx_files", result=FILE, expected=FILE | {"path": "/b", "dest": "b"})
        bounded = "takes more" in fault
        monkeypatch.setattr("arpo_verl.desktops.osworld.evaluation._memory_is_bounded", lambda: bounded)
        monkeypatch.setattr("desktop_env.evaluators.metrics.docs.Document", _raising(MemoryError()))
        spec.spec["evaluator"]["result"] = FILE | {"dest": "a.docx"}
        spec.spec["evaluator"]["expected"] = FILE | {"path": "/b", "dest": "b.docx"}
    if "package" in fault or "imports" in fault:
        spec, name = TEST_SUITE, "pygame" if "package" in fault else "a_module_of_nobodys"
        monkeypatch.setitem(sys.modules, name, None)
        before = lambda environment: _serve(guest, f"import {name}\ndef test():\n    return True\n")  # noqa: E731
    if "program" in fault:
        spec = task(func="compare_image_text", result=FILE | {"dest": "a.png"})

        def before(environment):  # a desktop is made with the programs that it needs itself
            _serve(guest, "content")
            monkeypatch.setenv("PATH", "/nowhere")

    if "service" in fault:
        rules = {"relativeTime": {"from": "tomorrow"}, "expected": {"time": "{DayD}"}}
        spec = task(expected={"type": "rule_relativeTime", "rules": rules})
        send = guest_http.ask

        def offline(method, url, **options):
            if "127.0.0.1" not in url:
                raise guest_http.requests.ConnectionError("no route to host")
            return send(method, url, **options)

        monkeypatch.setattr(guest_http, "ask", offline)
    assert evaluated(spec, before) == HOST_CELLS[fault][where]


# --- The end of a desktop ------------------------------------------------------------------------------------------

END_CELLS = CELLS["the desktop"]


@pytest.mark.parametrize("fault, call", [(fault, call) for fault in END_CELLS for call in END_CELLS[fault]])
def test_how_a_desktop_ends(fault, call, guest, evaluated, monkeypatch):
    def before(environment):
        guest.replies["/execute"] = lambda: executed("yes")
        if fault in ("all of it was killed, and its sandbox lives", "its screen or server alone was killed"):
            guest.why_ended = lambda: "Xvfb: signal 9" if "all of it" in fault else ""
        if "machine" in fault:
            monkeypatch.setattr(environment_module, "why_gone", lambda *_: "its container is exited")
        if "powered off" in fault:
            monkeypatch.setattr(environment_module, "why_ended", lambda *_: "its container exited with 0")
        if "cannot be done" in fault:
            raised = executed("", 1, "Traceback ...\nValueError: cannot type '\\x07'")
            guest.replies["/execute"] = lambda: executed() if "position" in guest.code()[-1] else raised
        elif "interpreter" in fault:
            guest.replies["/execute"] = lambda: executed("", -9)
        elif "larger" in fault:
            larger = Size(2 * SIZE.width, SIZE.height)
            guest.replies["/screen_size"] = lambda: (200, json.dumps(larger._asdict()))
            guest.replies["/screenshot"] = lambda: (200, png(size=larger))
        elif "size" in fault:
            guest.replies["/screen_size"] = lambda: (200, json.dumps(SIZE._asdict()))
            guest.replies["/screenshot"] = lambda: (200, png(size=(160, 120)))
        else:
            guest.replies["/execute"] = guest.replies["/screenshot"] = lambda: (500, "no display")

    assert evaluated(task(), before, call) == END_CELLS[fault][call]


# --- Who ended it ----------------------------------------------------------------------------------------------------


def embedded(down=(), kills=0, is_met=False, lives=True, outlives=True):
    """A desktop's sandbox as the kernel and process 1 tell of it, without one."""
    process = object.__new__(GuestProcess)
    process._process = SimpleNamespace(has_ended=lambda timeout_s=0.0: not (outlives if timeout_s else lives))
    process._cgroup = SimpleNamespace(oom_kills=lambda: kills, memory_met=lambda: int(is_met))
    process._kills_at_boot = process._met_at_boot = 0
    process._out_of_memory_kills = -kills
    process.ask = lambda *_: ({"why_down": dict(down)}, [])
    provider = EmbeddedProvider()
    provider._guest = process
    return provider.why_gone(), provider.why_ended()


def container(code, *actions, killed=False):
    """A Docker container that is no more."""
    state = {"Running": False, "Status": "exited", "OOMKilled": killed, "ExitCode": code}
    api = SimpleNamespace(events=lambda **_: [{"Action": action} for action in actions])
    client = SimpleNamespace(api=api)
    ended = SimpleNamespace(id="a", short_id="a", attrs={"State": state}, reload=lambda: None, client=client)
    return why_not_running(ended), why_powered_off(ended)


def qemu(**data):
    """A QEMU that is no more, and the last that it said."""
    events = Events(lambda: None)
    if data:
        events({"event": "SHUTDOWN", "data": data})
    return "its QEMU ended", proof_of(events.why_down())


ALL_KILLED = dict.fromkeys(WATCHED, "signal 9")
WHO_CELLS = {
    "all that ran in its sandbox, by one signal, but process 1": (lambda: embedded(ALL_KILLED), "ended"),
    "the same, and process 1 right after": (lambda: embedded(ALL_KILLED, outlives=False), "unclear"),
    "the memory bound of its own cgroup": (lambda: embedded(kills=1, is_met=True, lives=False), "ended"),
    "this host's want of memory": (lambda: embedded({"Xvfb": "signal 9"}, kills=1), "fault"),
    "a signal from outside of its sandbox": (lambda: embedded(), "unclear"),
    "its X server or guest server alone": (lambda: embedded({"Xvfb": "signal 9"}), "unclear"),
    "a guest that switched its container off": (lambda: container(0, "die"), "ended"),
    "a signal to its container": (lambda: container(0, "kill", "die"), "fault"),
    "a crash of its container, or its memory bound": (lambda: container(137, "die", killed=True), "fault"),
    "a guest that switched its QEMU off": (lambda: qemu(guest=True, reason="guest-shutdown"), "ended"),
    "a signal to its QEMU": (lambda: qemu(guest=False, reason="host-signal"), "fault"),
    "a crash of its QEMU": (lambda: qemu(), "fault"),
}


@pytest.mark.parametrize("ending", WHO_CELLS)
def test_who_ended_a_desktop(ending, guest, evaluated, monkeypatch):
    monkeypatch.setattr("arpo_verl.desktops.embedded.guest_process._out_of_memory_kills", lambda: 0)
    ended, outcome = WHO_CELLS[ending]
    why_gone, why_ended = ended()

    def before(environment):
        guest.replies["/execute"] = guest.replies["/screenshot"] = lambda: (500, "gone")
        monkeypatch.setattr(environment_module, "why_gone", lambda *_: why_gone)
        monkeypatch.setattr(environment_module, "why_ended", lambda *_: why_ended)

    assert evaluated(task(), before, "step") == outcome


def a_call(result, **limits):
    """What a call of a leased desktop raises."""

    async def step():
        worker = SimpleNamespace(call=SimpleNamespace(remote=lambda *_: result()))
        await Desktop(EnvironmentConfig(**limits), Grant(worker), lambda: None).step(CLICK)

    with pytest.raises(DesktopError) as raised:
        asyncio.run(step())
    return "unclear" if isinstance(raised.value, DesktopUnclearError) else "fault"


async def never():
    await asyncio.Event().wait()


async def dead_worker():
    raise ActorDiedError


HURRIED = {"step_timeout_s": 0.01, "action_pause_s": 0, "wait_s": 0, "settle_timeout_s": 0}
CALL_CELLS = {
    "an action that takes longer than its time-out": (lambda: a_call(never, **HURRIED), "unclear"),
    "the death of the process or the node that hosts it": (lambda: a_call(dead_worker), "fault"),
}


@pytest.mark.parametrize("ending", CALL_CELLS)
def test_what_ended_a_call_of_a_leased_desktop(ending):
    call, outcome = CALL_CELLS[ending]
    assert call() == outcome


def test_the_document_lists_the_same_endings():
    endings = {ending: cells[1] for ending, cells in {**WHO_CELLS, **CALL_CELLS}.items()}
    assert endings == {ending: cells["it is"] for ending, cells in CELLS["what ended it"].items()}
