"""The models' own words: what our prompts render to beside what OSWorld's agents send."""

import subprocess
import sys

import pytest
from support import needs_words

from arpo_verl.errors import MissingDependencyError
from arpo_verl.rollout import official_words
from arpo_verl.rollout.prompts import build_messages, reply_message, screenshot_message

CALL_USER = (
    "call_user() # Submit the task and call the user when the task is unsolvable, or when you need the user's help.\n"
)
CALL = '<tool_call>\n{"name": "computer_use", "arguments": {"action": "wait", "time": 1}}\n</tool_call>'
REPLIES = {
    "ui_tars_15": "Thought: t\nAction: wait()",
    "qwen25_vl": f"Action: Wait.\n{CALL}",
    "qwen3_vl": f"Action: Wait.\n{CALL}",
}


def render(messages):
    """As text, in the manner of Qwen's chat template."""
    turns = []
    for message in messages:
        parts = [part["text"] if part["type"] == "text" else "<image>" for part in message["content"]]
        turns.append(f"<|im_start|>{message['role']}\n{''.join(parts)}<|im_end|>\n")
    return "".join(turns)


@needs_words
@pytest.mark.parametrize("kind", REPLIES)
@pytest.mark.parametrize("turns", [1, 3])
def test_a_conversation_renders_to_what_the_official_agent_sends(kind, turns, tmp_path, monkeypatch):
    from support.official_agents import sent_messages

    monkeypatch.chdir(tmp_path)  # Qwen3-VL's agent writes its messages to a file
    instruction = "Rename {it} to 'C:\\new', \"now\"."
    messages = build_messages(instruction, kind=kind)
    for _ in range(turns - 1):
        messages += [reply_message(REPLIES[kind]), screenshot_message()]
    ours, theirs = render(messages), render(sent_messages(kind, instruction, [REPLIES[kind]] * turns))
    if kind == "ui_tars_15":
        assert ours.count(CALL_USER) == 1 and CALL_USER not in theirs
        ours = ours.replace(CALL_USER, "")
    assert ours == theirs
    assert instruction in theirs


@needs_words
def test_ui_tars_is_told_of_single_backslashes_in_the_language_asked_for():
    system, user = official_words.ui_tars_15("Do it.", "German")
    assert system == "You are a helpful assistant."
    assert r"# Use escape characters \', \", and \n in content part" in user
    assert "- Use German in `Thought` part." in user and user.endswith("## User Instruction\nDo it.\n")


@needs_words
def test_qwen25_is_not_offered_what_its_tool_lacks():
    (system25, _), (system3, user) = (official_words.qwen(kind, "Do it.") for kind in ("qwen25_vl", "qwen3_vl"))
    for name in ("triple_click", "hscroll", "answer"):
        assert name not in system25 and f"* `{name}`: " in system3
    assert "The screen's resolution is 1000x1000." in system3
    assert user.endswith("Instruction: Do it.\n\nPrevious actions:\nNone")


@needs_words
def test_no_module_of_the_package_is_imported():
    code = (
        "import sys; from arpo_verl.rollout.prompts import build_messages\n"
        "for kind in ('ui_tars_15', 'qwen25_vl', 'qwen3_vl'): build_messages('x', kind=kind)\n"
        "assert not [name for name in sys.modules if name.startswith('mm_agents')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of that name with nothing in it."""
    (tmp_path / official_words.PACKAGE).mkdir()
    (tmp_path / official_words.PACKAGE / "__init__.py").touch()
    for name in [name for name in sys.modules if name.partition(".")[0] == official_words.PACKAGE]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    for cached in (official_words._constants, official_words._assignments):
        cached.cache_clear()
    yield tmp_path / official_words.PACKAGE
    for cached in (official_words._constants, official_words._assignments):
        cached.cache_clear()


@pytest.mark.parametrize("kind", REPLIES)
def test_without_the_package_the_error_says_what_to_install(kind, package):
    with pytest.raises(MissingDependencyError, match=r"_.*py is not installed: arpo-verl install-osworld, or pip inst"):
        build_messages("x", kind=kind)
    assert build_messages("x", kind="compact")


@pytest.mark.parametrize(
    ("kind", "file", "source", "says"),
    [
        ("ui_tars_15", "uitars15_v1.py", "UITARS_NORMAL_ACTION_SPACE = ''", "has no UITARS_"),
        (
            "ui_tars_15",
            "uitars15_v1.py",
            "UITARS_NORMAL_ACTION_SPACE = ''\nUITARS_CALL_USR_ACTION_SPACE = ''\nUITARS_USR_PROMPT_THOUGHT = '{new}'",
            "is not as expected",
        ),
        ("qwen25_vl", "qwen25vl_agent.py", "tools_def = {}", "is not as expected.*system_prompt"),
        (
            "qwen3_vl",
            "qwen3vl_agent.py",
            "class A:\n    def predict(self):\n        system_prompt = self.words()",
            "is not as expected.*words",
        ),
    ],
)
def test_words_that_are_kept_otherwise_are_refused(kind, file, source, says, package):
    (package / file).write_text(source)
    with pytest.raises(MissingDependencyError, match=says):
        build_messages("x", kind=kind)
