"""Make the CPU a veRL platform: tensors stay in host memory, collectives go through gloo."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from arpo_verl.engines.upstream_patches import ONEDNN, PROCESS_GROUP

PLATFORM = "cpu"


def _peak_memory(*_: object) -> int:
    """Return the process's peak resident size in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _device_module() -> ModuleType:
    """Return a copy of `torch.cpu` with the further functions that veRL calls on every device module.

    It is a copy so that `torch.cpu` itself stays as torch made it.
    """
    module = ModuleType("arpo_verl_cpu_device")
    module.__dict__.update({name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("__")})
    module.__dict__.update(
        # veRL asks this before it empties an accelerator's memory, with a full garbage collection each time.
        is_available=lambda: False,
        device=lambda *_: contextlib.nullcontext(),
        device_count=lambda: 1,
        empty_cache=lambda: None,
        ipc_collect=lambda: None,
        manual_seed=torch.manual_seed,
        manual_seed_all=torch.manual_seed,
        get_rng_state=lambda *_: torch.get_rng_state(),
        set_rng_state=lambda state, *_: torch.set_rng_state(state),
        # This is a key of veRL's table of FLOPS.
        get_device_name=lambda *_: "CPU",
        get_device_properties=lambda *_: SimpleNamespace(name="CPU", total_memory=0),
        mem_get_info=lambda *_: (0, 0),
        memory_allocated=_peak_memory,
        memory_reserved=_peak_memory,
        max_memory_allocated=_peak_memory,
        max_memory_reserved=_peak_memory,
        reset_peak_memory_stats=lambda *_: None,
    )
    return module


class CpuPlatform(PlatformBase):
    """Implements veRL's platform interface on a machine without an accelerator."""

    _module: ModuleType | None = None

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        if self._module is None:
            self._module = _device_module()
        return self._module

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        # Detection must never choose the CPU, which would hide a GPU: only VERL_PLATFORM=cpu does.
        return False

    def current_device(self) -> torch.device:  # type: ignore[override]
        # Upstream's annotation says int, but veRL hands the value to `tensor.to`, where an index means an accelerator.
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        PROCESS_GROUP.check()  # upstream's own function asks for this name, ours does not
        return "gloo"

    def visible_devices_envvar(self) -> str:
        # Nothing reads this name: Ray 2.60 refuses `num_gpus=1` if CUDA_VISIBLE_DEVICES is set and empty.
        return "ARPO_VERL_CPU_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        # The trainer's resource check counts GPU or NPU only: the recipe gives Ray one logical GPU.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        ONEDNN.check()  # vLLM's worker asks before it takes new weights
        return False

    def cudart(self) -> Any:
        return None


def register() -> None:
    """Register the platform as `cpu`, for `VERL_PLATFORM=cpu`."""
    PlatformRegistry.register(platform=PLATFORM)(CpuPlatform)
