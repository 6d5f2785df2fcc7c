"""What the benchmark's own runner and ARPO's make of the same episodes: recorded once, replayed through each."""

import io
import json
import subprocess
import sys

import pytest
from PIL import Image

pytest.importorskip("desktop_env")

import fidelity  # noqa: E402

from arpo_verl.agent.actions.pyautogui import to_code  # noqa: E402
from arpo_verl.agent.actions.ui_tars import parse_reply  # noqa: E402
from arpo_verl.errors import ActionParseError  # noqa: E402
from arpo_verl.types import Size  # noqa: E402

# --- The evaluator's view ---------------------------------------------------------------------------------------------


def of_a_run(test):
    return pytest.mark.release(pytest.mark.study(pytest.mark.desktop(test)))


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """`{case: row}` of the benchmark's short run: real desktops, the package's own DesktopEnv and agent."""
    folder = tmp_path_factory.mktemp("fidelity")
    command = [sys.executable, fidelity.__file__, "--smoke", "--json", str(folder / "rows.json"), "--keep", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=550)
    return {row["case"]: row for row in json.loads((folder / "rows.json").read_text())}


@of_a_run
@pytest.mark.parametrize("runner", ["osworld", "arpo"])
@pytest.mark.parametrize(("case", "score"), [("success", 1.0), ("failure", 0.0)])
def test_an_evaluator_sees_the_same_of_a_success_and_of_a_failure(rows, case, score, runner):
    ours, theirs = rows[case]["ours"], rows[case]["reference"][runner]
    assert ours["score"] == theirs["score"] == score
    assert ours["ends"] == theirs["ends"] == ["DONE"]
    assert len(ours["metrics"]) == 1 and ours["metrics"] == theirs["metrics"]
    assert len(ours["inputs"]) == len(theirs["inputs"]) > 0
    assert theirs["same_screen"], theirs["differing_box"]


@of_a_run
def test_an_infeasible_task_is_solved_by_the_same_last_word(rows):
    ours, reference = rows["infeasible"]["ours"], rows["infeasible"]["reference"]
    assert ours["ends"] == reference["arpo"]["ends"] == ["FAIL"]
    assert reference["osworld"]["ends"] == ["WAIT"] * 3 + ["FAIL"], "call_user() counts from the fourth time on"
    assert {ours["score"], *(theirs["score"] for theirs in reference.values())} == {1.0}
    assert all(theirs["same_screen"] for theirs in reference.values())


@of_a_run
def test_a_malformed_reply_ends_the_episode_and_the_desktop_is_evaluated_as_it_is(rows):
    ours, reference = rows["malformed"]["ours"], rows["malformed"]["reference"]
    assert ours["ends"] == []
    for theirs in reference.values():
        assert theirs["ends"] == ["DONE"]
        assert theirs["score"] == ours["score"] == 1.0 and theirs["metrics"] == ours["metrics"]


@of_a_run
def test_at_the_step_limit_osworlds_agent_gives_up_and_we_and_arpo_are_evaluated(rows):
    ours, reference = rows["step-limit"]["ours"], rows["step-limit"]["reference"]
    assert ours["score"] == reference["arpo"]["score"] == 1.0
    assert reference["osworld"]["ends"] == ["FAIL"] and reference["osworld"]["score"] == 0.0
    assert len(reference["osworld"]["inputs"]) == len(ours["inputs"]) - 1, "its last input is not done either"


# --- From text to code: OSWorld's own agent beside ours. For replies: tests/agent/actions/test_official_parsers.py ---


@pytest.fixture(scope="module")
def agent_module():
    before = set(sys.modules)
    yield fidelity.reference_module()
    # Stand-ins for packages that are not installed here must not be found by any other test.
    for name in {"openai", "loguru"} - before:
        del sys.modules[name]


def theirs(agent_module, text, *, paste=False):
    """The lines of what OSWorld's agent sends for a reply of one action, without the thought in front of them."""
    buffer = io.BytesIO()
    Image.new("RGB", fidelity.SCREEN).save(buffer, "PNG")
    agent = fidelity.reference_agent(agent_module, [text], paste=paste)
    [code] = agent.predict("do it", {"screenshot": buffer.getvalue()})[1]
    return [line for line in code.rsplit("'''", 1)[-1].strip().split("\n") if line]


def ours(text):
    try:
        [action] = parse_reply(text, Size(*fidelity.IMAGE), Size(*fidelity.SCREEN)).actions
    except ActionParseError:
        return "malformed"
    return to_code(action).split("\n")


@pytest.mark.parametrize(
    ("text", "reference", "here"),
    [
        # Fractions of a pixel are cut off by pyautogui; we round.
        (
            "click(start_box='(443,320)')",
            ["pyautogui.click(440.248, 322.689, button='left')"],
            ["pyautogui.click(x=440, y=323, clicks=1, button='left')"],
        ),
        (
            "drag(start_box='(0,0)', end_box='(322,238)')",
            ["pyautogui.moveTo(0.0, 0.0)", "pyautogui.dragTo(320.0, 240.0, duration=1.0)"],
            ["pyautogui.moveTo(x=0, y=0)", "pyautogui.dragTo(x=320, y=240, duration=1.0, button='left')"],
        ),
        ("dance(x='1')", ["# Unrecognized action type: dance"], "malformed"),
    ],
)
def test_what_the_two_send_differently(agent_module, text, reference, here):
    assert theirs(agent_module, f"Action: {text}") == reference
    assert ours(f"Action: {text}") == here


@pytest.mark.parametrize(
    ("content", "reference", "here"),
    [
        (r"hello\n", ["pyautogui.write('hello', interval=0.1)"], [r"pyautogui.write('hello\n')"]),
        ("é", ["pyautogui.write('é', interval=0.1)"], [r"pyautogui.write('\xe9')"]),
    ],
)
def test_how_text_is_typed(agent_module, content, reference, here):
    text = f"Action: type(content='{content}')"
    typed = theirs(agent_module, text)
    assert typed[:1] == reference and ours(text) == here
    assert ("pyautogui.press('enter')" in typed) == content.endswith("n")
    pasted = theirs(agent_module, text, paste=True)  # as OSWorld's runner does, unless told not to
    assert pasted[0] == "import pyperclip" and pasted[2] == "pyautogui.hotkey('ctrl', 'v')"


def test_a_click_without_a_box_breaks_the_reference_runner(agent_module):
    with pytest.raises(TypeError):
        theirs(agent_module, "Action: click()")
    assert ours("Action: click()") == "malformed"
