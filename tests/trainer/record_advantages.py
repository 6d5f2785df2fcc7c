"""Loaded into the stock trainer by VERL_USE_EXTERNAL_MODULES: writes down what `replay_grpo` took and gave."""

import os
from pathlib import Path

import torch
import wrapt


def _observe(core_algos) -> None:
    from arpo_verl.replay import estimator  # noqa: F401  registers first, so that there is something to observe

    compute = core_algos.ADV_ESTIMATOR_REGISTRY["replay_grpo"]
    folder = Path(os.environ["ARPO_VERL_ADVANTAGES_DIR"])

    def observed(token_level_rewards, response_mask, index, **kwargs):
        advantages, returns = compute(token_level_rewards, response_mask, index, **kwargs)
        record = {
            "rewards": token_level_rewards.sum(-1),
            "advantages": (advantages * response_mask).sum(-1) / response_mask.sum(-1),
            "groups": [str(group) for group in index],
        }
        torch.save(record, folder / f"{len(list(folder.iterdir())):03d}.pt")
        return advantages, returns

    core_algos.ADV_ESTIMATOR_REGISTRY["replay_grpo"] = observed


wrapt.register_post_import_hook(_observe, "verl.trainer.ppo.core_algos")
