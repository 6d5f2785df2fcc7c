"""Engines that fail under veRL's own balancer and client, as our router and client extend them. No model, no Ray."""

import asyncio
import random
from collections import Counter

import pytest
from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError
from support import ROOT
from support.engines import CONFIG, Engine, Remote, addresses, ask, make_client, make_router, simulate
from verl.utils.import_utils import load_class_from_fqn
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.router import GlobalRequestLoadBalancer, _load_router_yaml

import arpo_verl.plugin as plugin
from arpo_verl.plugin.engines import MAX_FAILURES, EngineRouter, watched
from arpo_verl.plugin.trainer_watch import in_words, is_death

SESSIONS, TURNS = 128, 15


@pytest.fixture(autouse=True)
def the_same_draws():
    random.seed(1)


async def play_sessions(client, spread_s):
    """128 sessions of 15 turns: a reply takes 4 to 12 s, a desktop 6 s a turn. Returns how many were lost."""

    async def session(number):
        await asyncio.sleep(random.uniform(0, spread_s))
        for turn in range(TURNS):
            await ask(client, f"r{number}", range(turn))
            await asyncio.sleep(6)

    outcomes = await asyncio.gather(*map(session, range(SESSIONS)), return_exceptions=True)
    return Counter(type(outcome).__name__ for outcome in outcomes if outcome is not None)


def eight_engines(fails, failing=(0,)):
    return [Engine(number, fails if number in failing else None, random.uniform(4, 12)) for number in range(8)]


@pytest.mark.parametrize("spread_s", [5, 120])
def test_verls_own_balancer_loses_most_sessions_to_one_dead_engine_of_eight(spread_s):
    """What ours is for: an engine that fails at once has the fewest requests, and so gets the next."""

    async def run():
        balancer = GlobalRequestLoadBalancer(addresses(eight_engines(ActorDiedError())))
        return await play_sessions(LLMServerClient(CONFIG, Remote(balancer)), spread_s)

    assert simulate(run())["ActorDiedError"] > 2 * SESSIONS / 8


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("spread_s", [5, 120])
@pytest.mark.parametrize("fails", [ActorDiedError(), OutOfMemoryError("killed"), RuntimeError("EngineDeadError")])
def test_one_dead_engine_of_eight_costs_no_session(fails, spread_s, is_async):
    async def run():
        router = make_router(eight_engines(fails))
        lost = await play_sessions(make_client(router, is_async), spread_s)
        return lost, router.look()

    lost, status = simulate(run())
    assert not lost
    assert [engine.server_id for engine in status.lost] == ["engine-0"] and status.serving == 7
    assert 1 <= status.retried <= SESSIONS and not status.open_calls
    assert sum(status.ended_calls.values()) == SESSIONS * TURNS + status.retried


@pytest.mark.parametrize("failing", [(0, 3), (0, 1, 2, 3, 4, 5, 6)])
@pytest.mark.parametrize("fails", [ActorDiedError(), RuntimeError("EngineDeadError")])
def test_engines_that_fail_together_are_each_found(fails, failing):
    """As with a node that dies. The second try of a call may meet the second of them."""

    async def run():
        router = make_router(eight_engines(fails, failing))
        lost = await play_sessions(make_client(router), 5)
        return lost, router.look()

    lost, status = simulate(run())
    if isinstance(fails, ActorDiedError):
        assert not lost and len(status.lost) == len(failing)
    else:  # alive, and nobody can tell at once that it is not the request
        assert lost.total() <= 2 * len(failing)


def test_an_engine_that_dies_in_mid_step_keeps_the_episodes_where_they_go_on():
    async def run():
        engines = [Engine(0, seconds=10), Engine(1, seconds=10)]
        router = make_router(engines)
        client = make_client(router)
        first = await ask(client, "episode", [1])
        (owner,) = first.token_ids
        turn = asyncio.create_task(ask(client, "episode", [1, 2]))
        await asyncio.sleep(1)
        router.lose(f"engine-{owner}", "it gave no answer for 600 s")  # whoever waits for it learns of it at once
        second = await turn
        third = await ask(client, "episode", [1, 2, 3])
        return owner, second.token_ids, third.token_ids, engines[1 - owner].prompts, router.look()

    owner, second, third, prompts, status = simulate(run())
    assert second == third == [1 - owner] and prompts == [[1, 2], [1, 2, 3]]
    assert status.retried == 1 and status.lost[0].reason == "it gave no answer for 600 s"


def test_lost_engines_stay_out_when_they_are_added_again():
    """`separate_async` takes its engines out of the balancer and puts them in again, around its updates."""
    engines = [Engine(0, ActorDiedError()), Engine(1)]
    router = make_router(engines)
    router.lose("engine-0", "it died")
    for _ in range(2):
        router.remove_servers(["engine-0", "engine-1"])
        router.add_servers(addresses(engines))
    assert router.get_all_servers() == ["engine-1"]
    assert {router.acquire_server(f"r{number}")[0] for number in range(20)} == {"engine-1"}


def test_a_request_that_every_engine_refuses_fails_after_two_and_blames_none():
    """Such as one that is longer than the model's context."""
    too_long = ValueError("Prompt length leaves no room")

    async def run():
        engines = [Engine(number, too_long) for number in range(8)]
        router = make_router(engines)
        client = make_client(router)
        for number in range(4 * MAX_FAILURES):
            with pytest.raises(ValueError, match="no room"):
                await ask(client, f"r{number}")
        return sum(len(engine.prompts) for engine in engines), router.look()

    calls, status = simulate(run())
    assert calls == 2 * 4 * MAX_FAILURES
    assert (status.lost, status.retried, status.serving, status.open_calls) == ((), 0, 8, {})


def test_single_accidents_of_an_engine_are_retried_and_do_not_lose_it():
    async def run():
        flaky, sound = Engine(0), Engine(1)
        router = make_router([flaky, sound])
        client = make_client(router)
        for number in range(2 * MAX_FAILURES):
            router._request_id_to_server[f"r{number}"] = "engine-0"
            flaky.fails = ValueError("flaky")
            assert (await ask(client, f"r{number}")).token_ids == [1]
            flaky.fails = None
            router._request_id_to_server["between"] = "engine-0"
            assert (await ask(client, "between")).token_ids == [0]
        return router.look()

    status = simulate(run())
    assert status.lost == () and status.retried == 2 * MAX_FAILURES


def test_the_only_engines_error_is_raised_as_it_is():
    async def run(fails):
        router = make_router([Engine(0, fails)])
        with pytest.raises(type(fails)):
            await ask(make_client(router), "r")
        return router.look()

    assert simulate(run(ValueError("no"))).serving == 1
    assert simulate(run(ActorDiedError())).serving == 0


def test_with_no_engine_left_verls_error_is_raised():
    async def run():
        router = make_router([Engine(0)])
        router.lose("engine-0", "it died")
        with pytest.raises(RuntimeError, match="No available servers"):
            await ask(make_client(router), "r")

    simulate(run())


def test_calls_of_a_rollout_worker_that_died_are_not_waited_for():
    """veRL's balancer counted them as running for ever."""
    router = make_router([Engine(0), Engine(1)])
    for number in range(4):
        router.begin_call(f"r{number}", f"c{number}", holder=f"worker-{number % 2}")
    router.holder_died("worker-0")
    assert router.get_total_inflight() == 2 and sum(router.look().open_calls.values()) == 2
    router.end_call("c0")  # its last word, which came late
    assert router.get_total_inflight() == 2


def test_a_call_that_is_cancelled_says_nothing_about_its_engine():
    async def run():
        router = make_router([Engine(0, seconds=60)])
        call = asyncio.create_task(ask(make_client(router), "r"))
        await asyncio.sleep(1)
        assert router.look().open_calls == {"engine-0": 1}
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return router.look(), router.get_total_inflight()

    status, inflight = simulate(run())
    assert (status.open_calls, status.retried, inflight) == ({}, 0, 0)


def test_a_deterministic_run_is_routed_as_verl_routes_it():
    engines = [Engine(number) for number in range(8)]
    router, stock = make_router(engines), GlobalRequestLoadBalancer(addresses(engines), full_determinism=True)
    router.route_by_hash()
    for number in range(50):
        assert router.begin_call(f"r{number}", f"c{number}")[0] == stock.acquire_server(f"r{number}")[0]


def test_the_recipes_path_names_our_router_whatever_the_working_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    plugin.register()
    recipe = OmegaConf.load(ROOT / "recipes" / "arpo.yaml")
    named = _load_router_yaml(recipe.actor_rollout_ref.rollout.router_config_path)["router_class"]
    assert load_class_from_fqn(named, "router") is EngineRouter


def test_a_client_of_another_router_or_class_stays_as_it_is():
    stock = LLMServerClient(CONFIG, Remote(GlobalRequestLoadBalancer({})))
    assert watched(stock) is stock
    assert watched("no client") == "no client"


def test_which_errors_say_that_an_engine_is_dead():
    assert is_death(ActorDiedError()) and is_death(OutOfMemoryError("killed"))
    assert not is_death(ActorUnavailableError("the network", None)) and not is_death(ValueError("full context"))
    assert len(in_words(ValueError("x" * 9999))) < 1100 and "\n" not in in_words(ValueError("a\nb"))
