"""Pixel values that are not made yet, through all that veRL does to a row between its rollout and the forward pass."""

import pickle

import pytest
import ray
import torch
from support import ROOT
from support.queue_rows import Rollouts
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.utils import tensordict_utils as tu
from verl.utils.model import extract_multi_modal_inputs
from verl.utils.transferqueue_utils import _meta_to_realdata
from verl.workers.engine.utils import prepare_micro_batches

from arpo_verl.engines import pixels
from arpo_verl.engines.pixels import LazyPixels
from arpo_verl.plugin.loop_manager import GuiAgentLoopWorker
from arpo_verl.plugin.model_inputs import ModelInputs
from arpo_verl.plugin.queue import plain
from arpo_verl.plugin.rows import read_outcomes, read_trajectories, rebuild_rows
from arpo_verl.tools.cli.composing import compose_recipe

SEEDS = (1, 2, 3, 4)
IMAGES = ("pixel_values", "image_grid_thw", "images_seqlens")


@pytest.fixture(scope="module")
def stock(policy):
    """Rollouts of veRL's own worker, which makes pixel values."""
    rollouts = Rollouts(*policy)
    worker = object.__new__(AgentLoopWorkerTQ.__ray_actor_class__)
    worker.__dict__ |= rollouts.worker.__dict__
    rollouts.worker = worker
    return rollouts


@pytest.fixture
def put(empty_queue):
    """Put one prompt's four episodes of one to four screenshots, and give their keys."""

    def put_by(rollouts, uid):
        rollouts.put(uid, [rollouts.output("task", 1.0, seed, turns=seed) for seed in SEEDS])
        return [f"{uid}_{session}_0" for session in range(len(SEEDS))]

    return put_by


def fetch(keys) -> TensorDict:
    """As a training process gets what its method is called with (`tqbridge`)."""
    return _meta_to_realdata(KVBatchMeta(keys=list(keys), tags=[{}] * len(keys), partition_id="train", fields=None))


def model_inputs(data, **settings):
    """Of each micro-batch, as an engine's forward takes them (`prepare_model_inputs` of FSDP and the others)."""
    tu.assign_non_tensor(data, **settings)
    micro_batches, order = prepare_micro_batches(data)
    made = [extract_multi_modal_inputs(m.to("cpu").get("multi_modal_inputs", [])) for m in micro_batches]
    return made, order


BY_LENGTH = {"use_dynamic_bsz": True, "max_token_len_per_gpu": 800}
BY_ROWS = {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 2}


@pytest.mark.parametrize("micro_batches", [BY_LENGTH, BY_ROWS])
def test_the_engine_gets_what_verls_own_worker_would_have_made(rollouts, stock, put, micro_batches):
    ours, theirs = fetch(put(rollouts, "ours")), fetch(put(stock, "theirs"))
    assert all(isinstance(plain(row)["pixel_values"], LazyPixels) for row in ours["multi_modal_inputs"])
    assert all(isinstance(plain(row)["pixel_values"], torch.Tensor) for row in theirs["multi_modal_inputs"])
    for a, b in zip(ours["multi_modal_inputs"], theirs["multi_modal_inputs"], strict=True):
        assert plain(a).keys() == plain(b).keys() == set(IMAGES)
    assert torch.equal(ours["position_ids"].values(), theirs["position_ids"].values())
    rows = [
        list(tu.make_iterator(data, 2, epochs=1, seed=3, dataloader_kwargs={"shuffle": True}))
        for data in (ours, theirs)
    ]
    assert len(rows[0]) == len(rows[1]) == 2
    for mine, stocks in zip(*rows, strict=True):
        (given, order), (expected, same) = model_inputs(mine, **micro_batches), model_inputs(stocks, **micro_batches)
        assert order == same and len(given) == len(expected)
        for a, b in zip(given, expected, strict=True):
            assert a.keys() == b.keys() == set(IMAGES)
            assert all(type(a[name]) is torch.Tensor and torch.equal(a[name], b[name]) for name in IMAGES)


def test_rows_of_both_kinds_go_into_one_batch(rollouts, stock, put):
    keys = [*put(rollouts, "ours")[:2], *put(stock, "theirs")[2:]]
    (given, _), (expected, _) = (model_inputs(fetch(k), **BY_ROWS) for k in (keys, put(stock, "again")))
    assert all(torch.equal(a[name], b[name]) for a, b in zip(given, expected, strict=True) for name in IMAGES)


def test_a_replayed_row_makes_no_pixel_where_it_is_rebuilt(rollouts, put, policy, monkeypatch):
    keys = put(rollouts, "p")
    (trajectory,) = read_trajectories(read_outcomes(keys[1:2], "train"), "train", step=1)
    with monkeypatch.context() as made_nowhere:
        made_nowhere.setattr(pixels._Processor, "resized", None)
        made_nowhere.setattr(type(policy[1].image_processor), "_preprocess", None)
        (row,) = rebuild_rows(trajectory, ModelInputs(*policy))
    original = plain(fetch(keys[1:2])["multi_modal_inputs"][0])
    assert row["multi_modal_inputs"]["pixel_values"] == original["pixel_values"]
    assert torch.equal(row["multi_modal_inputs"]["pixel_values"].tensor(), original["pixel_values"].tensor())


@ray.remote
def make_twice(data: TensorDict) -> tuple[int, list[torch.Tensor]]:
    """As a training process scores its rows and updates by them: how many screenshots it processed, and what came."""
    from arpo_verl.engines import pixels

    seen, resized = [], pixels._Processor.resized
    pixels._Processor.resized = lambda self, screenshot: seen.append(screenshot) or resized(self, screenshot)
    for _ in range(2):
        made = extract_multi_modal_inputs(data.get("multi_modal_inputs"))
    return len(seen), made["pixel_values"]


@pytest.mark.release
def test_they_go_through_rays_object_store_and_are_made_once_in_a_process(rollouts, put):
    data = fetch(put(rollouts, "p"))
    expected = extract_multi_modal_inputs(data["multi_modal_inputs"])["pixel_values"]
    num_processed, made = ray.get(make_twice.remote(data))
    assert torch.equal(made, expected) and num_processed == sum(SEEDS)


def test_they_survive_the_older_batches_of_verl(rollouts, put):
    """`DataProto` of arrays of objects: chunks, reordering, concatenation, pickles."""
    data = fetch(put(rollouts, "p"))
    rows = [plain(row) for row in data["multi_modal_inputs"]]
    batch = DataProto.from_dict(tensors={"x": torch.arange(4)}, non_tensors={"multi_modal_inputs": rows})
    batch.reorder(torch.tensor([2, 0, 3, 1]))
    again = pickle.loads(pickle.dumps(DataProto.concat(batch.chunk(2))))
    given = extract_multi_modal_inputs(again.non_tensor_batch["multi_modal_inputs"])
    expected = extract_multi_modal_inputs([rows[i] for i in (2, 0, 3, 1)])
    assert torch.equal(given["pixel_values"], expected["pixel_values"])


def test_a_row_of_another_agent_loop_is_made_as_verl_makes_it(rollouts, stock):
    output = rollouts.output("task", 1.0, seed=1)
    output.multi_modal_data = {"images": output.multi_modal_data["images"]}
    ids = torch.tensor([*output.prompt_ids, *output.response_ids])
    made, expected = (each.worker._compute_multi_modal_inputs(output, ids) for each in (rollouts, stock))
    assert made.keys() == expected.keys() and all(torch.equal(made[name], expected[name]) for name in expected)


def test_the_recipes_have_the_manager_whose_workers_make_no_pixel():
    from verl.utils.import_utils import load_class_from_fqn

    config = compose_recipe(ROOT / "recipes" / "embedded.yaml", [])
    name = config.actor_rollout_ref.rollout.agent.agent_loop_manager_class
    manager = load_class_from_fqn(name, "AgentLoopManager")(config, llm_client=None)
    assert manager.agent_loop_workers_class is GuiAgentLoopWorker
