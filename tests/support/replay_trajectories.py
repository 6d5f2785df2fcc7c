"""Small stored trajectories for the tests of this folder."""

from arpo_verl.replay.store.success_store import StoredTrajectory


def stored(task_id="a", step=1, screenshots=(b"first",), tokens=2, **changes):
    values = dict(
        task_id=task_id,
        step=step,
        success=1.0,
        reward=1.0,
        prompt_ids=tuple(range(300, 300 + tokens)),
        response_ids=tuple(range(400, 400 + tokens)),
        response_mask=(1,) * tokens,
        rollout_log_probs=(-0.5,) * tokens,
        screenshots=tuple(screenshots),
    )
    return StoredTrajectory(**{**values, **changes})
