"""Rollout workers that die: veRL's manager and queue, real processes, episodes that do what they are told."""

import asyncio
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import ActorDiedError, OutOfMemoryError
from support.composed import compose_verls_own
from support.scripted_workers import DIE, DIE_PUTTING, FAIL, Play, put_row

from arpo_verl.cpu.warm_workers import py_executable
from arpo_verl.errors import RolloutWorkerError, SessionsLostError
from arpo_verl.plugin import rollout_workers, settings
from arpo_verl.plugin.lost_prompts import LostPrompts, LostSessions, Prompt
from arpo_verl.plugin.rollout_workers import FRUITLESS_BATCHES, FruitlessPrompts, RolloutWorkers
from arpo_verl.plugin.sampler import ReplaySampler, ReplaySamplerAsync
from arpo_verl.plugin.trainer_watch import TrainerFault
from arpo_verl.records.documents import folder_of
from arpo_verl.records.episode_folder import EpisodeFolder
from arpo_verl.types import EpisodeId

PATIENCE_S = 120
ASYNC_MODES = ("colocate_async", "separate_async")


@pytest.fixture(scope="module")
def python(local_ray):
    """Starts a worker's process in a moment, as a fork: the imports of one take seconds."""
    with tempfile.TemporaryDirectory() as folder:
        executable = py_executable(Path(folder))
        ray.get(ray.remote(runtime_env={"py_executable": executable})(lambda: None).remote())  # after the imports
        yield executable


@pytest.fixture
def queue(empty_queue):
    return empty_queue


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


def status(tq, uid, partition_id="train"):
    return tq.kv_list(partition_id)[partition_id].get(uid, {}).get("status")


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def sessions(*uids, n=2):
    return [f"{uid}_{session}" for uid in uids for session in range(n)]


def sample(run, num_prompts, partition_id="train"):
    """A batch as the trainer samples it; in a thread, since a fault would have it wait for ever."""
    sampling = Future()

    def in_thread():
        try:
            sampling.set_result(make_sampler(run).sample(1, partition_id, num_prompts)[0])
        except BaseException as error:
            sampling.set_exception(error)

    threading.Thread(target=in_thread, daemon=True).start()
    return sampling.result(PATIENCE_S)


def make_sampler(run):
    of_mode = ReplaySampler if run.trainer_mode == "sync" else ReplaySamplerAsync
    # Mini-batches of one episode: no batch is filled up.
    shape = ("trainer.n_gpus_per_node=1", "actor_rollout_ref.rollout.n=1")
    recipe = compose_verls_own(
        "+replay.enable=false",
        "+trainer.v1.sampler.sampler_kwargs.poll_interval_s=0.05",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
        *shape,
    )
    sampler = of_mode(
        trainer_mode=run.trainer_mode,
        trainer_config={},
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs=recipe.trainer.v1.sampler.sampler_kwargs,
        refill_fn=run.refill,
    )
    sampler.replayer.state.fault = run.state.fault  # the manager has a recipe of its own
    return sampler


def test_a_prompt_of_which_nothing_is_left_starts_again_on_another_worker(play, queue):
    run = play()
    first, second = run.draw(2)
    (victim,), (other,) = run.begun(f"{first}_0"), run.begun(f"{second}_0")
    assert victim != other
    kill(victim)
    assert run.begun(f"{first}_0", times=2) == [victim, other]
    run.tell(sessions(first, second))
    wait_for(lambda: {status(queue, uid) for uid in (first, second)} == {"finished"})
    assert len(run.begun(f"{second}_0")) == 1
    assert victim not in run.pids() and len(set(run.pids())) == 2


@pytest.mark.parametrize("mode", ["sync", *(pytest.param(mode, marks=pytest.mark.release) for mode in ASYNC_MODES)])
def test_of_the_prompts_of_the_only_worker_what_is_whole_stays_and_the_rest_is_played_again(play, queue, mode):
    run = play(num_workers=1, mode=mode)
    half, torn = run.draw(2)
    run.tell([f"{half}_0"])
    wait_for(lambda: status(queue, f"{half}_0_0") == "success")
    run.tell([f"{torn}_0"], DIE_PUTTING)
    run.begun(f"{torn}_0", times=2)
    assert f"{torn}_0_0" not in queue.kv_list("train")["train"]
    run.tell([*sessions(torn), f"{half}_1"])
    batch = sample(run, 2)
    assert sorted(batch.keys) == sorted(f"{episode}_0" for episode in sessions(half, torn))
    assert len(run.begun(f"{half}_0")) == 1, "a session whose row was whole was played again"


@pytest.mark.release
def test_a_validation_waits_for_none_that_died(play, queue):
    run = play(num_workers=1)
    uids = run.draw(2, "val")
    run.tell([f"{uids[0]}_0"])
    wait_for(lambda: status(queue, uids[0], "val") == "finished")
    run.tell([f"{uids[1]}_0"], DIE)
    run.begun(f"{uids[1]}_0", times=2)
    run.tell([f"{uids[1]}_0"])
    batch = sample(run, 2, "val")
    assert sorted(batch.keys) == [f"{uid}_0_0" for uid in uids]
    assert set(queue.kv_list("val")["val"]) == set(batch.keys)


@pytest.mark.release
def test_a_prompt_that_kills_whoever_plays_it_is_dropped_and_the_others_go_on(play, queue):
    run = play(num_workers=3)
    deadly, sound = run.draw(2)
    for times in (1, 2, 3):
        run.begun(f"{deadly}_0", times)
        run.tell([f"{deadly}_0"], DIE)
    wait_for(lambda: status(queue, deadly) == "failure")
    assert len(set(run.begun(f"{deadly}_0", 3))) == 3, "it dies at another's each time"
    run.tell(sessions(sound))
    wait_for(lambda: status(queue, sound) == "finished")
    run.state.fault.check()


@pytest.mark.release
def test_workers_that_die_together_while_they_are_idle_cost_nothing(play, queue):
    run = play()
    before, actors = run.pids(), list(run.manager.agent_loop_workers)
    for pid in before:
        kill(pid)
    wait_for(lambda: set(actors).isdisjoint(run.manager.agent_loop_workers))
    uids = run.draw(2)
    played = {run.begun(f"{uid}_0")[0] for uid in uids}
    assert len(played) == 2 and played.isdisjoint(before)


@pytest.mark.release
def test_prompts_of_workers_that_die_together_all_start_again(play, queue):
    run = play()
    uids = run.draw(2)
    for (pid,) in [run.begun(f"{uid}_0") for uid in uids]:
        kill(pid)
    for uid in uids:
        run.begun(f"{uid}_0", times=2)
    run.tell(sessions(*uids))
    wait_for(lambda: {status(queue, uid) for uid in uids} == {"finished"})


@pytest.mark.parametrize("partition_id", ["train", pytest.param("val", marks=pytest.mark.release)])
def test_workers_that_keep_dying_end_the_run_with_one_error(play, queue, partition_id):
    run = play(num_workers=1)
    (uid,) = run.draw(1, partition_id)
    (pid,) = run.begun(f"{uid}_0")
    ray.get(run.stage.let_workers_start.remote(False))
    kill(pid)
    with pytest.raises(RolloutWorkerError, match="worker 0 died 3 times in a row .*this worker must not start") as told:
        sample(run, 1, partition_id)
    assert "resumes from the last checkpoint" in str(told.value) and len(str(told.value)) < 2000
    with pytest.raises(RolloutWorkerError):
        run.draw(1)
    wait_for(lambda: status(queue, uid, partition_id) == "failure")  # for samplers that do not ask us


@pytest.mark.release
def test_a_finished_prompt_ends_a_row_of_deaths(play, queue):
    run = play(num_workers=1)
    for deaths in (2, 1):
        (uid,) = run.draw(1)
        for times in range(1, deaths + 1):
            run.begun(f"{uid}_0", times)
            run.tell([f"{uid}_0"], DIE)
        run.begun(f"{uid}_0", deaths + 1)
        run.tell(sessions(uid))
        wait_for(lambda: run.manager.workers._places[0].deaths == 0)
        assert status(queue, uid) == "finished"
    run.state.fault.check()


@pytest.mark.release
def test_an_error_of_a_workers_own_ends_the_run(play):
    run = play(num_workers=1)
    run.columns.remove("index")  # which veRL's worker needs
    run.draw(1)
    with pytest.raises(KeyError, match="index"):
        sample(run, 1)


def test_a_worker_that_rays_memory_monitor_kills_is_replaced_too(monkeypatch):
    """Ray has an error of its own for that death, which is none of an actor's."""
    asked, played = asyncio.Event(), Future()

    async def killed(*_):
        raise OutOfMemoryError("the node was running low on memory")

    async def killed_at_work():
        await asked.wait()
        await killed()

    async def killed_playing(*_):
        asked.set()
        await killed()

    async def lives():
        await asyncio.Event().wait()

    async def plays(batch, done):
        played.set_result(batch)
        return []

    async def start_all_again(worker_id, place, prompts, gives_up):
        return list(prompts)

    def actor(live, play):
        return SimpleNamespace(_actor_id=b"", live=SimpleNamespace(remote=live), play=SimpleNamespace(remote=play))

    monkeypatch.setattr(rollout_workers, "ray", SimpleNamespace(kill=lambda actor: None))
    actors = [actor(killed_at_work, killed_playing)]
    lost_prompts = SimpleNamespace(settle=start_all_again)
    fault, fruitless = TrainerFault(), FruitlessPrompts(1, keeps_partial=True)
    workers = RolloutWorkers(actors, lambda: actor(lives, plays), lost_prompts, fruitless, fault)
    workers.play([Prompt("batch", "u", "train", 1)])
    assert played.result(PATIENCE_S) == "batch"
    workers.close()
    fault.check()


def test_prompts_go_to_the_workers_that_have_fewest(play, queue):
    run = play(num_workers=3)
    uids = [uid for _ in range(3) for uid in run.draw(1)]  # as an asynchronous mode refills
    pids = {uid: run.begun(f"{uid}_0")[0] for uid in uids}
    assert len(set(pids.values())) == 3
    run.tell(sessions(uids[1]))
    wait_for(lambda: not run.manager.workers._places[1].prompts)
    (late,) = run.draw(1)
    assert run.begun(f"{late}_0") == [pids[uids[1]]]
    many = Counter(run.begun(f"{uid}_0")[0] for uid in run.draw(5))
    assert sorted(many.values()) == [1, 2, 2]


def test_a_dead_workers_desktops_are_free_at_once_and_its_loss_is_counted(play, queue):
    environment = {"provider": "fake", "num_desktops": 2}
    run = play(num_workers=1, agent_loop="gui_agent", environment=environment, gui_agent={}, reward={})
    pool = run.manager.workers._lost_prompts._pool
    (uid,) = run.draw(1)
    (pid,) = run.begun(f"{uid}_0")
    run.begun(f"{uid}_1")
    kill(pid)
    (_, pid), _ = run.begun(f"{uid}_0", 2), run.begun(f"{uid}_1", 2)  # on the only two desktops
    run.tell([f"{uid}_0"])
    wait_for(lambda: status(queue, f"{uid}_0_0") == "success" and pool.status()["desktops_busy"] == 1)
    kill(pid)
    run.begun(f"{uid}_1", 3)
    run.tell([f"{uid}_1"])
    wait_for(lambda: status(queue, uid) == "finished")
    metrics = pool.metrics()
    counts = ("rollout_workers_lost", "leases_reclaimed", "dropped_sessions", "leases")
    assert [metrics[f"environment/{name}"] for name in counts] == [2, 3, 0, 5]
    pool.close()


class Losses:
    """Stands for the pool: what is reported to it."""

    def __init__(self):
        self.dropped = []

    async def holder_died(self, holder):
        pass

    async def report_drop(self, task_id):
        self.dropped.append(task_id)


def test_a_lost_session_is_counted_once_also_where_its_worker_dies_later(play, queue):
    """A session that failed before its worker's death was counted twice, and a `ValueError` was not counted at all."""
    environment = {"provider": "fake", "num_desktops": 2}
    run = play(num_workers=1, agent_loop="gui_agent", environment=environment, gui_agent={}, reward={})
    pool = run.manager.workers._lost_prompts._pool
    (failing,) = run.draw(1)
    run.tell([f"{failing}_0"], FAIL)
    run.tell([f"{failing}_1"])
    wait_for(lambda: status(queue, failing) == "failure")
    assert pool.metrics()["environment/dropped_sessions"] == 1
    (dying,) = run.draw(1)
    run.begun(f"{dying}_0")
    run.begun(f"{dying}_1")
    run.tell([f"{dying}_0"], FAIL)
    wait_for(lambda: pool.status()["desktops_busy"] == 1)
    run.tell([f"{dying}_1"], DIE)
    run.begun(f"{dying}_1", times=2)  # the prompt starts again
    run.tell([f"{dying}_1"])
    wait_for(lambda: status(queue, dying) in ("finished", "failure"))
    # Session 0, told to fail, failed again: it is lost, once.
    assert pool.metrics()["environment/dropped_sessions"] == 1
    pool.close()


def test_sessions_are_counted_when_the_last_one_of_their_prompt_ends():
    losses = Losses()
    lost = LostSessions(losses)

    async def session(error, ends):
        async with lost.session("u", "t"):
            await ends.wait()
            if error is not None:
                raise error

    async def run():
        ends = [asyncio.Event() for _ in range(3)]
        errors = (ActorDiedError(), ValueError("too long"), None)
        tasks = [asyncio.create_task(session(*pair)) for pair in zip(errors, ends, strict=True)]
        for event, task in zip(ends, tasks, strict=True):
            assert losses.dropped == []
            event.set()
            await asyncio.gather(task, return_exceptions=True)
        assert losses.dropped == ["t", "t"]
        return lost.take("u")

    reasons = asyncio.run(run())
    assert [reason.partition(":")[0] for reason in reasons] == ["ActorDiedError", "ValueError"]
    assert lost.take("u") == []


@pytest.mark.parametrize(("keeps_partial", "lost"), [(False, 1), (True, 2)])
def test_prompts_of_which_none_can_come_into_a_batch_end_the_run(keeps_partial, lost):
    """They were thrown away and drawn anew for ever."""
    prompts = FruitlessPrompts(2, keeps_partial)
    most = FRUITLESS_BATCHES * 2
    for _ in range(most - 1):
        prompts.note(Prompt(None, "u", "train", 2), ["E: no"] * lost)
    prompts.note(Prompt(None, "u", "val", 2), ["E: no"] * lost)
    prompts.note(Prompt(None, "u", "train", 2), ["E: no"] * (lost - 1))  # this one can
    for _ in range(most - 1):
        prompts.note(Prompt(None, "u", "train", 2), ["E: no"] * lost)
    with pytest.raises(SessionsLostError, match=f"last {most} prompts all lost .* {most * lost} times E: no"):
        prompts.note(Prompt(None, "u", "train", 2), ["E: no"] * lost)


def test_a_run_whose_prompts_all_fail_ends_and_says_why(play, queue):
    run = play(num_workers=1, mode="separate_async")

    def refill(num_prompts):
        run.tell([f"{uid}_0" for uid in run.draw(num_prompts)], FAIL)

    run.refill = refill
    uids = run.draw(2)
    run.tell([f"{uid}_0" for uid in uids], FAIL)
    # The second session of each ends well: no group is whole all the same.
    run.tell([f"u{number}_1" for number in range(50)])
    with pytest.raises(SessionsLostError, match="ValueError: told to fail"):
        sample(run, 2)


@pytest.mark.parametrize(
    "was, whole, deaths, becomes, dropped",
    [
        ("pending", 0, 0, None, 0),
        ("running", 0, 0, None, 0),
        ("running", 0, 2, "failure", 2),
        ("running", 1, 0, None, 0),
        ("running", 1, 2, "failure", 1),
        ("running", 2, 0, "finished", 0),
        ("finished", 2, 0, "finished", 0),
        ("failure", 1, 0, "failure", 0),
        ("cleared", 0, 0, "cleared", 0),
    ],
)
def test_what_becomes_of_a_prompt(empty_queue, was, whole, deaths, becomes, dropped):
    """None: it starts again."""
    tag = {"is_prompt": True, "status": was, "global_steps": 7}
    if was != "cleared":
        empty_queue.kv_batch_put(keys=["u"], partition_id="train", tags=[tag])
    for session in range(whole):
        asyncio.run(put_row(f"u_{session}", "train", {"extra_info": {"task_id": "t"}}))
    prompt, losses = Prompt(None, "u", "train", 2, "t", [0] * deaths), Losses()
    again = asyncio.run(LostPrompts(losses, None).settle("worker", 1, [prompt], gives_up=False))
    assert again == ([prompt] if becomes is None else [])
    assert not again or again[0].done == tuple(range(whole))
    assert losses.dropped == ["t"] * dropped
    left = (empty_queue.kv_list("train") or {}).get("train", {})
    assert left.get("u") == (None if was == "cleared" else {**tag, "status": becomes or was})
    assert len(left) == whole + (was != "cleared")


def test_episodes_that_a_dead_worker_played_are_no_longer_shown_as_running(empty_queue, tmp_path):
    tag = {"is_prompt": True, "status": "running", "global_steps": 1}
    empty_queue.kv_batch_put(keys=["u1"], partition_id="train", tags=[tag])
    folders = [EpisodeFolder(tmp_path, folder_of(EpisodeId(1, uid, 0), "t")) for uid in ("u1", "u2")]
    for folder in folders:
        folder.open()
    prompt = Prompt(None, "u1", "train", 1)
    asyncio.run(LostPrompts(None, str(tmp_path)).settle("worker", 0, [prompt], gives_up=False))
    (left,) = tmp_path.glob("step_*/.*")
    assert "__u2_0" in left.name
