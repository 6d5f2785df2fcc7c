"""The two programs of docs/harness.md, as they stand there."""

import asyncio
import shutil
import sys
from types import SimpleNamespace

import pytest
from support import documents
from support.desktop_harness import until
from support.loop_harness import DONE, HIT, FakePool, ScriptedEngine, play, recipe

from arpo_verl.agent.harness.loading import CommandProgram
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.types import Task

pytest.importorskip("openai", reason="the document's programs use OpenAI's client")


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """The folder with both."""
    for block in documents.code("docs/harness.md"):
        (tmp_path / block.split("\n")[0].removeprefix("# ")).write_text(block)
    assert {path.name for path in tmp_path.iterdir()} == {"my_agent.py", "my_harness.py"}
    tmp_path.chmod(0o755)  # a command's user is another
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("my_harness", None)


def test_the_function_plays(policy, tokenizer, programs):
    agent = {"harness": "my_harness:play", "max_steps": 8, "max_screenshots": None}
    output = play(policy, ScriptedEngine(tokenizer, [HIT, DONE]), FakePool(), recipe(agent))
    assert (output.reward_score, output.extra_fields["num_turns"]) == (1.0, 2)
    with_our_loop = play(policy, ScriptedEngine(tokenizer, [HIT, DONE]), FakePool())
    assert output.response_ids == with_our_loop.response_ids and output.prompt_ids == with_our_loop.prompt_ids


@pytest.mark.desktop
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_the_command_plays_and_its_words_are_kept(policy, tokenizer, programs, tmp_path):
    agent = {"harness": [sys.executable, str(programs / "my_agent.py")], "trajectory_dir": str(tmp_path / "records")}
    pool = FakePool()
    output = play(policy, ScriptedEngine(tokenizer, [HIT, DONE]), pool, recipe(agent))
    assert (output.reward_score, output.extra_fields["num_turns"]) == (1.0, 2)
    assert output.extra_fields["stop_reason"] == "finished" and pool.leased == 0
    (log,) = (tmp_path / "records").rglob("harness.log")
    assert log.read_text().startswith("Thought: I click it.") and log.read_text().endswith(f"{DONE}\n")


@pytest.mark.desktop
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_the_words_of_a_cancelled_command_are_kept_while_its_desktop_is_busy():
    code = "import os, requests; print('I look.', flush=True); requests.get(os.environ['DESKTOP'] + '/screenshot')"
    agent = GuiAgentConfig(harness=[sys.executable, "-c", code], harness_env={"DESKTOP": "{desktop}"})

    async def run():
        looks, client = asyncio.Event(), SimpleNamespace(url="http://127.0.0.1:1/v1", token="t0ken", log=b"")

        async def look():
            looks.set()
            await asyncio.Event().wait()

        program = CommandProgram(agent)(Task("a", "b", {}), client, SimpleNamespace(look=look))
        running = asyncio.ensure_future(program)
        await until(looks.is_set)
        running.cancel()
        await until(lambda: client.log)
        assert client.log == b"I look.\n" and not running.done()

    asyncio.run(run())
