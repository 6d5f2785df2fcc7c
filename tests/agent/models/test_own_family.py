"""The family of docs/model-families.md: the page's own code, played through veRL's agent loop."""

import ast
import dataclasses
import importlib
import os
import subprocess
import sys

import pytest
from support import ROOT, documents, needs_words
from support.composed import compose_recipe
from support.fake_pool import FakePool
from support.loop_harness import ScriptedEngine, play, recipe

from arpo_verl.agent.models.family import check_trainable, load_family
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.errors import ActionParseError, ConfigError
from arpo_verl.plugin.recipe.checks import check_recipe
from arpo_verl.replay.fingerprint import model_fingerprint
from arpo_verl.types import Click, Fail, Finish, Hotkey, Point, Size, TypeText, Wait

(CODE,) = documents.code("docs/model-families.md")
NAME = "line_family:FAMILY"
IMAGE, SCREEN = Size(644, 476), Size(640, 480)


@pytest.fixture
def family(tmp_path, monkeypatch):
    """The page's module where Python finds it."""
    (tmp_path / "line_family.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    load_family.cache_clear()
    yield load_family(NAME)
    load_family.cache_clear()
    sys.modules.pop("line_family", None)


def test_it_is_short_and_imports_public_names_alone():
    assert len(CODE.splitlines()) < 120
    imports = [node for node in ast.walk(ast.parse(CODE)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert {getattr(node, "module", None) or node.names[0].name for node in imports} == {"re", "arpo_verl"}


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("CLICK 500 250", Click(Point(320, 120))),
        ("TYPE two words", TypeText("two words")),
        ("KEYS ctrl s", Hotkey(("ctrl", "s"))),
        ("WAIT", Wait()),
        ("DONE", Finish()),
        ("IMPOSSIBLE", Fail()),
    ],
)
def test_what_it_reads_it_writes(family, line, action):
    reply = family.parse(line, IMAGE, SCREEN)
    assert reply.actions == (action,)
    assert family.parse(family.format(reply, IMAGE, SCREEN), IMAGE, SCREEN) == reply


@pytest.mark.parametrize("line", ["", "CLICK 1000 5", "CLICK 1", "TYPE", "click 1 2", "DONE DONE"])
def test_what_is_not_in_its_grammar_is_refused(family, line):
    with pytest.raises(ActionParseError):
        family.parse(line, IMAGE, SCREEN)


def test_the_agent_loop_asks_and_reads_as_it_says(policy, tokenizer, family):
    config = recipe({"model_family": NAME}, prompt_length=1024)
    engine = ScriptedEngine(tokenizer, ["CLICK 10 10", "CLICK 5 5000"])
    output = play(policy, engine, FakePool(), config)
    assert output.extra_fields["reward_extra_info"]["format_error"] == 1
    asked = tokenizer.decode(engine.calls[0]["prompt_ids"])
    assert "CLICK x y | KEYS name name" in asked and "Click the red square." in asked
    assert len(engine.calls[1]["images"]) == 2


def test_a_store_of_another_family_is_none_of_its_own(policy, family):
    tokenizer, processor = policy
    prints = [
        model_fingerprint(tokenizer, processor, {}, GuiAgentConfig(model_family=name)) for name in (NAME, "small")
    ]
    assert prints[0].differences(prints[1]) == ["prompt"]


def test_the_pages_command_composes_and_a_model_of_another_type_is_refused(family, model_path):
    command = documents.commands("docs/model-families.md")[0]
    name, override = command.split()[3:]
    model = f"actor_rollout_ref.model.path={model_path}"
    config = compose_recipe(name, override, model)
    assert config.gui_agent.model_family == NAME
    check_recipe(config)
    config = compose_recipe(name, "gui_agent.model_family=qwen3_vl", model)
    with pytest.raises(ConfigError, match="is for models of type qwen3_vl or .*, but .* the model_type qwen2_5_vl"):
        check_recipe(config)


def test_a_family_may_show_replies_otherwise_and_is_then_only_evaluated(family, monkeypatch):
    """Its own `conversation` makes the messages for a server."""

    def conversation(instruction, language, replies, first):
        return [{"role": "user", "content": f"{instruction} {language} {[said.lower() for said in replies]} {first}"}]

    other = dataclasses.replace(family, conversation=conversation, evaluated_only="nothing can train it")
    assert other.messages("Go.", "", ["WAIT", "DONE"], 1) == conversation("Go.", "", ["WAIT", "DONE"], 1)
    monkeypatch.setattr(sys.modules["line_family"], "FAMILY", other)
    load_family.cache_clear()
    with pytest.raises(ConfigError, match="works only with `arpo-verl evaluate` and a server: nothing can train it"):
        check_trainable(NAME)


@needs_words
def test_opencua_works_as_a_family_of_ones_own(tmp_path, monkeypatch):
    """As the page brings it, from the last commit that had it."""
    shows = [line for line in documents.commands("docs/model-families.md") if line.startswith("git show ")]
    environment = {**os.environ, "GIT_DIR": str(ROOT / ".git")}
    commit = shows[0].split()[2].partition(":")[0]
    if subprocess.run(["git", "cat-file", "-e", commit], env=environment, cwd=tmp_path, check=False).returncode:
        pytest.skip("the checkout has no history")
    for line in shows:
        subprocess.run(["bash", "-c", line], env=environment, cwd=tmp_path, check=True)
    monkeypatch.syspath_prepend(tmp_path)
    opencua = load_family("opencua_family:FAMILY")
    said = "## Action:\nClick it.\n\n## Code:\n```python\npyautogui.click(x=322, y=238)\n```"
    assert opencua.read(said, IMAGE, SCREEN).actions == (Click(Point(320, 240)),)
    asked = opencua.messages("Press it.", "", [said, said], 1)
    assert [message["role"] for message in asked] == ["system", "assistant", "user", "assistant", "user"]
    assert "Click it." in str(asked[1]) and "pyautogui" not in str(asked[1])
    with pytest.raises(ConfigError, match="works only with `arpo-verl evaluate` and a server"):
        check_trainable("opencua_family:FAMILY")
