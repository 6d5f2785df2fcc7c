"""What tells one stored trajectory from another, small enough to write down."""

from hashlib import sha256


def digest(trajectory) -> list:
    return [trajectory.task_id, trajectory.step, sha256(str(list(trajectory.response_ids)).encode()).hexdigest()]
