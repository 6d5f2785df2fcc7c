"""The names of vLLM that importing EasyR1 asks for. Nothing here works: the tests' worker writes replies by itself."""

import sys
from types import ModuleType

NAMES = {
    "distributed": "",
    "distributed.parallel_state": "",
    "lora": "",
    "lora.models": "LoRAModel",
    "lora.request": "LoRARequest",
    "lora.utils": "get_adapter_absolute_path",
    "lora.worker_manager": "LRUCacheWorkerLoRAManager",
}
LLM, RequestOutput, SamplingParams = (type(name, (), {}) for name in ("LLM", "RequestOutput", "SamplingParams"))

for name, members in NAMES.items():
    module = ModuleType(f"{__name__}.{name}")
    module.__path__ = []
    for member in members.split():
        setattr(module, member, type(member, (), {}))
    sys.modules[module.__name__] = module
    parent, _, last = module.__name__.rpartition(".")
    setattr(sys.modules[parent], last, module)
