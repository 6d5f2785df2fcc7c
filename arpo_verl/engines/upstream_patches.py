"""List every change that we make to the code of veRL, vLLM and torchdata where they have no plugin point.
docs/architecture.md has the table.

Patches are applied only in the processes of a run of ours (`lib/run_marker.py`), and no import fails because of them.

A patch counts only in the process that needs it, and it can be lost there silently. Upstream may have renamed the
function, another plugin may have imported it by name before us, or may replace ours later, or our plugin is not loaded
in that process. So `Patch.apply` replaces the function in every module that already has it. And the code that needs the
patch first calls `Patch.check`, which raises an error if a module has upstream's own function.

This module imports nothing of upstream, since some callers of `check` must load fast. Our versions of upstream's
functions are in the rooms: `plugin/patches.py`, `plugin/shared_encoder.py`, `engines/cpu/patch.py`,
`engines/vllm/segments.py`, `engines/vllm/images.py`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from arpo_verl.errors import PatchLostError
from arpo_verl.lib.post_import import when_imported
from arpo_verl.lib.run_marker import is_our_run
from arpo_verl.versions import OWN_CACHES, installed_version, is_older, is_supported_verl


@dataclass(frozen=True)
class Patch:
    """Functions of an upstream module that we replace, or a flag of it that we set."""

    module: str
    """The module that defines them upstream."""
    names: tuple[str, ...]
    """Names of functions, or of methods as `Class.method`."""
    without: str
    """What happens without the patch, as a sentence of the error."""
    until: str | None = None
    """The first version of upstream's package that needs no patch."""
    _ours: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Our replacements in this process, by name."""

    def when_imported(self, replace: Callable[[str, Any], Any]) -> None:
        """Apply the patch once upstream's module is imported, or now if it already is."""
        when_imported(self.module, lambda module: self.apply(module, replace))

    def apply(self, module: ModuleType, replace: Callable[[str, Any], Any]) -> None:
        """Replace all functions or none, also in modules that have imported them by name. Doing it again is harmless.

        Args:
            module: upstream's module.
            replace: gets a name of `names` and upstream's value, and returns ours.

        Raises:
            AttributeError: upstream no longer has something of this name.
        """
        with contextlib.ExitStack() as undo:
            for name in self.names:
                owner, attribute, upstream = _find(module, name)
                if self._is_ours(name, upstream):
                    continue
                ours = self._ours[name] = replace(name, upstream)
                # Many values are equal to a flag, so it is set only in its module.
                is_taken = owner is module and callable(upstream)
                for taker, taken_as in [(owner, attribute), *(_takers(upstream) if is_taken else ())]:
                    setattr(taker, taken_as, ours)
                    undo.callback(setattr, taker, taken_as, upstream)
            undo.pop_all()

    def is_needed(self) -> bool:
        """Return whether the installed version of upstream's package needs it; a build without a version does."""
        installed = installed_version(self.module.partition(".")[0])
        return installed is None or self.until is None or is_older(installed, self.until)

    def check(self) -> None:
        """Refuse to continue without the patch. A process that has not imported upstream's module does not need it.

        Raises:
            PatchLostError: names where upstream's own function is, or that upstream no longer has it.
        """
        module = sys.modules.get(self.module)
        places = [] if module is None else [place for name in self.names for place in self._unpatched(module, name)]
        if places:
            cause = (
                "Another plugin may have put its own function there, or VERL_USE_EXTERNAL_PLUGINS leaves arpo_verl out."
                if is_our_run()
                else "It lacks ARPO_VERL_RUN=1, which `arpo` sets in ray_kwargs.ray_init.runtime_env.env_vars."
            )
            raise PatchLostError(
                f"This process runs {', '.join(places)} without arpo_verl's patch. {self.without} {cause} "
                "Correct that, and start the same command again: it resumes from the last checkpoint."
            )

    def _unpatched(self, module: ModuleType, name: str) -> Iterator[str]:
        """Yield where upstream's package has something other than ours: in its own module, or imported by name."""
        try:
            owner, attribute, value = _find(module, name)
        except AttributeError:
            yield f"{self.module}.{name} (which is not there)"
            return
        if not self._is_ours(name, value):
            yield f"{self.module}.{name}"
        if owner is not module:
            return
        package = f"{self.module.partition('.')[0]}."
        for other in [other for other in list(sys.modules) if other.startswith(package) and other != self.module]:
            namespace = getattr(sys.modules[other], "__dict__", {})
            if attribute in namespace and not self._is_ours(name, namespace[attribute]):
                yield f"{other}.{attribute}"

    def _is_ours(self, name: str, value: Any) -> bool:
        """Return whether it is ours, or wraps ours as `functools.wraps` records it."""
        if name not in self._ours:
            return False
        while value is not self._ours[name]:
            if not hasattr(value, "__wrapped__"):
                return False
            value = value.__wrapped__
        return True


def _find(module: ModuleType, name: str) -> tuple[Any, str, Any]:
    """Return the module or class that has the attribute, the attribute's name and its value."""
    class_name, _, attribute = name.rpartition(".")
    try:
        owner = getattr(module, class_name) if class_name else module
        return owner, attribute, getattr(owner, attribute)
    except AttributeError as error:
        raise AttributeError(f"{name} is not there") from error


def _takers(upstream: Any) -> list[tuple[ModuleType, str]]:
    """Return the modules that have this function, each with its name for it."""
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    return [(module, name) for module in modules for name, value in list(vars(module).items()) if value is upstream]


# In the trainer's process; checked before its first step.
ROLLOUT_CORRECTION = Patch(
    "verl.trainer.ppo.rollout_corr_helper",
    ("compute_rollout_correction_and_add_to_batch",),
    "It would weigh replays without recorded log-probs as if they were certain.",
)

# In the trainer's process; checked by the training dataset.
TASK_ORDER = Patch(
    "torchdata.stateful_dataloader.stateful_dataloader",
    ("StatefulDataLoader.load_state_dict",),
    "It would use the task order of the checkpoint, or silently end.",
)

# In the training processes; checked where a row's screenshots arrive.
EQUAL_LENGTHS = Patch(
    "verl.utils.tensordict_utils",
    ("maybe_fix_3d_position_ids",),
    "It fails on rows that are all equally long.",
)
# The same, where a sequence is split over GPUs. The results are the same without it, so nobody checks it.
SHARED_ENCODER = Patch(
    "verl.models.transformers.monkey_patch",
    ("apply_monkey_patch",),
    "Each GPU of a sequence would encode all of its screenshots.",
)

# On a CPU: in the training processes, and in vLLM's workers. The platform checks both.
PROCESS_GROUP = Patch(
    "verl.utils.distributed",
    ("initialize_global_process_group_ray",),
    "It asks torch for a process group that names the CPU twice, which torch refuses.",
)
# On a CPU, in the training processes. Their results are the same without it, so nobody checks it.
LOG_PROBS = Patch(
    "verl.utils.torch_functional",
    ("logprobs_from_logits_v2",),
    "A small model's update takes a sixth longer.",
)
ONEDNN = Patch("vllm._custom_ops", ("_supports_onednn",), "vLLM would take the trainer's weights only once.")

# In every process of vLLM. Training does not depend on it, so nobody checks it.
SEGMENTS = Patch(
    "vllm.distributed.device_communicators.shm_broadcast",
    ("ShmRingBuffer.__init__",),
    "The shared memory of an engine that is killed would stay.",
)

# In every process of vLLM. Each checks what the other processes send: `engines/vllm/images.py`.
IMAGE_CACHES = Patch(
    "vllm.multimodal.registry",
    tuple(
        f"MultiModalRegistry.{name}_from_config"
        for name in ("processor_cache", "engine_receiver_cache", "worker_receiver_cache")
    ),
    "A request could see another episode's screenshots.",
    until=OWN_CACHES,
)


def may_patch_verl() -> bool:
    """Return whether this process belongs to a run of ours, with a veRL whose functions we know."""
    return is_our_run() and is_supported_verl(installed_version("verl") or "")


def all_patches() -> dict[str, Patch]:
    """Return all patches by name, in the order of this list."""
    return {name: value for name, value in globals().items() if isinstance(value, Patch)}
