"""What one episode came to, for a person."""

from __future__ import annotations

from arpo_verl.rollout.episode import Episode
from arpo_verl.tasks.schema import INFEASIBLE
from arpo_verl.types import Fail, StopReason


def describe(episode: Episode) -> str:
    """How it ended, what each metric saw and returned, and the score, in lines for a terminal."""
    lines = [f"stopped: {episode.stop_reason.value} after {len(episode.turns)} replies"]
    if episode.turns[-1].parse_error is not None:
        lines.append(f"  the last reply is malformed: {episode.turns[-1].parse_error}")
    for call in episode.metrics:
        lines += [
            f"  {call.metric} returned {call.returned}",
            f"    found    {call.result}",
            f"    expected {call.expected}",
        ]
    if not episode.metrics:
        lines.append(f"  no metric was called: {_without_metric(episode)}")
    lines.append(f"score {episode.success:g}")
    return "\n".join(lines)


def _without_metric(episode: Episode) -> str:
    said_so = any(isinstance(action, Fail) for turn in episode.turns for action in turn.actions)
    if episode.task.spec["evaluator"].get("func") == INFEASIBLE:
        return "the task is infeasible, and the agent " + ("said so" if said_so else "did not say so")
    if episode.stop_reason is StopReason.DESKTOP_ENDED:
        return "the agent ended its own desktop"
    if episode.stop_reason is StopReason.FAILED:
        return "the agent gave up on a task that can be done"
    return "the evaluator found nothing to judge"
