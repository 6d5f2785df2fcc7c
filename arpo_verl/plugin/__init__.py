"""Register everything that stock veRL loads. This module is the entry point `verl.plugins`; it holds no logic.

The modules, in the order of a training step:

- before anything starts: `run_callback` has the recipe checked and estimated (`recipe/`), and locks the run's folder.
  `run_folder` asks whether every node sees the folder. `patches` has our versions of veRL's functions;
- what the recipe says: `settings`; in the trainer's process `trainer_state`, and `run_watch`, which ends the run when
  it cannot go on;
- tasks: `dataset`;
- episodes: `job_desktops` makes the pool, `loop_manager` starts the rollout workers, and `prompts` gives them prompts.
  There `agent_loop` plays an episode, and `sent_images` takes its screenshots to the engine;
- a batch, in the trainer's process: `plugin/sampler.py: Replayer.process` reads it (`rows`, over `queue`).
  A method of `replay/methods` chooses successes for groups, and `plugin/rows.py: inject` (with `model_inputs`) puts
  each in a failure's place or beside the group. The sampler then stores the batch's own successes and forms
  mini-batches (`padding`). `records/run_records.py`, `step_metrics` and `validation_samples` report it;
- advantages: `plugin/estimator.py: compute_replay_grpo_advantage`;
- scoring and update, in the training processes: `shared_encoder` divides a split sequence's screenshots among its GPUs;
- checkpoints: `checkpoints` saves and restores the store, and saves what a `resume` depends on. `seeding` makes a store
  to start with.

`import verl` loads this module in every process, Ray workers and other people's runs included, and hides its errors. So
it imports next to nothing, waits with each registration for veRL's own module, and logs an error instead of raising it.
Outside of a run of ours (`lib/run_marker.py`) it registers names, and changes nothing.
"""

from __future__ import annotations

import importlib
import logging
import os
from types import ModuleType
from typing import Any

from arpo_verl.engines import upstream_patches as upstream
from arpo_verl.engines.vllm import segments as vllm_segments
from arpo_verl.lib.post_import import attempt, when_imported
from arpo_verl.lib.run_marker import is_our_run
from arpo_verl.versions import SUPPORTED_VERL

logger = logging.getLogger(__name__)

GUI_AGENT = "gui_agent"


def _register_agent_loop(agent_loop: ModuleType) -> None:
    # By name only: Hydra imports the class in the worker.
    agent_loop._agent_loop_registry[GUI_AGENT] = {"_target_": "arpo_verl.plugin.agent_loop.GuiAgentLoop"}


def _register_advantage_estimator(core_algos: ModuleType) -> None:
    from arpo_verl.plugin import estimator  # noqa: F401  registers on import


def _replacement(name: str, upstream: Any) -> Any:
    from arpo_verl.plugin.patches import replacement

    return replacement(name, upstream)


def register() -> None:
    """Register everything with the installed veRL. Safe to call more than once."""
    if os.environ.get("VERL_PLATFORM", "").lower() == "cpu":
        attempt("verl.plugin.platform", lambda: importlib.import_module("arpo_verl.engines.cpu").register())
    when_imported("verl.experimental.agent_loop.agent_loop", _register_agent_loop)
    when_imported("verl.trainer.ppo.core_algos", _register_advantage_estimator)
    if upstream.may_patch_verl():
        vllm_segments.patch()  # vLLM also does it in its processes, unless VLLM_PLUGINS leaves us out
        of_every_run = (upstream.ROLLOUT_CORRECTION, upstream.EQUAL_LENGTHS, upstream.TASK_ORDER)
        for patch in (*of_every_run, upstream.SHARED_ENCODER):
            patch.when_imported(_replacement)
    elif is_our_run():
        logger.warning("arpo_verl registers names only: it supports veRL %s", ", ".join(SUPPORTED_VERL))


register()
