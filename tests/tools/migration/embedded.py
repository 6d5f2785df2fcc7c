"""What makes any recipe one for this machine: the embedded recipe's own options, but not what is trained and how."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from support import ROOT

# Of the algorithm, the sizes and the pace: these stay as they are.
KEPT = re.compile(
    r"data\.train_batch_size|actor_rollout_ref\.actor\.(ppo_.*|optim\..*)|actor_rollout_ref\.rollout\.(n|val_kwargs\..*)"
    r"|trainer\.(experiment_name|total_epochs|test_freq|save_freq)"
)


def embedded_overrides(*, policy: Path, tasks: Path) -> list[str]:
    """For a recipe over osworld_full."""
    recipe = yaml.safe_load((ROOT / "recipes" / "embedded.yaml").read_text())
    options = {
        name: value
        for section in recipe
        if section not in ("hydra", "defaults")
        for name, value in _flat(recipe, section)
    }
    options |= {"actor_rollout_ref.model.path": str(policy), "data.train_files": str(tasks)}
    options |= {"data.val_files": str(tasks), "environment.num_desktops": 8, "trainer.nnodes": 1}
    # Limits of a 1080p screen and of an engine that is not here.
    options |= {"actor_rollout_ref.rollout.max_model_len": None, "gui_agent.max_screenshots": None}
    options |= {name: 0 for name in ("environment.action_pause_s", "environment.guest_retry_s")}
    options |= {f"actor_rollout_ref.actor.fsdp_config.{name}_offload": False for name in ("param", "optimizer")}
    limits = [f"~data.mm_processor_kwargs.{name}_pixels" for name in ("min", "max")]  # the policy has its own
    return limits + [f"++{name}={json.dumps(value)}" for name, value in options.items() if not KEPT.fullmatch(name)]


def _flat(tree: dict[str, Any], name: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    value = tree[name]
    if isinstance(value, dict):
        for child in value:
            yield from _flat(value, child, f"{prefix}{name}.")
    else:
        yield f"{prefix}{name}", value
