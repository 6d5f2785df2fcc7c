"""A stored success may be somebody else's: one that would end a run where it is replayed is found before."""

import dataclasses

import pytest
from support.pictures import screenshot

from arpo_verl.errors import ReplayError
from arpo_verl.plugin.model_inputs import ModelInputs
from arpo_verl.plugin.rows import replay_tag
from arpo_verl.plugin.trainer_state import TrainerState
from arpo_verl.replay.rules import RowLimits, check_replayable
from arpo_verl.replay.trajectory import StoredTrajectory

LIMITS = {"min_pixels": 3136, "max_pixels": 2116800}


@pytest.fixture(scope="module")
def inputs(policy):
    return ModelInputs(*policy, LIMITS)


@pytest.fixture(scope="module")
def success(rollouts):
    output = rollouts.output("a", 1.0, seed=1)
    return StoredTrajectory(
        task_id="a",
        step=1,
        success=1.0,
        reward=1.0,
        prompt_ids=output.prompt_ids,
        response_ids=output.response_ids,
        response_mask=output.response_mask,
        rollout_log_probs=output.response_logprobs,
        screenshots=output.screenshots,
        mm_processor_kwargs={},
    )


@pytest.fixture(scope="module")
def check(inputs):
    """(a success, other limits) -> refuses it."""
    limits = RowLimits(10_000, 10_000, 10_000, len(inputs.tokenizer))
    return lambda success, **changes: check_replayable(success, limits._replace(**changes), inputs.check_stored)


def with_first(shot, success):
    return {"screenshots": [shot, *success.screenshots[1:]]}


def test_a_sound_one_passes_up_to_the_limits(success, check):
    prompt, response = len(success.prompt_ids), len(success.response_ids)
    check(success, first_prompt=prompt, response=response, total=prompt + response)


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ("first_prompt", "a prompt's tokens must be at most {} in this run"),
        ("response", "a response's tokens must be at most {}"),
        ("total", "a row's tokens must be at most {}"),
    ],
)
def test_one_that_is_longer_than_this_runs_rows_is_refused(success, check, limit, says):
    prompt, response = len(success.prompt_ids), len(success.response_ids)
    most = {"first_prompt": prompt, "response": response, "total": prompt + response}[limit] - 1
    with pytest.raises(ReplayError, match=says.format(most)):
        check(success, **{limit: most})


def test_each_row_of_a_window_is_checked_and_a_later_prompt_has_the_history():
    spans = [(30, 20, 0, 1), (60, 20, 0, 1), (60, 90, 0, 1)]
    columns = dict(prompt_ids=[1] * 150, response_ids=[1] * 130, response_mask=[1] * 130, rollout_log_probs=None)
    success = StoredTrajectory("a", 1, 1.0, 1.0, **columns, screenshots=[screenshot(1)], rows=spans)
    shown = []
    check_replayable(success, RowLimits(30, 90, 150, 2), lambda *row: shown.append(row))
    assert len(shown) == 3
    for limits in (RowLimits(29, 90, 150, 2), RowLimits(30, 89, 150, 2), RowLimits(30, 90, 149, 2)):
        with pytest.raises(ReplayError, match="must be at most"):
            check_replayable(success, limits, lambda *row: None)


DYNAMIC = ["actor_rollout_ref.actor.use_dynamic_bsz=true", "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2"]
LENGTHS = ["data.max_prompt_length=100", "data.max_response_length=400"]
A_GPU = ["actor_rollout_ref.actor.ppo_max_token_len_per_gpu=200"]
REFERENCE = ["algorithm.use_kl_in_reward=true", "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=190"]


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ([], (100, 400, 500)),
        (["actor_rollout_ref.rollout.max_model_len=450"], (100, 400, 450)),
        (A_GPU, (100, 400, 500)),  # not read
        ([*DYNAMIC, *A_GPU], (100, 400, 400)),
        ([*DYNAMIC, *A_GPU, *REFERENCE], (100, 400, 380)),
        (["+gui_agent.harness=a:b"], (500, 400, 500)),
    ],
)
def test_the_limits_are_those_of_the_recipe(compose, options, limits):
    assert TrainerState(compose(*LENGTHS, *options)).row_limits(7) == (*limits, 7)


def with_images_in_one_place(success):
    ids = [*success.prompt_ids, *success.response_ids]
    image = max(set(ids), key=ids.count)
    shown = [image] * ids.count(image)
    text = [token for token in ids if token != image]
    mask = [1] * len(shown)
    return dict(prompt_ids=text, response_ids=shown, response_mask=mask, rollout_log_probs=None, rows=())


def with_an_image_in_two_places(success):
    ids = list(success.response_ids)
    image = max(set(ids), key=ids.count)
    at = ids.index(image) + 3
    return {"response_ids": [*ids[:at], ids[-1], *ids[at:-1]]}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda success: with_first(success.screenshots[0][:-200], success), "a picture of .* bytes is broken"),
        (lambda success: with_first(b"no picture", success), "a picture must be PNG"),
        (lambda success: with_images_in_one_place(success), "shape mismatch"),
        (lambda success: with_an_image_in_two_places(success), "cannot be replayed"),
        (lambda success: with_first(screenshot(1, (320, 240)), success), "visual tokens, got"),
        (lambda success: {"response_ids": [*success.response_ids[:-1], 10**6]}, "token ids must be at most"),
        (lambda success: {"mm_processor_kwargs": {"do_rescale": False}}, "this run's, got do_rescale=False"),
        (lambda success: {"mm_processor_kwargs": {"max_pixels": "1"}}, "this run's, got max_pixels='1'"),
        (lambda success: {"mm_processor_kwargs": {"max_pixels": 1}}, "cannot be replayed"),
        (
            lambda success: {"task_id": "\x1b[2Ja", "response_ids": [10**6] * len(success.response_ids)},
            r"success of task \?\[2Ja in step 1",
        ),
    ],
)
def test_one_that_would_end_the_run_is_refused(damage, says, success, check):
    with pytest.raises(ReplayError, match=says):
        check(dataclasses.replace(success, **damage(success)))


@pytest.mark.parametrize("version", ["3", -1, 10**19, 1.5, None, True])
def test_a_policy_version_that_is_none_is_not_put_on_a_row(version, success):
    """veRL makes an array of whole numbers of all of a batch's."""
    odd = dataclasses.replace(success, extra_fields={"min_global_steps": version, "max_global_steps": 2})
    tag = replay_tag({"min_global_steps": 7, "max_global_steps": 7}, odd, odd.rows[0])
    assert (tag["min_global_steps"], tag["max_global_steps"]) == (7, 2)
