"""The OSWorld client against a scripted guest: each of its silent failures must become the right error."""

import ast
import contextlib
import errno
import functools
import json
import os
from types import SimpleNamespace

import pytest

pytest.importorskip("desktop_env")

from support.http_server import Server  # noqa: E402
from support.scripted_guest import (  # noqa: E402
    CLICK,
    DROP,
    HANG,
    INFEASIBLE,
    LAUNCH,
    RESULT,
    EvaluatedHere,
    executed,
    png,
    task,
)

from arpo_verl.desktops.config import EnvironmentConfig  # noqa: E402
from arpo_verl.desktops.osworld import guest_http  # noqa: E402
from arpo_verl.desktops.osworld.absent_results import score_absent_results  # noqa: E402
from arpo_verl.desktops.osworld.calls import log  # noqa: E402
from arpo_verl.desktops.osworld.guest_http import Exchange, told_by_guest  # noqa: E402
from arpo_verl.desktops.osworld.verdict.sandboxed_evaluator import SandboxedEvaluator  # noqa: E402
from arpo_verl.errors import (  # noqa: E402
    ActionParseError,
    DesktopBootError,
    DesktopError,
    DesktopLostError,
    DesktopSetupError,
    DesktopUnclearError,
    EvaluatorError,
)
from arpo_verl.types import Fail, Finish, GuestRequest, Hotkey, Size, TypeText, Wait  # noqa: E402


@pytest.fixture
def make(scripted):
    return lambda **options: scripted(**{"wait_s": 0.02, **options})


def answer(guest, replies):
    """From now on each path gets its reply; of a list one after the other, the last for ever."""
    for path, reply in replies.items():
        in_turn = reply if isinstance(reply, list) else [reply]
        guest.replies[path] = functools.partial(next, iter(in_turn), in_turn[-1])


def expecting(outcome):
    """A block that raises what `outcome` has as error and message, if it is such a pair."""
    return pytest.raises(outcome[0], match=outcome[1]) if isinstance(outcome, tuple) else contextlib.nullcontext()


def test_an_episode_runs_through_the_client(make, guest, capsys):
    environment = make()
    assert environment.reset(task(config=[LAUNCH])).screenshot == png()
    guest.replies["/screenshot"] = lambda: (200, png(colour="red"))
    assert environment.step(CLICK).screenshot == png(colour="red")
    assert "pyautogui.click(x=10, y=20" in guest.code()[0]
    environment.step(Wait())
    environment.step(Finish())
    guest.replies["/execute"] = lambda: executed("yes")
    assert environment.evaluate().score == 1.0
    guest.replies["/execute"] = lambda: executed("no")
    assert environment.evaluate().score == 0.0
    assert capsys.readouterr().out == ""


def test_wait_takes_what_the_recipe_says(make, monkeypatch):
    environment, rests = make(wait_s=0.3), []
    environment.reset(task())
    monkeypatch.setattr("desktop_env.desktop_env.time", SimpleNamespace(sleep=rests.append))
    environment.step(Wait())
    assert sum(rests) == pytest.approx(0.3)


def test_the_right_answer_to_an_infeasible_task_is_fail(make):
    environment = make()
    environment.reset(INFEASIBLE)
    assert environment.evaluate().score == 0.0
    environment.step(Fail())
    assert environment.evaluate().score == 1.0


def test_each_episode_gets_a_fresh_guest_even_after_an_empty_set_up(make, guest):
    environment = make()
    environment.prepare()
    environment.reset(INFEASIBLE)
    assert guest.starts == 1
    environment.reset(INFEASIBLE)
    assert guest.starts == 2
    environment.prepare()
    environment.reset(task())
    assert guest.starts == 3


def test_a_guest_that_died_while_it_stood_ready_is_replaced_quietly(make, guest):
    environment = make()
    environment.prepare()
    guest.stop()
    environment.reset(task())
    assert guest.starts == 2


def test_a_machine_whose_provider_cannot_tell_is_lost_and_nothing_else_escapes(make, guest):
    def fail():
        raise ConnectionError("no answer")

    environment = make()
    environment.prepare()
    guest.why_ended = guest.why_gone = fail
    assert not environment.is_ready()
    del guest.why_gone
    environment.reset(task())
    guest.why_gone = fail
    with pytest.raises(DesktopLostError, match="desktop is gone: its provider cannot say: ConnectionError: no answer"):
        environment.step(CLICK)


def test_a_screen_of_another_size_or_none_does_not_boot(make, guest):
    with pytest.raises(DesktopBootError, match=r"environment.screen_size must be .* \[320, 240\], got \[640, 480\]"):
        make(screen_size=(640, 480)).prepare()
    guest.replies["/screenshot"] = lambda: DROP
    with pytest.raises(DesktopBootError, match="shows no screen"):
        make().prepare()


ACTIVATE = {"type": "activate_window", "parameters": {"window_name": "x"}}
EXECUTE = {"type": "execute", "parameters": {"command": ["x"]}}
SILENT = {
    "a program does not start": ([LAUNCH], {"/setup/launch": (500, "no xterm here")}, "/setup/launch|xterm"),
    "no answer to a start": ([LAUNCH], {"/setup/launch": DROP}, "xterm"),
    "a command fails": ([EXECUTE], {"/setup/execute": (500, "no xterm here")}, "no xterm here"),
    "no answer to a step": ([ACTIVATE], {"/setup/activate_window": DROP}, "/setup/activate_window"),
    "a later step makes none good": ([ACTIVATE] * 2, {"/setup/activate_window": [DROP, (200, "")]}, "activate_window"),
    "a window is not there": ([ACTIVATE], {}, None),
}


@pytest.mark.parametrize("case", SILENT)
def test_a_set_up_step_that_failed_silently_is_noticed_and_its_desktop_not_used_again(make, guest, case):
    steps, replies, message = SILENT[case]
    environment = make()
    answer(guest, replies)
    with expecting(message and (DesktopSetupError, message)):
        environment.reset(task(config=steps))
    environment.reset(task())
    assert guest.starts == 2


def test_steps_before_a_verdict_answer_for_nothing_that_was_lost_before_them(make, guest):
    """A task with a program of its own is evaluated in the worker, whose log has the whole step."""
    environment = make(guest_attempts=1)
    environment.reset(task())
    replies = iter([DROP])
    guest.replies["/screenshot"] = lambda: next(replies, (200, png()))
    controller, steps = environment._client.controller, environment._client.setup_controller
    assert (controller.get_screenshot(), controller.get_screenshot()) == (None, png())
    assert steps.setup([])


def test_a_desktop_that_is_waited_for_long_is_not_one_that_sends_too_much(make, guest, monkeypatch):
    environment = make()
    environment.prepare()
    monkeypatch.setattr(guest_http, "MAX_ANSWERS", 3 * len(png()))
    assert all(environment.is_ready() for _ in range(8))
    environment.reset(task())
    for _ in range(8):
        assert environment.step(Wait()).screenshot == png()


UNKNOWN_KEY = "Traceback (most recent call last):\nValueError: cannot type '\\x07': no key gives it"
NO_MAP = "RuntimeError: the X server did not take the key map"
TOO_LONG = json.dumps({"message": "[Errno 7] Argument list too long: 'python'"})
SMALLER = Size(160, 120)
# An action, what is answered, and the screenshot that follows or the error.
STEPS = {
    "fails": (CLICK, {"/execute": executed("", 1, "Xlib: lost")}, (DesktopUnclearError, "do Click: Xlib: lost")),
    "is killed": (CLICK, {"/execute": executed("", -9)}, (DesktopUnclearError, "Click")),
    "answers a list": (CLICK, {"/execute": (200, "[]")}, (DesktopUnclearError, "Click")),
    "answers nothing": (CLICK, {"/execute": (200, "")}, (DesktopUnclearError, "Click")),
    "server error": (CLICK, {"/execute": (500, "broken")}, (DesktopLostError, "did not answer Click")),
    "no answer": (CLICK, {"/execute": DROP}, (DesktopLostError, "did not answer Click")),
    "no display": (CLICK, {"/screenshot": (500, "no display")}, (DesktopLostError, "no screenshot")),
    "no picture": (CLICK, {"/screenshot": (200, b"<html>502</html>")}, (DesktopLostError, "no screenshot")),
    "a picture's head": (CLICK, {"/screenshot": (200, png()[:16] + bytes(20))}, (DesktopLostError, "no image")),
    "a padded one": (CLICK, {"/screenshot": (200, png() + b"1" * 2**20)}, (DesktopLostError, "sent 10.* bytes")),
    # Its header is whole: whoever decodes it says so.
    "half a picture": (CLICK, {"/screenshot": (200, png()[:60])}, png()[:60]),
    # The guest lives, by its answer to the second: the episode goes on.
    "raises": (Hotkey(("\x07",)), {"/execute": [executed("", 1, UNKNOWN_KEY), executed()]}, png()),
    "too long for a command line": (CLICK, {"/execute": (500, TOO_LONG)}, png()),
    # Typing raises only for keys that it was sure of.
    "text raises": (
        TypeText("é"),
        {"/execute": [executed("", 1, NO_MAP), executed()]},
        (DesktopUnclearError, "could not do TypeText: RuntimeError: the X server did not take"),
    ),
    "a smaller resolution": (
        CLICK,
        {"/screen_size": (200, json.dumps(SMALLER._asdict())), "/screenshot": (200, png(size=SMALLER))},
        png(size=SMALLER),
    ),
}


@pytest.mark.parametrize("case", STEPS)
def test_an_action_that_failed_silently_is_noticed(make, guest, case):
    action, replies, outcome = STEPS[case]
    environment = make()
    environment.reset(task())
    answer(guest, replies)
    with expecting(outcome):
        assert environment.step(action).screenshot == outcome


def test_text_that_no_keyboard_has_is_refused_by_provider_and_character(make, guest):
    environment = make()
    environment.reset(task())
    asked = len(guest.code())
    with pytest.raises(ActionParseError, match=r"characters that environment.provider=\w+ can type, got '\\x07'"):
        environment.step(TypeText("a\x07"))
    assert len(guest.code()) == asked


def test_a_long_text_is_typed_in_parts(make, guest):
    environment = make()
    environment.reset(task())
    asked = len(guest.code())
    text = "".join(f"<li>{n}</li>\n" for n in range(500))
    environment.step(TypeText(text))
    sent = [code[code.rindex("pyautogui.write(") :] for code in guest.code()[asked:]]
    typed = [ast.literal_eval(ast.parse(call).body[0].value.args[0]) for call in sent]
    assert len(typed) == 4 and "".join(typed) == text


ASKED = GuestRequest("POST", "/execute", "application/json", b'{"command": ["true"]}')


def test_what_a_harness_asks_is_passed_on_and_an_answer_of_an_error_is_one(make, guest):
    environment = make()
    environment.reset(task())
    for status, said in ((200, "{}"), (404, "no such file"), (500, "[Errno 2]"), (302, "elsewhere")):
        guest.replies["/execute"] = lambda status=status, said=said: (status, said)
        answer = environment.ask(ASKED)
        assert (answer.status, answer.body) == (status, said.encode())
        assert guest.requests[-1] == ("/execute", ASKED.body)
    assert environment.look().screenshot == png()


def test_a_command_that_takes_too_long_is_no_fault_of_a_desktop_that_lives(make, guest):
    environment = make(step_timeout_s=0.4)
    environment.reset(task())
    for replies, fault in (([HANG, executed()], None), ([HANG, executed("", 1)], DesktopUnclearError)):
        guest.replies["/execute"] = lambda replies=replies: replies.pop(0)
        with pytest.raises(fault) if fault else contextlib.nullcontext():
            assert environment.ask(ASKED).status == 504


def test_no_answer_to_what_a_harness_asks_is_a_fault(make, guest):
    environment = make()
    environment.reset(task())
    guest.replies["/execute"] = lambda: DROP
    with pytest.raises(DesktopUnclearError, match="did not answer /execute"):
        environment.ask(ASKED)
    guest.replies["/screenshot"] = lambda: (200, b"none")
    with pytest.raises(DesktopLostError, match="no screenshot|no image"):
        environment.look()
    guest.stop()
    with pytest.raises(DesktopLostError):
        environment.ask(ASKED)


def test_an_action_is_never_sent_twice(make, guest):
    environment = make(guest_attempts=3)
    environment.reset(task())
    guest.requests.clear()
    guest.replies["/execute"] = lambda: (500, "lost reply")
    with pytest.raises(DesktopLostError):
        environment.step(Hotkey(("ctrl", "v")))
    assert len(guest.code()) == 1


VM_FILE = {"type": "vm_file", "path": "/a", "dest": "a"}
VLC_CONFIG = {"type": "vlc_config", "dest": "vlcrc"}
VLC_SETTING = {"type": "rule", "rules": {"expected_qt_bgcone": 0}}
EXPECTED_YES = {"type": "rule", "rules": {"expected": "yes"}}
# DesktopEnv calls an expected getter of each of several metrics, or of none.
SEVERAL = {
    "func": ["check_file_exists", "exact_match"],
    "result": [VM_FILE, RESULT],
    "expected": [{"type": "rule", "rules": {}}, EXPECTED_YES],
}
RAISES = task(func="check_qt_bgcone", result=VLC_CONFIG, expected=VLC_SETTING)
SAME_FILE = task(func="compare_text_file", result=VM_FILE, expected=VM_FILE)
IN_ONE_FILE = [{"type": "rule", "rules": {"expected": [text]}} for text in ("x", "y")]
NO_UPLOAD = {"type": "upload_file", "parameters": {"files": [{"local_path": "/no/such", "path": "/a"}]}}
LINUX = {"/execute": executed("Linux")}
# A task, what is answered, and the score or the error. No file and no window is there, unless an answer says so.
VERDICTS = {
    "not there: a metric takes None": (SAME_FILE, LINUX, 0.0),
    "not there: nothing is like nothing": (task(func="literal_match", result=VM_FILE, expected=VM_FILE), LINUX, 0.0),
    "not there: a metric raises": (task(func="check_file_exists", result=VM_FILE, expected={}), LINUX, 0.0),
    "not there: a getter raises": (RAISES, LINUX, 0.0),
    "not there: one of several": (task(**SEVERAL), LINUX, 0.0),
    "not there: one of two alternatives": (task(**SEVERAL, conj="or"), {"/execute": executed("yes")}, 1.0),
    "the guest is in trouble": (
        RAISES,
        LINUX | {"/file": (500, "out of memory")},
        (DesktopError, "TypeError|did not answer /file"),
    ),
    "the guest is gone": (RAISES, LINUX | {"/file": DROP}, (DesktopError, "TypeError|did not answer /file")),
    "a metric breaks on what is there": (
        task(func="is_vlc_playing", result=VM_FILE, expected=VLC_SETTING),
        {"/file": (200, "no XML")},
        (EvaluatorError, "ParseError"),
    ),
    # test_faults.py has the whole table, without the sandbox.
    "what one check lost the next gets": (
        task(func=["file_contains"] * 2, conj="or", result=[VM_FILE] * 2, expected=IN_ONE_FILE),
        {"/file": [(500, "lost"), (200, "x")]},
        (DesktopUnclearError, "did not answer /file"),
    ),
    "the guest died meanwhile": (
        SAME_FILE,
        {"/screenshot": [(200, png()), (500, "")]},
        (DesktopLostError, "gone when its task was evaluated"),
    ),
    # The window is gone in both, which only a step that needs it minds.
    "a postconfig's file is gone": (
        task(postconfig=[ACTIVATE, {"type": "open", "parameters": {"path": "/removed"}}]),
        {"/setup/open_file": (404, "no such file")},
        0.0,
    ),
    "a postconfig of this host's": (task(postconfig=[ACTIVATE, NO_UPLOAD]), {}, (EvaluatorError, "Invalid local path")),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_what_is_not_there_scores_zero_and_what_fails_gives_no_verdict(make, guest, case):
    spec, replies, outcome = VERDICTS[case]
    environment = make()
    environment.reset(spec)
    answer(guest, replies)
    with expecting(outcome):
        assert environment.evaluate().score == outcome


@pytest.mark.parametrize(
    ("part", "error", "message"),
    [
        ("result_getter", FileNotFoundError("the host's own"), "lost found no file on this host"),
        ("metric", OSError(errno.ENOSPC, "No space left on device"), "No space left"),
    ],
)
def test_what_fails_for_this_hosts_sake_gives_no_verdict_though_the_client_would_score_it(make, part, error, message):
    def lost(*_, **__):
        raise error

    environment = make()
    environment.reset(task(func="compare_text_file", result=VM_FILE, expected={"type": "rule", "rules": {}}))
    environment._evaluator = EvaluatedHere()
    setattr(environment._client, part, lost)
    score_absent_results(environment._client)
    with pytest.raises(EvaluatorError, match=message):
        environment.evaluate()


@pytest.mark.skipif(__import__("importlib.util").util.find_spec("easyocr") is not None, reason="easyocr is installed")
def test_a_metric_without_its_package_says_so_though_it_catches_everything():
    from arpo_verl.desktops.osworld.lean_imports import _Deferred
    from arpo_verl.errors import MissingDependencyError

    log.clear()
    with pytest.raises(MissingDependencyError, match="pip install easyocr"):
        _Deferred("easyocr", ("Reader",))(["en"])
    assert log.missing == ["easyocr"]


def test_settling_waits_for_two_equal_looks(make, guest):
    environment = make(settle_timeout_s=50, settle_interval_s=0.01)
    environment.reset(task())
    colours = iter(["red", "green", "blue", "blue", "black"])
    guest.replies["/screenshot"] = lambda: (200, png(colour=next(colours)))
    assert environment.step(CLICK).screenshot == png(colour="blue")


def test_closing_twice_and_using_a_closed_desktop(make, guest):
    environment = make()
    environment.reset(task())
    environment.close()
    environment.close()
    assert guest.server is None and not environment._files.folder.exists()
    with pytest.raises(DesktopLostError, match="not running"):
        environment.step(CLICK)


@pytest.fixture
def elsewhere():
    """A server that nobody has any business with: what it is asked for."""
    asked = []

    def respond(handler, body):
        asked.append(handler.path)
        handler.send_error(403)

    with Server(respond) as server:
        yield server.url, asked


def test_a_guest_is_asked_by_no_proxy_and_without_the_owners_passwords(make, guest, elsewhere, monkeypatch, tmp_path):
    url, asked = elsewhere
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, url)
    (tmp_path / "netrc").write_text("default login me password secret")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    guest.replies["/execute"] = lambda: executed("yes")
    environment = make()
    environment.reset(task(config=[LAUNCH]))
    environment.step(CLICK)
    assert environment.evaluate().score == 1.0
    assert not asked
    assert not any("authorization" in headers for headers in guest.headers)
    # Playwright's driver, a program of its own.
    assert "127.0.0.1" in os.environ["NO_PROXY"].split(",") and "127.0.0.1" in os.environ["no_proxy"].split(",")


def test_guests_that_are_gone_are_named_no_more(monkeypatch):
    """A cloud's machine has another address after each reset: the variable grew until no program could be started."""
    from arpo_verl.desktops.osworld import client as module

    class Machine:
        vm_ip = ""

    machine, other = Machine(), Machine()
    monkeypatch.setenv("NO_PROXY", "own.example")
    monkeypatch.delenv("no_proxy", raising=False)
    other.vm_ip = "198.51.100.7"
    module._use_no_proxy(other)
    for number in range(3):
        machine.vm_ip = f"192.0.2.{number}"
        module._use_no_proxy(machine)
    named = os.environ["NO_PROXY"].split(",")
    assert {"own.example", "198.51.100.7", "192.0.2.2"} <= set(named) and "192.0.2.1" not in named
    assert "192.0.2.2" in os.environ["no_proxy"].split(",")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("[Errno 2] No such file or directory: 'backup.sh'", True),
        ("[WinError 2] The system cannot find the file specified", True),
        ("[WinError 5] Access is denied: 'notes.txt'", True),
        ("[Errno 28] No space left on device", False),
        ("[WinError 112] There is not enough space on the disk", False),
    ],
)
def test_a_guest_tells_in_its_systems_words_what_a_policy_can_do_to_a_file(body, told):
    assert told_by_guest(Exchange("guest:5000", "/execute", 500, body=body)) is told


def test_a_verdict_is_given_up_before_the_pool_gives_the_desktop_up():
    """The rest before an evaluation is part of its time."""
    config = EnvironmentConfig(evaluate_timeout_s=100, evaluate_pause_s=20)
    assert SandboxedEvaluator(config, "desktop")._time_s == 70


def test_a_guest_that_points_elsewhere_is_not_followed(make, guest, elsewhere):
    url, asked = elsewhere
    environment = make()
    environment.reset(SAME_FILE)
    for path in ("/execute", "/file"):
        guest.replies[path] = lambda: (307, {"Location": f"{url}/api/jobs/"}, "")
    with pytest.raises(DesktopError):
        environment.step(CLICK)
    environment.reset(SAME_FILE)
    with contextlib.suppress(DesktopError):
        assert environment.evaluate().score == 0.0
    assert not asked
