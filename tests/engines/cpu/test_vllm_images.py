"""vLLM's own image caches, as they are: why ours takes their place, and what of vLLM it leans on."""

from __future__ import annotations

import json

import pytest
from support import ROOT

from arpo_verl.versions import OWN_CACHES, is_older

pytestmark = pytest.mark.vllm

# In the other environment: in this one vLLM cannot be.
COMMON = """
import json, multiprocessing, os, pickle, uuid
import torch
from types import SimpleNamespace
os.environ["VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME"] = f"test_{uuid.uuid4().hex}"
from vllm.multimodal import MULTIMODAL_REGISTRY as registry
from vllm.multimodal import cache as caches
from vllm.multimodal.inputs import (
    MultiModalFeatureSpec, MultiModalFieldElem, MultiModalFlatField, MultiModalBatchedField, MultiModalKwargsItem,
    PlaceholderRange,
)
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

PATCHES = 400
multimodal = SimpleNamespace(
    mm_processor_cache_gb=8 * 1e6 / 2**30, mm_shm_cache_max_object_size_mb=1, mm_processor_cache_type="shm"
)
model = SimpleNamespace(get_multimodal_config=lambda: multimodal)
config = SimpleNamespace(model_config=model, parallel_config=SimpleNamespace(world_size=1))

def image(number):
    pixels = torch.full((PATCHES, 1176), float(number), dtype=torch.bfloat16)
    return MultiModalKwargsItem({
        "pixel_values": MultiModalFieldElem(pixels, MultiModalFlatField(slices=[[slice(0, PATCHES)]])),
        "image_grid_thw": MultiModalFieldElem(torch.tensor([1, 20, 20]), MultiModalBatchedField(keep_on_cpu=True)),
    })

def prepared(sender, numbers):
    hashes = [str(number) for number in numbers]
    missing = [None if there else (image(n), []) for n, there in zip(numbers, sender.is_cached(hashes))]
    for each in hashes:
        sender.touch_sender_cache_item(each)
    items = [item for item, _ in sender.get_and_update(missing, hashes)]
    return [
        MultiModalFeatureSpec(data=item, modality="image", identifier=each, mm_hash=each,
                              mm_position=PlaceholderRange(offset=100 * n, length=100))
        for n, (item, each) in enumerate(zip(items, hashes))
    ]

def seen(features):
    return [float(each.data["pixel_values"].data[0, 0]) for each in features]
"""

HAZARDS = (
    COMMON
    + """
from vllm.distributed.device_communicators.shm_object_storage import MsgpackSerde
sender = caches.ShmObjectStoreSenderCache(config)
receiver = caches.ShmObjectStoreReceiverCache(config, multiprocessing.Lock())
copied, decode = [], MsgpackSerde.deserialize
def counted(self, view):
    copied.append(len(view))
    return decode(self, view)
MsgpackSerde.deserialize = counted
for turn in (1, 2, 3):
    features = prepared(sender, range(turn))
    assert seen(receiver.get_and_update_features(features)) == list(range(turn))
answers = {"copied": len(copied)}

# A request that is aborted before a worker saw it, then others of one image each, all of them read.
sender.clear_cache()
prepared(sender, [100])
cached = 0
for number in range(101, 121):
    features = prepared(sender, [number])
    cached += "address" in features[0].data
    receiver.get_and_update_features(features)
answers["cached_behind_dropped"] = cached

# A request from before the cache was cleared, read after another picture came.
sender.clear_cache()
left_over = prepared(sender, [7])
sender.clear_cache()
prepared(sender, [8])
try:
    answers["seen_for_7"] = seen(receiver.get_and_update_features(left_over))
except Exception as error:
    answers["seen_for_7"] = type(error).__name__
sender.close()
print(json.dumps(answers))
"""
)

OURS = (
    COMMON
    + """
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.multimodal import utils
registry._get_cache_type = lambda vllm_config: "shm"
sender = registry.processor_cache_from_config(config)
holder = registry.engine_receiver_cache_from_config(config)
reader = registry.worker_receiver_cache_from_config(config, multiprocessing.Lock())
assert sender and {type(each).__module__ for each in (sender, holder, reader)} == {"arpo_verl.engines.vllm.images"}
encoder, decoder = MsgpackEncoder(), MsgpackDecoder(list[MultiModalFeatureSpec])
sizes = []
for turn in (1, 2, 3):
    features = prepared(sender, range(turn))
    message = encoder.encode(features)
    sizes.append(sum(len(memoryview(part).cast("B")) for part in message))
    in_core = holder.get_and_update_features(decoder.decode(message))
    if hasattr(utils, "strip_covered_mm_data"):  # from 0.29 on, for what the prefix cache covers
        in_core = utils.strip_covered_mm_data(in_core, 10**6)
    in_worker = reader.get_and_update_features(pickle.loads(pickle.dumps(in_core)))
    assert seen(in_worker) == list(range(turn))
    fields = [each.data["pixel_values"].field for each in in_worker]
    assert fields == [MultiModalFlatField(slices=[[slice(0, PATCHES)]])] * turn
    assert [each.data["image_grid_thw"].data.tolist() for each in in_worker] == [[1, 20, 20]] * turn
    sender.clear_cache()
stats = sender.make_stats(delta=True)
from vllm.multimodal.utils import group_and_batch_mm_kwargs
(_, number, batch), = group_and_batch_mm_kwargs([("image", each.data) for each in in_worker])
assert number == 3 and batch["pixel_values"].shape == (3 * PATCHES, 1176)
registry._get_cache_type = lambda vllm_config: "lru"
lru = [registry.processor_cache_from_config(config), registry.engine_receiver_cache_from_config(config)]
import inspect
from vllm.v1.engine.core import EngineCore, EngineCoreProc
from vllm.config import model as model_config
core = [inspect.getsource(each) for each in (EngineCore.preprocess_add_request, EngineCoreProc.process_input_sockets)]
answers = {
    "sizes": sizes, "hits": stats.hits, "total": stats.total, "lru": [type(each).__name__ for each in lru],
    "taken_in": "request.mm_features = self.mm_receiver_cache.get_and_update_features(" in core[0],
    "one_thread": "Cannot use --renderer-num-workers > 1 with the" in inspect.getsource(model_config),
    "fails_alone": "except Exception:\\n                            self._handle_request_preproc_error(req)" in core[1],
}
print(json.dumps(answers))
"""
)


def test_vllms_cache_in_shared_memory_is_not_safe(python, vllm_version):
    """When one of these fails, vLLM has mended it: what docs/vllm.md says of it is old."""
    answers = json.loads(python("-c", HAZARDS).splitlines()[-1])
    assert answers["copied"] == 1 + 2 + 3, "a worker copies all images of a new request"
    assert answers["cached_behind_dropped"] < 10, "one that nobody will read blocks the place of all others"
    left_over = [8] if is_older(vllm_version, "0.32") else "ValueError"
    assert answers["seen_for_7"] == left_over, "after `clear`, a request that is left over reads another picture"


def test_ours_takes_the_place_of_the_cache_in_shared_memory_alone(python, vllm_version):
    if not is_older(vllm_version, OWN_CACHES):
        pytest.skip("ours is not installed")
    answers = json.loads(python("-c", OURS).splitlines()[-1])
    assert max(answers["sizes"]) < 2000
    assert (answers["hits"], answers["total"]) == (0 + 1 + 2, 1 + 2 + 3)
    assert answers["lru"] == ["MultiModalProcessorSenderCache", "MultiModalReceiverCache"]
    assert answers["taken_in"] and answers["fails_alone"]
    assert answers["one_thread"], "more threads may prepare images now: docs/vllm.md"


def test_a_turn_sends_its_new_screenshot_alone(python, vllm_version, tmp_path):
    """By ours, or from the first vLLM whose own caches do so: the reason why ours is not installed there."""
    cache = "shm" if is_older(vllm_version, OWN_CACHES) else "lru"
    path = tmp_path / "figures.json"
    python(str(ROOT / "benchmarks" / "vllm_images.py"), "--alone", "--smoke", "--cache", cache, "--json", str(path))
    figures = json.loads(path.read_text())["alone"][vllm_version][cache]
    assert figures["turn15_over_turn2"] <= 1.3 and figures["processings_per_screenshot"] == 1
