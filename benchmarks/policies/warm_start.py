"""Imitation of the expert, stopped early: the policy that RL starts from knows what to do, not yet reliably."""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from tqdm import tqdm

from policies.sequences import ImageStore, TokenSequence, reply_log_probs

if TYPE_CHECKING:
    from transformers import Qwen2_5_VLForConditionalGeneration

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WarmStartConfig:
    """How long and how hard the policy imitates."""

    target_success: float = 0.36
    """Stop once the expert's own replies have this probability, as a mean over the tasks, under sampling at
    temperature 1. It does not depend on the machine's speed, and needs no desktop. Desktops measure more (0.39 here was
    0.51 there, over 96 episodes): other words, or a click some pixels beside the expert's, may solve a task too."""
    floor: float = 0.0
    """Least probability of each single task. Imitation knows a few tasks well before it knows others at all; with a
    floor it goes on gently, on the tasks below it and some of the others, until each is solved now and then: as the
    paper's filter leaves them (a task is kept when the base model solves it at least once in 16 rollouts)."""
    learning_rate: float = 2e-3
    batch_size: int = 4
    """Demonstrations of one update."""
    warmup_updates: int = 30
    max_epochs: int = 120
    """Passes over the demonstrations after which it ends below the target, with a warning."""
    seed: int = 0
    """Of the order of demonstrations."""


@dataclass(frozen=True)
class WarmStartResult:
    """Where imitation ended."""

    epochs: int
    loss: float
    """Mean negative log-probability of a reply token in the last epoch, nats."""
    success_by_task: Mapping[str, float]
    """Probability of the expert's replies, all of an episode's together, in the order of the tasks."""

    @property
    def mean_success(self) -> float:
        return sum(self.success_by_task.values()) / len(self.success_by_task)


def imitate(
    model: Qwen2_5_VLForConditionalGeneration,
    images: ImageStore,
    sequences: Sequence[TokenSequence],
    config: WarmStartConfig,
) -> WarmStartResult:
    """Train `model` in place on the reply tokens of demonstrations until it is as good as `config` asks.

    The same model, demonstrations and config give the same weights on the same machine and number of threads.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / config.warmup_updates))
    order = random.Random(config.seed)
    pending, gentle = sequences, False
    progress = tqdm(range(1, config.max_epochs + 1), desc="imitation", unit="epoch")
    model.train()
    for epoch in progress:
        loss = _train_epoch(model, images, _batches(pending, config.batch_size, order), optimizer, schedule, config)
        success = estimate_success(model, images, sequences) if gentle or loss < _WORTH_ASKING else {}
        result = WarmStartResult(epoch, loss, success or dict.fromkeys((s.task_id for s in sequences), 0.0))
        progress.set_postfix(loss=f"{loss:.3f}", success=f"{result.mean_success:.2f}")
        if not gentle and result.mean_success < config.target_success:
            continue
        weak = [s for s in sequences if result.success_by_task[s.task_id] < config.floor]
        if not weak:
            break
        if not gentle:
            gentle, schedule = True, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: _GENTLE)
        others = [s for s in sequences if result.success_by_task[s.task_id] >= config.floor]
        pending = weak + order.sample(others, min(len(others), len(weak) // 2))
    else:
        logger.warning(
            "imitation ended at a mean success of %.2f (least: %.2f) after %d epochs, below target_success=%g or "
            "floor=%g; raise max_epochs",
            *(result.mean_success, min(result.success_by_task.values())),
            *(config.max_epochs, config.target_success, config.floor),
        )
    progress.close()
    model.eval()
    return result


@torch.no_grad()
def estimate_success(
    model: Qwen2_5_VLForConditionalGeneration,
    images: ImageStore,
    sequences: Sequence[TokenSequence],
    batch_size: int = 8,
) -> dict[str, float]:
    """Each task's probability that sampling at temperature 1 writes the expert's replies; mean over demonstrations."""
    totals = torch.zeros(len(sequences))
    for start in range(0, len(sequences), batch_size):
        log_probs, rows = reply_log_probs(model, images, sequences[start : start + batch_size])
        totals.index_add_(0, start + rows, log_probs)
    values: defaultdict[str, list[float]] = defaultdict(list)
    for sequence, total in zip(sequences, totals.exp().tolist(), strict=True):
        values[sequence.task_id].append(total)
    return {task_id: sum(of_task) / len(of_task) for task_id, of_task in values.items()}


# The estimate costs a third of an epoch; above this loss, nats a token, it is 0 to two digits for any demonstration.
_WORTH_ASKING = 0.25
# Of the learning rate, once only tasks below the floor are left.
_GENTLE = 0.25


def _train_epoch(
    model: Qwen2_5_VLForConditionalGeneration,
    images: ImageStore,
    batches: Iterator[list[TokenSequence]],
    optimizer: torch.optim.Optimizer,
    warmup: torch.optim.lr_scheduler.LRScheduler,
    config: WarmStartConfig,
) -> float:
    """One pass; returns the mean loss of a reply token."""
    total, tokens = 0.0, 0
    for batch in batches:
        log_probs, _ = reply_log_probs(model, images, batch)
        loss = -log_probs.mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warmup.step()
        total, tokens = total - log_probs.detach().sum().item(), tokens + len(log_probs)
    return total / tokens


def _batches(
    sequences: Sequence[TokenSequence], batch_size: int, order: random.Random
) -> Iterator[list[TokenSequence]]:
    shuffled = order.sample(list(sequences), len(sequences))
    for start in range(0, len(shuffled), batch_size):
        yield shuffled[start : start + batch_size]
