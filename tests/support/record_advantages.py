"""Loaded into the stock trainer by VERL_USE_EXTERNAL_MODULES: writes down what `replay_grpo` took and gave, which
replays there were, and with which store the sampler began.
"""

import json
import os
from pathlib import Path

import torch
import wrapt

from support.trajectory_digest import digest

FOLDER = Path(os.environ["ARPO_VERL_RECORDED"])


def _observe_estimator(core_algos) -> None:
    from arpo_verl.plugin import estimator  # noqa: F401  registers first, so that there is something to observe

    compute = core_algos.ADV_ESTIMATOR_REGISTRY["replay_grpo"]

    def observed(token_level_rewards, response_mask, index, **kwargs):
        advantages, returns = compute(token_level_rewards, response_mask, index, **kwargs)
        record = {
            "rewards": token_level_rewards.sum(-1),
            "advantages": (advantages * response_mask).sum(-1) / response_mask.sum(-1),
            "groups": [str(group) for group in index],
            "keys": [getattr(group, "key", None) for group in index],
            "is_replay": [getattr(group, "is_replay", False) for group in index],
        }
        number = len(list(FOLDER.glob("advantages-*.pt")))
        torch.save(record, FOLDER / f"advantages-{number:03d}.pt")
        return advantages, returns

    core_algos.ADV_ESTIMATOR_REGISTRY["replay_grpo"] = observed


def _observe_sampler(sampler) -> None:
    make, inject = sampler.Replayer.__init__, sampler.Replayer._inject

    def observed_make(self, *args, **kwargs):
        make(self, *args, **kwargs)
        (FOLDER / "store.json").write_text(json.dumps([digest(t) for t in self.store.trajectories()]))

    def observed_inject(self, batch, replacements):
        batch, replays = inject(self, batch, replacements)
        later = f"-{self._draw}" if self._draw else ""
        (FOLDER / f"replays-{self._step}{later}.json").write_text(json.dumps([digest(t) for t in replays.values()]))
        return batch, replays

    sampler.Replayer.__init__, sampler.Replayer._inject = observed_make, observed_inject


wrapt.register_post_import_hook(_observe_estimator, "verl.trainer.ppo.core_algos")
wrapt.register_post_import_hook(_observe_sampler, "arpo_verl.plugin.sampler")
