"""What the benchmark's own runner and ARPO's make of the same episodes: recorded once, replayed through each."""

import io
import json
import subprocess
import sys

import pytest
from PIL import Image

pytest.importorskip("desktop_env")

import fidelity  # noqa: E402

from arpo_verl.actions.pyautogui import to_code  # noqa: E402
from arpo_verl.actions.ui_tars import parse_reply  # noqa: E402
from arpo_verl.errors import ActionParseError  # noqa: E402
from arpo_verl.types import Fail, Finish, Size, Wait  # noqa: E402

# --- The evaluator's view ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """`{case: row}` of the benchmark's short run: real desktops, the package's own DesktopEnv and agent."""
    folder = tmp_path_factory.mktemp("fidelity")
    command = [sys.executable, fidelity.__file__, "--smoke", "--json", str(folder / "rows.json"), "--keep", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=550)
    return {row["case"]: row for row in json.loads((folder / "rows.json").read_text())}


@pytest.mark.release
@pytest.mark.study
@pytest.mark.desktop
@pytest.mark.parametrize("runner", ["osworld", "arpo"])
@pytest.mark.parametrize(("case", "score"), [("success", 1.0), ("failure", 0.0)])
def test_an_evaluator_sees_the_same_of_a_success_and_of_a_failure(rows, case, score, runner):
    ours, theirs = rows[case]["ours"], rows[case]["reference"][runner]
    assert ours["score"] == theirs["score"] == score
    assert ours["ends"] == theirs["ends"] == ["DONE"]
    assert len(ours["metrics"]) == 1 and ours["metrics"] == theirs["metrics"]
    assert len(ours["inputs"]) == len(theirs["inputs"]) > 0
    assert theirs["same_screen"], theirs["differing_box"]


@pytest.mark.release
@pytest.mark.study
@pytest.mark.desktop
def test_an_infeasible_task_is_solved_by_the_same_last_word(rows):
    ours, reference = rows["infeasible"]["ours"], rows["infeasible"]["reference"]
    assert ours["ends"] == reference["arpo"]["ends"] == ["FAIL"]
    assert reference["osworld"]["ends"] == ["WAIT"] * 3 + ["FAIL"], "call_user() counts from the fourth time on"
    assert {ours["score"], *(theirs["score"] for theirs in reference.values())} == {1.0}
    assert all(theirs["same_screen"] for theirs in reference.values())


@pytest.mark.release
@pytest.mark.study
@pytest.mark.desktop
def test_a_malformed_reply_ends_the_episode_and_the_desktop_is_evaluated_as_it_is(rows):
    ours, reference = rows["malformed"]["ours"], rows["malformed"]["reference"]
    assert ours["ends"] == []
    for theirs in reference.values():
        assert theirs["ends"] == ["DONE"]
        assert theirs["score"] == ours["score"] == 1.0 and theirs["metrics"] == ours["metrics"]


@pytest.mark.release
@pytest.mark.study
@pytest.mark.desktop
def test_at_the_step_limit_osworlds_agent_gives_up_and_we_and_arpo_are_evaluated(rows):
    ours, reference = rows["step-limit"]["ours"], rows["step-limit"]["reference"]
    assert ours["score"] == reference["arpo"]["score"] == 1.0
    assert reference["osworld"]["ends"] == ["FAIL"] and reference["osworld"]["score"] == 0.0
    assert len(reference["osworld"]["inputs"]) == len(ours["inputs"]) - 1, "its last input is not done either"


# --- From text to input: OSWorld's own agent beside ours --------------------------------------------------------------


@pytest.fixture(scope="module")
def agent_module():
    before = set(sys.modules)
    yield fidelity.reference_module()
    # Stand-ins for packages that are not installed here must not be found by any other test.
    for name in {"openai", "loguru"} - before:
        del sys.modules[name]


def theirs(agent_module, text, *, paste=False):
    """What OSWorld's agent sends for a reply, without the thought in front of each input."""
    buffer = io.BytesIO()
    Image.new("RGB", fidelity.SCREEN).save(buffer, "PNG")
    agent = fidelity.reference_agent(agent_module, [text], paste=paste)
    actions = agent.predict("do it", {"screenshot": buffer.getvalue()})[1]
    return [action.rsplit("'''", 1)[-1].strip() for action in actions]


def ours(text):
    ends = {Wait: "WAIT", Finish: "DONE", Fail: "FAIL"}
    try:
        reply = parse_reply(text, Size(*fidelity.IMAGE), Size(*fidelity.SCREEN))
    except ActionParseError:
        return "malformed"
    return [ends.get(type(action)) or to_code(action) for action in reply.actions]


def lines(actions):
    return [[line for line in action.split("\n") if line] for action in actions]


@pytest.mark.parametrize(
    "text",
    [
        "wait()",
        "finished(content='x')",
        "error_env()",
        "hotkey(key='ctrl c')",
        "hotkey(key='arrowdown')",
        "hotkey(key='a')\n\nhotkey(key='b')",
        "hotkey(key='a')\n\nAction: hotkey(key='b')",
        "hotkey(key='a')\nThought: again\nAction: hotkey(key='b')",
        "wait() #Sleep for 5s",
        "wait(time='5')",
        "hotkey(key='a',)",
        "scroll(direction='up')",
    ],
)
def test_what_both_send_alike(agent_module, text):
    assert ours(f"Action: {text}") == theirs(agent_module, f"Action: {text}")


@pytest.mark.parametrize(
    ("text", "reference", "here"),
    [
        # Points: fractions of a pixel are cut off by pyautogui; we round.
        (
            "click(start_box='(443,320)')",
            ["pyautogui.click(440.248, 322.689, button='left')"],
            ["pyautogui.click(x=440, y=323, clicks=1, button='left')"],
        ),
        (
            "left_double(start_box='(443,320)')",
            ["pyautogui.doubleClick(440.248, 322.689, button='left')"],
            ["pyautogui.click(x=440, y=323, clicks=2, button='left')"],
        ),
        ("click(start_box='(900,20)')", ["pyautogui.click(894.41, 20.168, button='left')"], "malformed"),
        # Drag and scroll: the same amounts and the same duration.
        (
            "drag(start_box='(0,0)', end_box='(322,238)')",
            ["pyautogui.moveTo(0.0, 0.0)\n\npyautogui.dragTo(320.0, 240.0, duration=1.0)"],
            ["pyautogui.moveTo(x=0, y=0)\npyautogui.dragTo(x=320, y=240, duration=1.0, button='left')"],
        ),
        ("scroll(direction='left')", [""], ["pyautogui.hscroll(-5)"]),
        # Keys.
        ("hotkey(key='ctrl+c')", ["pyautogui.hotkey('ctrl+c')"], ["pyautogui.hotkey('ctrl', 'c')"]),
        ("hotkey(key='Ctrl C')", ["pyautogui.hotkey('Ctrl', 'C')"], ["pyautogui.hotkey('ctrl', 'c')"]),
        ("hotkey(key='command s')", ["pyautogui.hotkey('command', 's')"], ["pyautogui.hotkey('win', 's')"]),
        ("hotkey(key='volumeup')", ["pyautogui.hotkey('volumeup')"], "malformed"),
        ("hotkey(key='')", [""], "malformed"),
        # Several actions in one reply: what comes before an end is not done there.
        ("hotkey(key='a')\n\nfinished()", ["DONE"], ["pyautogui.hotkey('a')", "DONE"]),
        ("hotkey(key='a')\n\nwait()", ["WAIT"], ["pyautogui.hotkey('a')", "WAIT"]),
        ("hotkey(key='a')\nhotkey(key='b')", ["DONE"], ["pyautogui.hotkey('a')", "pyautogui.hotkey('b')"]),
        # Ends.
        ("call_user()", ["WAIT"], ["FAIL"]),
        ("dance(x='1')", ["# Unrecognized action type: dance"], "malformed"),
        ("dance(", ["DONE"], "malformed"),
    ],
)
def test_what_the_two_send_differently(agent_module, text, reference, here):
    assert theirs(agent_module, f"Action: {text}") == reference
    assert ours(f"Action: {text}") == here


@pytest.mark.parametrize(
    ("content", "reference", "here"),
    [
        (r"hello\n", ["pyautogui.write('hello', interval=0.1)"], [r"pyautogui.write('hello\n')"]),
        (r"run\\n", ["pyautogui.write('ru', interval=0.1)"], [r"pyautogui.write('run\\n')"]),
        (r"C:\\temp", [r"pyautogui.write('C:\temp', interval=0.1)"], [r"pyautogui.write('C:\\temp')"]),
        ("é", ["pyautogui.write('é', interval=0.1)"], [r"pyautogui.write('\xe9')"]),
        ("<", ["pyautogui.write('<', interval=0.1)"], ["pyautogui.write('<')"]),
    ],
)
def test_how_text_is_typed(agent_module, content, reference, here):
    text = f"Action: type(content='{content}')"
    (their_lines,), (our_lines,) = lines(theirs(agent_module, text)), lines(ours(text))
    assert their_lines[:1] == reference and our_lines == here
    assert ("pyautogui.press('enter')" in their_lines) == content.endswith("n")
    # OSWorld's runner pastes instead, unless told not to.
    (pasted,) = lines(theirs(agent_module, text, paste=True))
    assert pasted[0] == "import pyperclip" and pasted[2] == "pyautogui.hotkey('ctrl', 'v')"


def test_two_lines_are_no_python_in_the_reference(agent_module):
    text = r"Action: type(content='a\nb')"
    with pytest.raises(SyntaxError):
        compile(theirs(agent_module, text)[0], "guest", "exec")
    assert ours(text) == [r"pyautogui.write('a\nb')"]


def test_a_thought_is_code_in_the_reference_and_stays_here(agent_module):
    text = "Thought: '''\nimport os\n'''\nAction: hotkey(key='a')"
    parsed = agent_module.parse_action_to_structure_output(text, 1000, 480, 640, "qwen25vl")
    code = agent_module.parsing_response_to_pyautogui_code(parsed[0], 480, 640, False)
    assert "\nimport os\n" in code.split("'''")[2], "outside of any string literal"
    assert ours(text) == ["pyautogui.hotkey('a')"]


@pytest.mark.parametrize("text", ["Action: click()", "Action: click(point='<point>10 20</point>')"])
def test_a_click_without_a_box_breaks_the_reference_runner(agent_module, text):
    with pytest.raises(TypeError):
        theirs(agent_module, text)
    assert ours(text) in ("malformed", ["pyautogui.click(x=10, y=20, clicks=1, button='left')"])
