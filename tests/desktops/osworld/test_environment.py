"""The OSWorld client against a scripted guest: each of its silent failures must become the right error."""

import ast
import contextlib
import errno
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


@pytest.mark.parametrize(
    ("path", "reply", "step"),
    [
        ("/setup/launch", (500, "no xterm here"), LAUNCH),
        ("/setup/launch", DROP, LAUNCH),
        ("/setup/execute", (500, "no xterm here"), {"type": "execute", "parameters": {"command": ["x"]}}),
        ("/setup/activate_window", DROP, {"type": "activate_window", "parameters": {"window_name": "x"}}),
    ],
)
def test_a_set_up_step_that_failed_silently_is_noticed(make, guest, path, reply, step):
    guest.replies[path] = lambda: reply
    with pytest.raises(DesktopSetupError):
        make().reset(task(config=[step]))


def test_a_window_that_is_not_there_is_no_fault_and_a_step_that_failed_is_not_made_good_later(make, guest):
    make().reset(task(config=[{"type": "activate_window", "parameters": {"window_name": "x"}}]))
    replies = iter([DROP, (200, "activated")])
    guest.replies["/setup/activate_window"] = lambda: next(replies)
    with pytest.raises(DesktopSetupError, match="/setup/activate_window"):
        make().reset(task(config=[{"type": "activate_window", "parameters": {"window_name": "x"}}] * 2))


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
    environment.reset(task())
    monkeypatch.setattr(guest_http, "MAX_ANSWERS", 3 * len(png()))
    for _ in range(8):
        assert environment.step(Wait()).screenshot == png()


def test_a_desktop_is_not_reused_after_half_a_set_up(make, guest):
    environment = make()
    guest.replies["/setup/launch"] = lambda: (500, "")
    with pytest.raises(DesktopSetupError):
        environment.reset(task(config=[LAUNCH]))
    environment.reset(task())
    assert guest.starts == 2


@pytest.mark.parametrize(
    ("path", "reply", "error", "message"),
    [
        ("/execute", executed("", 1, "Xlib: lost"), DesktopUnclearError, "could not do Click: Xlib: lost"),
        ("/execute", executed("", -9), DesktopUnclearError, "Click"),
        ("/execute", (200, "[]"), DesktopUnclearError, "Click"),
        ("/execute", (200, ""), DesktopUnclearError, "Click"),
        ("/execute", (500, "broken"), DesktopLostError, "did not answer Click"),
        ("/execute", DROP, DesktopLostError, "did not answer Click"),
        ("/screenshot", (500, "no display"), DesktopLostError, "no screenshot"),
    ],
)
def test_an_action_that_failed_silently_is_noticed(make, guest, path, reply, error, message):
    environment = make()
    environment.reset(task())
    guest.replies[path] = lambda: reply
    with pytest.raises(error, match=message):
        environment.step(CLICK)


UNKNOWN_KEY = "Traceback (most recent call last):\nValueError: cannot type '\\x07': no key gives it"


def test_an_action_that_raises_in_a_guest_that_lives_is_no_fault_and_the_episode_goes_on(make, guest):
    environment = make()
    environment.reset(task())
    guest.replies["/execute"] = lambda: executed() if "position" in guest.code()[-1] else executed("", 1, UNKNOWN_KEY)
    assert environment.step(Hotkey(("\x07",))).screenshot == png()
    guest.replies["/execute"] = lambda: (500, json.dumps({"message": "[Errno 7] Argument list too long: 'python'"}))
    assert environment.step(CLICK).screenshot == png()


def test_text_that_failed_to_be_typed_is_the_desktops_fault_and_never_passed_over(make, guest):
    environment = make()
    environment.reset(task())
    raised = "RuntimeError: the X server did not take the key map"
    guest.replies["/execute"] = lambda: executed() if "position" in guest.code()[-1] else executed("", 1, raised)
    with pytest.raises(DesktopUnclearError, match="could not do TypeText: RuntimeError: the X server did not take"):
        environment.step(TypeText("é"))


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


def test_an_episode_goes_on_at_a_smaller_resolution(make, guest):
    environment, smaller = make(), Size(160, 120)
    environment.reset(task())
    guest.replies["/screen_size"] = lambda: (200, json.dumps(smaller._asdict()))
    guest.replies["/screenshot"] = lambda: (200, png(size=smaller))
    assert environment.step(CLICK).screenshot == png(size=smaller)


@pytest.mark.parametrize("sent", [png()[:60], b"\x89PNG\r\n\x1a\n" + bytes(20), b"<html>502</html>"])
def test_a_screenshot_that_is_none_is_a_fault(make, guest, sent):
    environment = make()
    environment.reset(task())
    guest.replies["/screenshot"] = lambda: (200, sent)
    if sent == png()[:60]:
        environment.step(CLICK)  # its header is whole: whoever decodes it says so
        return
    with pytest.raises(DesktopLostError, match="no screenshot|no image"):
        environment.step(CLICK)


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
NOT_THERE = {
    "a metric that takes None": task(func="compare_text_file", result=VM_FILE, expected=VM_FILE),
    "a metric that finds nothing like nothing": task(func="literal_match", result=VM_FILE, expected=VM_FILE),
    "a metric that raises": task(func="check_file_exists", result=VM_FILE, expected={}),
    "a getter that raises": task(func="check_qt_bgcone", result=VLC_CONFIG, expected=VLC_SETTING),
    "several metrics": task(
        func=["check_file_exists", "exact_match"],
        result=[VM_FILE, RESULT],
        expected=[None, {"type": "rule", "rules": {"expected": "yes"}}],
    ),
}
# DesktopEnv calls an expected getter of each of several metrics, or of none.
NOT_THERE["several metrics"].spec["evaluator"]["expected"][0] = {"type": "rule", "rules": {}}


@pytest.mark.parametrize("case", NOT_THERE)
def test_what_the_guest_says_is_not_there_scores_zero_at_once(make, guest, case, monkeypatch):
    environment = make()
    environment.reset(NOT_THERE[case])
    guest.replies["/execute"] = lambda: executed("Linux")
    rests = []
    monkeypatch.setattr("desktop_env.controllers.python.time", SimpleNamespace(sleep=rests.append))
    assert environment.evaluate().score == 0.0 and sum(rests) == 0


@pytest.mark.parametrize("reply", [(500, "out of memory"), DROP])
def test_a_guest_that_does_not_say_so_gives_no_verdict(make, guest, reply):
    environment = make()
    environment.reset(NOT_THERE["a getter that raises"])
    guest.replies["/execute"] = lambda: executed("Linux")
    guest.replies["/file"] = lambda: reply
    with pytest.raises(DesktopError, match="TypeError|did not answer /file"):
        environment.evaluate()


def test_a_metric_that_breaks_on_what_is_there_gives_no_verdict(make, guest):
    environment = make()
    guest.replies["/file"] = lambda: (200, "no XML")
    environment.reset(task(func="is_vlc_playing", result=VM_FILE, expected=VLC_SETTING))
    with pytest.raises(EvaluatorError, match="ParseError"):
        environment.evaluate()


def test_an_answer_that_one_check_lost_is_not_made_good_by_the_answer_to_the_next(make, guest):
    """In the sandbox; test_faults.py has the whole table."""
    environment = make(guest_attempts=1)
    rules = [{"type": "rule", "rules": {"expected": [text]}} for text in ("x", "y")]
    environment.reset(task(func=["file_contains"] * 2, conj="or", result=[VM_FILE] * 2, expected=rules))
    replies = iter([(500, "lost")])
    guest.replies["/file"] = lambda: next(replies, (200, "x"))
    with pytest.raises(DesktopUnclearError, match="did not answer /file"):
        environment.evaluate()


def test_the_other_of_two_alternatives_still_counts_where_one_is_not_there(make, guest):
    environment = make()
    either = NOT_THERE["several metrics"].spec["evaluator"] | {"conj": "or"}
    environment.reset(task(**either))
    guest.replies["/execute"] = lambda: executed("yes")
    assert environment.evaluate().score == 1.0


def test_a_file_that_is_missing_on_this_host_is_a_fault_though_the_client_would_score_it(make, guest, monkeypatch):
    environment = make()
    environment.reset(task())
    environment._evaluator = EvaluatedHere()

    def lost(env, config):
        raise FileNotFoundError("the host's own")

    environment._client.result_getter = lost
    score_absent_results(environment._client)
    with pytest.raises(EvaluatorError, match="lost found no file on this host"):
        environment.evaluate()


def test_a_metric_that_fails_for_this_hosts_sake_gives_no_verdict_though_the_result_is_not_there(make, guest):
    environment = make()
    environment.reset(task(func="compare_text_file", result=VM_FILE, expected={"type": "rule", "rules": {}}))
    environment._evaluator = EvaluatedHere()
    guest.replies["/file"] = lambda: (404, "")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    environment._client.metric = full
    score_absent_results(environment._client)
    with pytest.raises(EvaluatorError, match="No space left"):
        environment.evaluate()


def test_a_zero_from_a_guest_that_died_is_no_verdict(make, guest):
    environment = make()
    environment.reset(task(func="compare_text_file", result=VM_FILE, expected=VM_FILE))

    def dies():
        guest.replies["/screenshot"] = lambda: (500, "")
        return 404, ""

    guest.replies["/file"] = dies
    with pytest.raises(DesktopLostError, match="gone when its task was evaluated"):
        environment.evaluate()


@pytest.mark.parametrize(
    ("step", "scored"),
    [
        ({"type": "open", "parameters": {"path": "/removed"}}, True),
        ({"type": "upload_file", "parameters": {"files": [{"local_path": "/no/such", "path": "/a"}]}}, False),
    ],
)
def test_a_postconfig_step_that_failed_scores_zero_only_for_what_is_not_there_for_it(make, guest, step, scored):
    """The window is gone in both cases, which only the first step minds."""
    environment = make()
    environment.reset(task(postconfig=[{"type": "activate_window", "parameters": {"window_name": "x"}}, step]))
    guest.replies["/setup/open_file"] = lambda: (404, "no such file")
    if scored:
        assert environment.evaluate().score == 0.0
    else:
        with pytest.raises(EvaluatorError, match="Invalid local path"):
            environment.evaluate()


@pytest.mark.skipif(__import__("importlib.util").util.find_spec("easyocr") is not None, reason="easyocr is installed")
def test_a_metric_without_its_package_says_so_though_it_catches_everything(make, guest, tmp_path):
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
    environment.reset(task(func="compare_text_file", result=VM_FILE, expected=VM_FILE))
    for path in ("/execute", "/file"):
        guest.replies[path] = lambda: (307, {"Location": f"{url}/api/jobs/"}, "")
    with pytest.raises(DesktopError):
        environment.step(CLICK)
    environment.reset(task(func="compare_text_file", result=VM_FILE, expected=VM_FILE))
    with contextlib.suppress(DesktopError):
        assert environment.evaluate().score == 0.0
    assert not asked
