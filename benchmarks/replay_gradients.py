"""What an off-policy correction does to the gradient of replays: the same replays and the same policy for each.

    python benchmarks/replay_gradients.py CHECKPOINT --policy POLICY [--json PATH] [--bound RHO]

CHECKPOINT is a run's `checkpoints/global_step_<N>`, POLICY the model that the run began with. Every success in the
checkpoint's store that carries log-probs is scored by the checkpoint's policy, and the gradient of its loss is taken as
that of a replay with a positive advantage. Printed by age, in updates between its maker and the policy: how far rho is
spread, what weights a correction makes of it, and how far the gradients of single replays lie from their mean, as a
multiple of the mean's length (`noise`: its square is the number of replays after which mean and noise are equal).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from figures import Arguments, write
from transformers import Qwen2_5_VLForConditionalGeneration
from verl.utils.tokenizer import hf_processor

from arpo_verl.policy.sequences import ImageStore, TokenSequence, reply_log_probs
from arpo_verl.replay.config import CORRECTIONS, ReplayConfig
from arpo_verl.replay.correction import correction_metrics, correction_weights
from arpo_verl.replay.store.persistence import load_store
from arpo_verl.replay.store.success_store import StoredTrajectory
from arpo_verl.rollout.vision import decode_screenshot

AGES = {"1 to 3": range(1, 4), "4 to 7": range(4, 8), "8 and more": range(8, 10**6), "all": range(1, 10**6)}


@dataclass
class Gradients:
    """Sums over the gradients of single replays."""

    count: int = 0
    total: torch.Tensor | None = None
    squares: float = 0.0
    weights: list[torch.Tensor] = field(default_factory=list)
    log_ratios: list[torch.Tensor] = field(default_factory=list)

    def add(self, gradient: torch.Tensor, weights: torch.Tensor, log_ratio: torch.Tensor) -> None:
        self.count += 1
        self.total = gradient.clone() if self.total is None else self.total + gradient
        self.squares += gradient.square().sum().item()
        self.weights.append(weights)
        self.log_ratios.append(log_ratio)

    def figures(self, bound: float) -> dict[str, float]:
        assert self.total is not None
        mean = self.total / self.count
        variance = max(0.0, self.squares / self.count - mean.square().sum().item())
        metrics = correction_metrics(torch.cat(self.log_ratios), torch.cat(self.weights), bound)
        return {**metrics, "gradient_norm": mean.norm().item(), "noise": variance**0.5 / mean.norm().item()}


def load_policy(checkpoint: Path, policy: Path) -> Qwen2_5_VLForConditionalGeneration:
    """The policy as it was after the checkpoint's step; of a run with one training process."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(policy, dtype=torch.float32)
    shard = torch.load(checkpoint / "actor" / "model_world_size_1_rank_0.pt", weights_only=False, map_location="cpu")
    model.load_state_dict({name: tensor.to_local() for name, tensor in shard.items()})
    return model.eval()


class Scorer:
    """Log-probs of stored trajectories by one policy."""

    def __init__(self, model: Qwen2_5_VLForConditionalGeneration, policy: Path) -> None:
        self._model, self._processor = model, hf_processor(str(policy))

    def log_probs(self, trajectory: StoredTrajectory) -> torch.Tensor:
        """Of the tokens that the policy wrote, with their graph."""
        images = ImageStore(self._processor)
        return reply_log_probs(self._model, images, [self._sequence(trajectory, images)])[0]

    def _sequence(self, trajectory: StoredTrajectory, images: ImageStore) -> TokenSequence:
        keys = tuple(images.add(decode_screenshot(screenshot)) for screenshot in trajectory.screenshots)
        ids = torch.tensor([*trajectory.prompt_ids, *trajectory.response_ids])
        mask = torch.tensor([0] * len(trajectory.prompt_ids) + list(trajectory.response_mask), dtype=torch.bool)
        is_image = (ids == self._model.config.image_token_id).int()
        positions, _ = self._processor.get_rope_index(
            input_ids=ids[None], mm_token_type_ids=is_image[None], image_grid_thw=images.grids(keys)
        )
        return TokenSequence(trajectory.task_id, ids, mask, positions[:, 0], keys)


def replay_gradients(
    scorer: Scorer, parameters: Sequence[torch.nn.Parameter], trajectory: StoredTrajectory, bound: float
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """For each correction: its name, the gradient of the replay's loss, the weights, and log rho of its tokens."""
    assert trajectory.rollout_log_probs is not None
    log_probs = scorer.log_probs(trajectory)
    makers = torch.tensor(trajectory.rollout_log_probs)[torch.tensor(trajectory.response_mask, dtype=torch.bool)]
    log_ratio = log_probs.detach() - makers
    for correction in CORRECTIONS:
        config = ReplayConfig(correction=correction, correction_bound=bound)
        weights = correction_weights(log_ratio, config)
        loss = -(weights * log_probs).sum()
        gradient = torch.autograd.grad(loss, parameters, retain_graph=True)
        yield correction, torch.cat([part.flatten() for part in gradient]), weights, log_ratio


def study(checkpoint: Path, policy: Path, bound: float) -> dict[str, Any]:
    """Figures by age and correction."""
    step = int(checkpoint.name.removeprefix("global_step_"))
    model = load_policy(checkpoint, policy)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    scorer, sums = Scorer(model, policy), defaultdict(Gradients)
    for trajectory in load_store(checkpoint / "replay", fingerprint=None).trajectories():
        if trajectory.rollout_log_probs is None or trajectory.step < 1:
            continue
        ages = [name for name, ages in AGES.items() if step - trajectory.step + 1 in ages]
        for correction, *parts in replay_gradients(scorer, parameters, trajectory, bound):
            for age in ages:
                sums[age, correction].add(*parts)
    return {
        age: {"replays": sums[age, CORRECTIONS[0]].count}
        | {correction: sums[age, correction].figures(bound) for correction in CORRECTIONS}
        for age in AGES
        if (age, CORRECTIONS[0]) in sums
    }


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--bound", type=float, default=ReplayConfig.correction_bound, help="replay.correction_bound")
    arguments = parser.parse()
    figures = study(arguments.checkpoint, arguments.policy, arguments.bound)
    columns = ["ratio_std", "ratio_beyond_bound", "weight_mean", "weight_std", "weight_ess", "gradient_norm", "noise"]
    print(f"{'age':12}{'replays':>8} {'correction':11}" + "".join(f"{name:>19}" for name in columns))
    for age, of_age in figures.items():
        for correction in CORRECTIONS:
            values = "".join(f"{of_age[correction][name]:19.3f}" for name in columns)
            print(f"{age:12}{of_age['replays']:8} {correction:11}{values}")
    write({"bound": arguments.bound, "ages": figures}, arguments.json)


if __name__ == "__main__":
    main()
