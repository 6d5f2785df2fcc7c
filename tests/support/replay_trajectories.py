"""Small groups, stores and stored trajectories for tests of replay."""

from arpo_verl.replay.groups import Group, Outcome
from arpo_verl.replay.store.success_store import StoredTrajectory, SuccessStore


def outcome(session, success, uid="u", task_id="a", format_error=False, reward=None, stop="finished", turns=3, **more):
    reward = success - 0.5 * format_error if reward is None else reward
    return Outcome(f"{uid}_{session}_0", task_id, success, reward, format_error, stop, turns, **more)


def group(*scores, task_id="a", uid="u", **kwargs):
    return Group(task_id, tuple(outcome(i, s, uid=uid, task_id=task_id, **kwargs) for i, s in enumerate(scores)))


def store_of(*trajectories):
    store = SuccessStore(8)
    for trajectory in trajectories:
        store.add(trajectory)
    return store


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
