"""What the trainer does about lost engines: veRL's own manager of engines, with replicas in this process. And about a
lost queue."""

import asyncio
import signal
import sys
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import ray
from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError
from support.engines import Engine, Remote, make_client, make_router
from verl.checkpoint_engine import CheckpointEngineManager

from arpo_verl.errors import EngineLostError, QueueLostError
from arpo_verl.plugin import patches, queue, trainer_watch
from arpo_verl.plugin.trainer_state import trainer_state
from arpo_verl.plugin.trainer_watch import TrainerFault, watch_queue
from arpo_verl.upstream_patches import ENGINE_CALLS

TIMEOUT_S = 600.0


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when the test says so."""
    now = SimpleNamespace(s=1000.0)
    own = SimpleNamespace(monotonic=lambda: now.s, strftime=time.strftime, gmtime=time.gmtime)
    monkeypatch.setattr(trainer_watch, "time", own)
    return now


@pytest.fixture
def fault(trainer):
    return trainer.state.fault


@pytest.fixture
def trainer(monkeypatch):
    """Its engines, of which two are there; `trainer.config` is its own section."""
    monkeypatch.setattr(trainer_watch.ray, "get", lambda call, timeout=None: call.result)
    monkeypatch.setattr(trainer_watch.ray, "kill", lambda server: server.killed())
    router = make_router([Engine(0), Engine(1)])
    recipe = OmegaConf.create({"trainer": {"save_freq": 20}})
    state = trainer_state(recipe)
    state.engines.watch(Remote(router), TIMEOUT_S, recipe.trainer)
    return SimpleNamespace(engines=state.engines, router=router, config=recipe.trainer, state=state)


class Replica:
    """As veRL's: one server, whose calls end well, raise, or never end."""

    def __init__(self, number, error=None, hangs=False):
        self.server_address = f"engine-{number}"
        self.error, self.hangs = error, hangs
        self.calls = []
        self.was_killed = False
        ready = SimpleNamespace(remote=lambda: self._call("ready"))
        self.servers = [SimpleNamespace(__ray_ready__=ready, killed=self._kill)]

    def _kill(self):
        self.was_killed = True

    async def _call(self, name, **kwargs):
        self.calls.append((name, *kwargs.items()))
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    async def sleep(self):
        await self._call("sleep")

    async def abort_all_requests(self, reject_request=False):
        await self._call("abort", reject_request=reject_request)

    async def resume_generation(self):
        await self._call("resume")


def manager_of(*replicas):
    """veRL's, for engines beside the trainer; `updates` counts its weight updates."""
    manager = object.__new__(CheckpointEngineManager)
    manager.replicas, manager.backend, manager.updates = list(replicas), "naive", []
    manager.actor_wg = SimpleNamespace(
        update_weights=lambda global_steps, mode: SimpleNamespace(result=manager.updates.append(global_steps))
    )
    return manager


def look(trainer, clock, seconds, every=2.0):
    """The trainer waits for rollouts, and looks at its queue."""
    for _ in range(int(seconds / every)):
        clock.s += every
        trainer.engines.check()


def test_an_engine_that_answers_nothing_while_the_trainer_waits_is_lost(trainer, clock):
    trainer.router.begin_call("a", "c1")
    hanging = trainer.router._calls["c1"].server_id
    look(trainer, clock, TIMEOUT_S - 20)
    assert trainer.engines.lost() == ()
    look(trainer, clock, 40)
    (lost,) = trainer.engines.lost()
    assert lost.server_id == hanging and "none of its 1 calls in gui_agent.engine_timeout_s=600" in lost.reason


def test_an_engine_that_answers_now_and_then_or_has_nothing_to_do_is_not_lost(trainer, clock):
    trainer.router.begin_call("a", "stays")
    for number in range(4):
        trainer.router.begin_call("a", f"c{number}")
        look(trainer, clock, TIMEOUT_S - 50)
        trainer.router.end_call(f"c{number}")
    trainer.router.end_call("stays")
    look(trainer, clock, 3 * TIMEOUT_S)
    assert trainer.engines.lost() == ()


def test_time_in_which_the_trainer_updates_does_not_count(trainer, clock):
    """In `colocate_async` veRL holds all requests up while it updates and saves."""
    trainer.router.begin_call("a", "c1")
    for _ in range(20):
        look(trainer, clock, 20)
        clock.s += 3600
    assert trainer.engines.lost() == ()


def test_the_step_of_a_loss_is_saved_if_the_recipe_saves_at_all(trainer, clock):
    trainer.router.lose("engine-0", "it died")
    trainer.engines.check()
    assert trainer.config.save_freq == 1
    trainer.config.save_freq = 20  # a checkpoint was written
    trainer.engines.check()
    assert trainer.config.save_freq == 20
    trainer.config.save_freq = -1
    trainer.engines._told.clear()
    trainer.engines.check()
    assert trainer.config.save_freq == -1


def test_without_an_engine_the_run_ends_at_once(trainer, clock):
    for number in range(2):
        trainer.engines.check()
        trainer.router.lose(f"engine-{number}", f"ActorDiedError: number {number}")
    with pytest.raises(EngineLostError, match=r"engine-0 is lost since .* UTC: ActorDiedError: .* No rollout engine"):
        trainer.engines.check()


def test_the_routers_death_ends_the_run(trainer, clock, monkeypatch):
    def dead(call, timeout=None):
        raise ActorDiedError

    monkeypatch.setattr(trainer_watch.ray, "get", dead)
    with pytest.raises(EngineLostError, match="sends requests to the rollout engines died"):
        trainer.engines.check()


def test_metrics_count_since_the_last_reading(trainer):
    trainer.router._retried = 5
    assert trainer.engines.read() == {"engines/retried_calls": 5.0, "engines/lost": 0.0}
    trainer.router.lose("engine-0", "it died")
    assert trainer.engines.read() == {"engines/retried_calls": 0.0, "engines/lost": 1.0}


def test_engines_are_put_to_sleep_without_the_dead_one_and_then_the_run_ends_in_the_place_of_the_update(trainer, fault):
    """veRL's trainer ended with an `ActorDiedError`, before it had trained on the batch."""
    dead, sound = Replica(0, ActorDiedError()), Replica(1)
    manager = manager_of(dead, sound)
    manager.abort_replicas(reject_request=True)
    manager.sleep_replicas()
    assert sound.calls == [("abort", ("reject_request", True)), ("sleep",)]
    assert dead.was_killed and not sound.was_killed and trainer.config.save_freq == 1
    fault.check()  # the step is trained to its end
    assert manager.update_weights(3) == {} and manager.updates == []
    manager.resume_generation_replicas()  # they would write replies without weights
    assert ("resume",) not in sound.calls
    with pytest.raises(EngineLostError, match="engine-0 is lost since .* needs every engine, .* the last checkpoint"):
        fault.check()


def test_an_engine_that_dies_while_the_trainer_updates_ends_the_run_with_the_same_error(trainer, fault):
    manager = manager_of(Replica(0), Replica(1, ActorDiedError()))
    manager.update_weights(3)
    assert manager.updates == []
    with pytest.raises(EngineLostError, match="engine-1"):
        fault.check()


def test_an_engine_that_does_not_go_to_sleep_is_not_waited_for(trainer, monkeypatch):
    monkeypatch.setattr(trainer.engines, "timeout_s", 0.05)
    hanging = Replica(0, hangs=True)
    manager_of(hanging, Replica(1)).sleep_replicas()
    assert hanging.was_killed and trainer.engines.lost()[0].reason == "it did not end `sleep` in 0.05 s"


def test_whole_engines_and_other_errors_are_verls_own_affair(trainer, fault):
    manager = manager_of(Replica(0), Replica(1))
    manager.sleep_replicas()
    assert manager.update_weights(3) == {} and manager.updates == [3]
    manager.resume_generation_replicas()
    assert [replica.calls[-1] for replica in manager.replicas] == [("resume",)] * 2
    fault.check()
    with pytest.raises(ValueError, match="its own"):
        manager_of(Replica(0, ValueError("its own"))).sleep_replicas()


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_the_loop_manager_has_the_engines_watched_as_the_recipe_says(trainer, is_deterministic):
    from support.loop_harness import recipe

    from arpo_verl.plugin import loop_manager

    config = OmegaConf.merge(recipe({"engine_timeout_s": 5.0}), {"trainer": {"save_freq": 3}})
    manager = object.__new__(loop_manager.GuiAgentLoopManager)
    manager.llm_client, manager.config = make_client(trainer.router), config
    manager.rollout_config = {"full_determinism": is_deterministic}
    assert manager._watch_engines() is manager.llm_client._load_balancer
    assert trainer_state(config).engines.timeout_s == 5.0 and trainer.router._full_determinism == is_deterministic
    manager.llm_client = "another's"
    assert manager._watch_engines() is None


def test_without_our_router_nothing_is_changed(monkeypatch):
    engines = trainer_state(OmegaConf.create()).engines
    monkeypatch.setattr(trainer_watch.ray, "get", lambda call, timeout=None: call.result)
    manager = manager_of(Replica(0, ActorDiedError()))
    with pytest.raises(ActorDiedError):
        manager.sleep_replicas()
    manager.update_weights(3)
    assert manager.updates == [3]
    engines.check()
    assert engines.read() == {}


def test_the_patch_is_there_once_whoever_imported_the_class_before():
    import verl.checkpoint_engine.base as base

    before = CheckpointEngineManager.update_weights
    ENGINE_CALLS.apply(base, patches.replacement)
    ENGINE_CALLS.check()
    assert CheckpointEngineManager.update_weights is before


@pytest.fixture
def lost_queue(monkeypatch):
    """A queue of a process that lives and one that is dead; it may be changed."""

    async def answer(error=None):
        if error is not None:
            raise error

    def process(error=None):
        return SimpleNamespace(__ray_ready__=SimpleNamespace(remote=lambda: answer(error)))

    processes = {"controller": process(), "TransferQueueStorageUnit#0": process(ActorDiedError())}
    monkeypatch.setattr(queue, "processes", lambda: dict(processes))
    monkeypatch.setattr(trainer_watch, "_QUEUE_CLOSING_S", 0.0)
    return processes


@pytest.fixture
def listening():
    """A fault that reaches this thread."""
    handler = signal.getsignal(signal.SIGUSR2)
    fault = TrainerFault()
    fault.listen()
    yield fault
    signal.signal(signal.SIGUSR2, handler)


def test_a_dead_process_of_the_queue_ends_a_trainer_that_waits_for_its_answer(lost_queue, listening):
    """TransferQueue's client waited for a dead controller for ever."""
    watching = threading.Thread(target=lambda: asyncio.run(watch_queue(listening)))
    with pytest.raises(QueueLostError, match="TransferQueueStorageUnit#0.*the last checkpoint"):
        watching.start()
        Future().result(TIMEOUT_S)  # never comes
    watching.join()
    with pytest.raises(QueueLostError):  # also where what it waited in took the error for its own
        listening.check()


@pytest.mark.parametrize("wait", [ray.get, lambda call: ray.wait([call])], ids=["get", "wait"])
def test_a_dead_process_of_the_queue_ends_a_trainer_that_waits_for_its_workers(local_ray, lost_queue, listening, wait):
    """They waited ten minutes for a dead storage unit, and Ray's wait for them ended with a SystemError."""

    @ray.remote(num_cpus=0)
    def wait_long():
        time.sleep(TIMEOUT_S)

    watching = threading.Thread(target=lambda: asyncio.run(watch_queue(listening)))
    call = wait_long.remote()
    with pytest.raises(QueueLostError, match="TransferQueueStorageUnit#0"):
        watching.start()
        wait(call)
    watching.join()
    ray.cancel(call, force=True)
    assert sys.getprofile() is None


def test_a_queue_that_is_closed_at_the_end_of_a_run_is_not_lost(lost_queue, listening, monkeypatch):
    async def close(seconds):
        lost_queue.clear()

    monkeypatch.setattr(trainer_watch, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": close}))
    asyncio.run(watch_queue(listening))
    listening.check()
