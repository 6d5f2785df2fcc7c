"""Prompts on their way to rollout workers, and how they end: veRL's manager and queue, real processes, episodes that do
what they are told."""

import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
import ray
from support.desktop_harness import eventually
from support.scripted_workers import FAIL, Play

from arpo_verl.engines.cpu.warm_workers import py_executable
from arpo_verl.errors import GenerationError
from arpo_verl.plugin import prompts, settings
from arpo_verl.plugin.prompts import FRUITLESS_BATCHES, EndedPrompt, FruitlessPrompts, LostSessions
from arpo_verl.plugin.run_watch import GO_ON, Lasting, in_words


@pytest.fixture(scope="module")
def python(local_ray):
    """Starts a worker's process in a moment, as a fork: the imports of one take seconds."""
    with tempfile.TemporaryDirectory() as folder:
        executable = py_executable(Path(folder))
        ray.get(ray.remote(runtime_env={"py_executable": executable})(lambda: None).remote())  # after the imports
        yield executable


@pytest.fixture
def play(empty_queue, python):
    """Make a `Play`; it is closed after the test."""
    made = []

    def make(*args, **kwargs):
        made.append(Play(python, *args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()
    settings._connect.cache_clear()  # a test that ends its pool ends no other one's


def status(tq, uid):
    return tq.kv_list("train")["train"].get(uid, {}).get("status")


def sessions(*uids):
    return [f"{uid}_{session}" for uid in uids for session in range(2)]


def test_prompts_go_to_the_workers_that_have_fewest(play, empty_queue):
    """veRL gave each prompt that it draws alone to the first worker."""
    run = play(num_workers=3)
    uids = [uid for _ in range(3) for uid in run.draw(1)]  # as an asynchronous mode refills
    pids = {uid: run.begun(f"{uid}_0")[0] for uid in uids}
    assert len(set(pids.values())) == 3
    run.tell(sessions(uids[1]))
    eventually(lambda: run.manager.prompts.check() == "" and len(run.manager.prompts._playing) == 2)
    (late,) = run.draw(1)
    assert run.begun(f"{late}_0") == [pids[uids[1]]]
    many = Counter(run.begun(f"{uid}_0")[0] for uid in run.draw(5))
    assert sorted(many.values()) == [1, 2, 2]


def test_an_error_of_a_workers_own_ends_the_run(play, monkeypatch):
    """But not at once: a run that has just closed the queue fails what is played, and ends by itself."""
    monkeypatch.setattr(prompts, "CLOSING_S", 1.0)
    run = play(num_workers=1)
    run.columns.remove("index")  # which veRL's worker needs
    run.draw(1)
    sentence = eventually(run.manager.prompts.check)
    assert time.monotonic() >= run.manager.prompts._counts_from > 0
    assert "failed to play a prompt" in sentence and "KeyError" in sentence and GO_ON in sentence
    assert run.manager.prompts.check() == sentence


def test_a_run_whose_prompts_all_fail_ends_and_says_why(play):
    run = play(num_workers=1, mode="separate_async")
    uids = run.draw(2 * FRUITLESS_BATCHES)
    run.tell([f"{uid}_0" for uid in uids], FAIL)
    run.tell([f"{uid}_1" for uid in uids])  # these end well: no group is whole all the same
    assert "6 times ValueError: told to fail" in eventually(run.manager.prompts.check)


def test_a_lost_session_is_counted_once_whatever_its_error(play, empty_queue):
    """A `ValueError` was not counted at all."""
    environment = {"provider": "fake", "num_desktops": 2}
    run = play(num_workers=1, agent_loop="gui_agent", environment=environment, gui_agent={}, reward={})
    pool = settings.connect_pool(run.manager.config)
    (uid,) = run.draw(1)
    run.tell([f"{uid}_0"], FAIL)
    run.tell([f"{uid}_1"])
    eventually(lambda: status(empty_queue, uid) == "failure")
    assert pool.metrics()["environment/dropped_sessions"] == 1
    pool.close()


def test_a_workers_prompt_ends_with_the_reasons_of_its_lost_sessions():
    lost = LostSessions(None)

    async def session(error):
        async with lost.session("u", "t"):
            if error is not None:
                raise error

    async def run():
        errors = (RuntimeError("gone"), ValueError("too long"), None)
        await asyncio.gather(*map(session, errors), return_exceptions=True)

    asyncio.run(run())
    assert lost.take("u", True) == EndedPrompt(True, 3, ("RuntimeError: gone", "ValueError: too long"))
    assert lost.take("u", False) == EndedPrompt(False, 0, ())


@pytest.mark.parametrize(("keeps_partial", "lost"), [(False, 1), (True, 2)])
def test_prompts_of_which_none_can_come_into_a_batch_end_the_run(keeps_partial, lost):
    """They were thrown away and drawn anew for ever."""
    prompts, most = FruitlessPrompts(2, keeps_partial), FRUITLESS_BATCHES * 2
    useless, useful = EndedPrompt(False, 2, ("E: no",) * lost), EndedPrompt(False, 2, ("E: no",) * (lost - 1))
    row = [useless] * (most - 1)
    for prompt in [*row, EndedPrompt(True, 2, useless.reasons), useful, *row]:
        assert prompts.note(prompt) == ""
    assert f"The last {most} prompts all lost sessions" in (sentence := prompts.note(useless))
    assert f"{most * lost} times E: no" in sentence and sentence.endswith(GO_ON)
    assert isinstance(sentence, Lasting), "a run that starts again would lose them again"
    of_engine = EndedPrompt(False, 2, ("ActorUnavailableError: no answer",) * lost)
    assert not isinstance(prompts.note(of_engine), Lasting), "a new start has new engines"


@pytest.mark.parametrize("validates", [False, True])
def test_a_dead_engine_whose_server_lives_ends_the_run(validates):
    """It failed each request at once, got nearly all, and lost their sessions."""

    class RayTaskError(Exception):
        pass

    dead = type("RayTaskError(EngineDeadError)", (RayTaskError,), {})("EngineCore encountered an issue")
    wrapped = GenerationError("the rollout engine gave no reply: ... EngineDeadError: EngineCore encountered an issue")
    for error, ends in ((dead, True), (wrapped, True), (ValueError("EngineDeadError"), False)):
        sentence = FruitlessPrompts(9, True).note(EndedPrompt(validates, 2, ("E: no", in_words(error))))
        assert ("EngineCore encountered an issue" in sentence) == ends and not isinstance(sentence, Lasting)
