"""A stored success may be somebody else's: one that would end a run where it is replayed is found before."""

import dataclasses

import pytest
from support.pictures import screenshot

from arpo_verl.errors import ReplayError
from arpo_verl.plugin.model_inputs import ModelInputs
from arpo_verl.plugin.rows import check_replayable, replay_tag
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


def with_first(shot, success):
    return {"screenshots": [shot, *success.screenshots[1:]]}


def test_a_sound_one_passes(success, inputs):
    check_replayable(success, inputs)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda success: with_first(success.screenshots[0][:-200], success), "a picture of .* bytes is broken"),
        (lambda success: with_first(b"no picture", success), "a picture must be PNG"),
        (lambda success: with_first(screenshot(1, (320, 240)), success), "visual tokens, got"),
        (lambda success: {"response_ids": [*success.response_ids[:-1], 10**6]}, "token ids must be below"),
        (lambda success: {"mm_processor_kwargs": {"do_rescale": False}}, "this run's, got do_rescale=False"),
        (lambda success: {"mm_processor_kwargs": {"max_pixels": "1"}}, "this run's, got max_pixels='1'"),
        (lambda success: {"mm_processor_kwargs": {"max_pixels": 1}}, "cannot be replayed"),
        (
            lambda success: {"task_id": "\x1b[2Ja", "response_ids": [10**6] * len(success.response_ids)},
            r"success of task \?\[2Ja in step 1",
        ),
    ],
)
def test_one_that_would_end_the_run_is_refused(damage, says, success, inputs):
    with pytest.raises(ReplayError, match=says):
        check_replayable(dataclasses.replace(success, **damage(success)), inputs)


@pytest.mark.parametrize("version", ["3", -1, 10**19, 1.5, None, True])
def test_a_policy_version_that_is_none_is_not_put_on_a_row(version, success):
    """veRL makes an array of whole numbers of all of a batch's."""
    odd = dataclasses.replace(success, extra_fields={"min_global_steps": version, "max_global_steps": 2})
    tag = replay_tag({"min_global_steps": 7, "max_global_steps": 7}, odd, odd.rows[0])
    assert (tag["min_global_steps"], tag["max_global_steps"]) == (7, 2)
