"""A checkpoint in this process, and the same over HTTP."""

import asyncio
import json
import threading
from pathlib import Path

import pytest
from support.evaluation_run import TASKS, play

pytest.importorskip("verl")

from arpo_verl.agent.rollout.vision import ImageGeometry  # noqa: E402
from arpo_verl.records.layout import EPISODE_FILE, TOKENS_FILE  # noqa: E402
from arpo_verl.tools.evaluation.endpoint import Endpoint, EndpointPolicy, find_model  # noqa: E402
from arpo_verl.tools.evaluation.own_engine import OwnEngine  # noqa: E402
from arpo_verl.tools.evaluation.policy import Sampling  # noqa: E402


def texts(out):
    """The replies of every episode, by task and run."""
    episodes = [json.loads(path.read_text()) for path in out.rglob(EPISODE_FILE)]
    return {(e["task_id"], e["session"]): [turn["text"] for turn in e["turns"]] for e in episodes}


@pytest.fixture(scope="module")
def engine(model_path):
    return OwnEngine(Path(model_path), {"model": "m"}, None)


@pytest.fixture(scope="module")
def server(model_path):
    from model_server import ModelServer

    server = ModelServer(Path(model_path))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_what_is_drawn_follows_from_the_trial_whichever_desktop_plays_it_when(tmp_path, engine):
    for start, desktops in (("one", 1), ("three", 3)):
        play(tmp_path / start, engine, tasks=TASKS[:2], runs=2, desktops=desktops)
    said = texts(tmp_path / "one")
    assert said == texts(tmp_path / "three") and len({str(one) for one in said.values()}) == 4
    (tokens, *_) = json.loads(next((tmp_path / "one").rglob(TOKENS_FILE)).read_text())
    assert len(tokens["log_probs"]) == len(tokens["token_ids"]) > 0


def test_over_http_the_likeliest_replies_are_the_same(tmp_path, engine, server, policy):
    model = asyncio.run(find_model(Endpoint(server.url), None))
    asked = EndpointPolicy(Endpoint(server.url), model, ImageGeometry.from_processor(policy[1]))
    for folder, policy_asked in (("own", engine), ("asked", asked)):
        play(tmp_path / folder, policy_asked, tasks=TASKS[:2], runs=1, sampling=Sampling(temperature=0))
    assert texts(tmp_path / "own") == texts(tmp_path / "asked") != {}


def test_its_facts_say_which_model_and_how_it_sees(engine):
    assert engine.facts == {
        **{"model": "m", "engine": "transformers", "context": 8192},
        **{"factor": 28, "min_pixels": 3136, "max_pixels": 100352},
    }
