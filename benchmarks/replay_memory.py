"""What a stored success costs: bytes, seconds to put it into a batch, seconds to save and load many.

    python benchmarks/replay_memory.py [--smoke] [--json PATH] [--episodes N] [--stored N]

Episodes of 15 turns at 1920x1080 are recorded on an embedded desktop with real programs: windows open, move and
scroll, text is typed. They go through the agent loop's own conversation with UI-TARS-1.5's prompt and pixel limits, and
into the store as in training. The comparison is the row that training holds: float32 pixel values and ids, as the
reference implementation of ARPO stores them. Pixel values, grid and position ids are made anew from the store and
compared to the originals, bit by bit. 128 tasks x 8 are really stored: copies of the recorded episodes in which every
screenshot is made a file of its own (a comment in the PNG), so that none is shared. Injection runs on one core;
`injection_cpu_s` is what it computes, `injection_s` what it takes with all else that runs on the machine.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import random
import statistics
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
import queue_bytes
import requests
import torch
from figures import Arguments, machine, report
from PIL import Image
from policies.build import corpus_tokenizer
from verl.experimental.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics
from verl.utils import hf_processor, hf_tokenizer
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from arpo_verl import pixels
from arpo_verl.desktop.provider import EmbeddedProvider
from arpo_verl.plugin.model_inputs import ModelInputs
from arpo_verl.plugin.rows import rebuild_rows
from arpo_verl.replay.store.persistence import Fingerprint, load_store, save_store
from arpo_verl.replay.store.success_store import StoredTrajectory, SuccessStore
from arpo_verl.rollout.chat import ChatTokenizer
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.rollout.conversation import Generated, TokenConversation, TokenLimits
from arpo_verl.rollout.vision import decode_screenshot
from arpo_verl.types import Size, Task

SCREEN = Size(1920, 1080)
TURNS = 15
MAX_PIXELS = 2_116_800
"""UI-TARS-1.5's own."""
MIN_PIXELS = 256 * 28 * 28
MIB, GIB = 2**20, 2**30
TASKS, PER_TASK = 128, 8
REPLY = "Thought: {words}\nAction: click(start_box='<|box_start|>({x},{y})<|box_end|>')"

PROGRAMS = (
    "xterm -geometry 110x45 -e 'ls -lR /usr/share/doc | head -4000; exec bash'",
    "xterm -geometry 100x40 -e 'cat /usr/share/common-licenses/*; exec bash'",
    "mousepad /usr/share/common-licenses/GPL-3",
    "mousepad /usr/share/common-licenses/Apache-2.0",
    "pcmanfm /usr/share/icons",
    "pcmanfm /etc",
    "galculator",
    "xcalc",
    "xclock -update 1 -geometry 300x300",
)
ACTIONS = (
    "pyautogui.keyDown('alt'); pyautogui.drag({dx}, {dy}, duration=0.1); pyautogui.keyUp('alt')",
    "pyautogui.click(); pyautogui.typewrite('{word} ')",
    "pyautogui.click(); pyautogui.press('pagedown')",
    "pyautogui.scroll(-7)",
    "pyautogui.doubleClick()",
    "pyautogui.rightClick()",
    "pyautogui.hotkey('alt', 'tab')",
)
WORDS = "the window shows a list of files and I open next menu to change what text says before saving it".split()

Value = TypeVar("Value")


def timed(action: Callable[[], Value]) -> tuple[float, Value]:
    """Seconds that `action` takes, and what it returns."""
    start = time.perf_counter()
    value = action()
    return time.perf_counter() - start, value


# --- Episodes from a real desktop ------------------------------------------------------------------------------------


def record_episodes(count: int, seed: int) -> Iterator[list[bytes]]:
    """The screenshots of `count` episodes, each on a fresh desktop with other programs open."""
    provider = EmbeddedProvider(SCREEN)
    try:
        for number in range(count):
            if number == 0:
                provider.start_emulator()
            else:
                provider.revert_to_snapshot()
                provider.start_emulator()
            yield record_episode(provider, random.Random(seed + number))
    finally:
        provider.stop_emulator()


def record_episode(provider: EmbeddedProvider, rng: random.Random) -> list[bytes]:
    """Open four programs, then act until `TURNS` different screens were seen."""
    server = f"http://127.0.0.1:{provider.get_ip_address().split(':')[1]}"
    for command in rng.sample(PROGRAMS, 4):
        requests.post(f"{server}/setup/launch", json={"command": command, "shell": True}).raise_for_status()
    time.sleep(3)
    screenshots: list[bytes] = []
    while len(screenshots) < TURNS:
        screenshot = requests.get(f"{server}/screenshot").content
        if screenshot not in screenshots:
            screenshots.append(screenshot)
        act(server, rng)
    return screenshots


def act(server: str, rng: random.Random) -> None:
    """One random action at a random place."""
    place = f"pyautogui.moveTo({rng.randrange(60, 1860)}, {rng.randrange(60, 1020)}); "
    values = {"dx": rng.randint(-300, 300), "dy": rng.randint(-200, 200), "word": rng.choice(WORDS)}
    code = "import pyautogui; import time; pyautogui.FAILSAFE = False; " + place
    code += rng.choice(ACTIONS).format(**values)
    requests.post(f"{server}/execute", json={"command": ["python", "-c", code]}).raise_for_status()
    time.sleep(0.2)


# --- From screenshots to a stored trajectory --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Policy:
    """A Qwen2.5-VL processor with UI-TARS-1.5's limits, and what the agent loop and the sampler make of it."""

    inputs: ModelInputs
    chat: ChatTokenizer

    @classmethod
    def build(cls, folder: Path) -> Policy:
        """Made here and loaded through the folder, as veRL loads one."""
        from policies.tokenizer import CHAT_TEMPLATE
        from transformers import Qwen2_5_VLConfig, Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor

        size = {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS}
        tokenizer = corpus_tokenizer([" ".join(WORDS)] * 2)
        Qwen2_5_VLProcessor(
            image_processor=Qwen2VLImageProcessor(size=dict(size), patch_size=14, merge_size=2),
            tokenizer=tokenizer,
            video_processor=Qwen2VLVideoProcessor(size=dict(size), patch_size=14, merge_size=2),
            chat_template=CHAT_TEMPLATE,
        ).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        Qwen2_5_VLConfig().save_pretrained(folder)
        processor = hf_processor(str(folder))
        tokenizer = hf_tokenizer(str(folder))
        builder = create_continuous_token_builder(tokenizer, processor=processor, hf_model_type="qwen2_5_vl")
        return cls(ModelInputs(tokenizer, processor), ChatTokenizer.from_processor(tokenizer, processor, builder))

    def trajectory(self, screenshots: Sequence[bytes], rng: random.Random) -> StoredTrajectory:
        """The episode in tokens, with replies of some 100 of them and log-probs, as the sampler stores it."""
        sequence = asyncio.run(self._converse(screenshots, rng))
        return StoredTrajectory(
            task_id="task",
            step=1,
            success=1.0,
            reward=1.0,
            prompt_ids=sequence.prompt_ids,
            response_ids=sequence.response_ids,
            response_mask=sequence.response_mask,
            rollout_log_probs=sequence.response_log_probs,
            screenshots=screenshots,
            num_turns=2 * len(screenshots),
            extra_fields={"task_id": "task", "success": 1.0, "stop_reason": "finished", "num_turns": len(screenshots)},
            mm_processor_kwargs={},
        )

    async def _converse(self, screenshots: Sequence[bytes], rng: random.Random) -> Any:
        async def generate(token_ids: list[int], images: list[Image.Image], max_tokens: int) -> Generated:
            words = " ".join(rng.choices(WORDS, k=70))
            text = REPLY.format(words=words, x=rng.randrange(1932), y=rng.randrange(1092))
            ids = [*self.chat.tokenizer.encode(text, add_special_tokens=False), self.chat.end_id]
            return Generated(tuple(ids), tuple(-rng.expovariate(1) for _ in ids))

        conversation = TokenConversation(generate, self.chat, GuiAgentConfig(), TokenLimits(4096, 61440))
        conversation.open(Task("task", "Change the text and save it.", {}), SCREEN)
        unseen = [Image.new("RGB", (1, 1))] * len(screenshots)
        for number in range(len(screenshots)):
            if number:
                assert conversation.show(SCREEN) is None, "the episode must fit the recipe's 64K tokens"
            await conversation.reply(unseen)
        return conversation.rows[0]


def reference_bytes(fields: dict[str, Any]) -> int:
    """Of what the reference keeps of a trajectory: pixel values and grid, ids, masks, positions, log-probs."""
    names = ("input_ids", "responses", "response_mask", "position_ids", "rollout_log_probs")
    tensors = [fields[name] for name in names] + list(fields["multi_modal_inputs"].values())
    return sum(tensor.nbytes for tensor in tensors)


def original_inputs(trajectory: StoredTrajectory, policy: Policy) -> tuple[dict[str, Any], torch.Tensor]:
    """Pixel values, grid and position ids as veRL's own rollout worker makes them, from what the desktop sent."""
    output = AgentLoopOutput(
        prompt_ids=list(trajectory.prompt_ids),
        response_ids=list(trajectory.response_ids),
        response_mask=list(trajectory.response_mask),
        multi_modal_data={"images": [decode_screenshot(screenshot) for screenshot in trajectory.screenshots]},
        metrics=AgentLoopMetrics(),
    )
    ids = torch.tensor([*trajectory.prompt_ids, *trajectory.response_ids])
    stock = policy.inputs._compute_multi_modal_inputs(output, ids)
    return stock, policy.inputs._compute_position_ids(ids[None], torch.ones_like(ids)[None], stock).squeeze(0)


def rebuild(trajectory: StoredTrajectory, inputs: ModelInputs) -> dict[str, Any]:
    """A replayed row as the update sees it: put into the queue, and its pixel values made."""
    pixels._KEPT = pixels._Kept(0)  # as another process's: no screenshot is at hand
    row = next(rebuild_rows(trajectory, inputs))
    return {**row, "multi_modal_inputs": queue_bytes.made(row["multi_modal_inputs"])}


@contextmanager
def one_core() -> Iterator[None]:
    """This process on one core, torch with one thread."""
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, {min(cores)})
    torch.set_num_threads(1)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)


# --- Figures ---------------------------------------------------------------------------------------------------------


def measure_one(trajectories: Sequence[StoredTrajectory], policy: Policy) -> dict[str, Any]:
    """Bytes of each trajectory alone, and injection of the first: read from the store, decoded, processed."""
    stored = []
    for trajectory in trajectories:
        store = SuccessStore(1)
        add_s, _ = timed(lambda store=store, trajectory=trajectory: store.add(trajectory))
        stored.append((store.num_bytes, add_s, store))
    store = stored[0][2]
    with one_core():
        times, cpu_times, fields = [], [], {}
        for _ in range(3):
            cpu_s = time.process_time()
            seconds, fields = timed(lambda: rebuild(store.of_task("task")[0], policy.inputs))
            times.append(seconds)
            cpu_times.append(time.process_time() - cpu_s)
    original, positions = original_inputs(trajectories[0], policy)
    rebuilt = fields["multi_modal_inputs"]
    carried = queue_bytes.compare(row for each in trajectories for row in rebuild_rows(each, policy.inputs))
    assert all(torch.equal(original[name], values) for name, values in rebuilt.items())
    assert torch.equal(positions, fields["position_ids"])
    mean = statistics.fmean(size for size, _, _ in stored)
    return {
        "bytes_per_trajectory": mean,
        "reference_bytes_per_trajectory": reference_bytes(fields),
        "compression_ratio": reference_bytes(fields) / mean,
        "injection_s": statistics.median(times),
        "injection_cpu_s": statistics.median(cpu_times),
        "add_s": statistics.fmean(seconds for _, seconds, _ in stored),
        "bit_identical": True,
        **{f"queue_{name}": value for name, value in carried.items()},
    }


def measure_many(trajectories: Sequence[StoredTrajectory], count: int, folder: Path) -> dict[str, float]:
    """`count` trajectories over `TASKS` tasks in one store, saved twice and loaded."""
    before = psutil.Process().memory_info().rss
    store = SuccessStore(PER_TASK)
    add_s, _ = timed(lambda: [store.add(copy) for copy in copies(trajectories, count)])
    fingerprint = Fingerprint("t", "p", "q")
    save_s, _ = timed(lambda: save_store(store, folder / "one", fingerprint))
    grown = psutil.Process().memory_info().rss - before
    figures = {
        "stored": len(store),
        "stored_tasks": store.num_tasks,
        "stored_bytes": store.num_bytes,
        "stored_1024_gib": store.num_bytes / len(store) * TASKS * PER_TASK / GIB,
        "resident_growth_bytes": grown,
        "add_all_s": add_s,
        "save_first_s": save_s,
    }
    for copy in itertools.islice(copies(trajectories, count + 16), count, None):
        store.add(copy)
    figures["save_next_16_new_s"], _ = timed(lambda: save_store(store, folder / "two", fingerprint))
    into = SuccessStore(PER_TASK)
    figures["load_s"], _ = timed(lambda: load_store(folder / "two", fingerprint, into=into))
    assert list(into.records()) == list(store.records())
    return figures


def copies(trajectories: Sequence[StoredTrajectory], count: int) -> Iterator[StoredTrajectory]:
    """`count` trajectories of `TASKS` tasks, no screenshot twice."""
    for number in range(count):
        trajectory = trajectories[number % len(trajectories)]
        shots = [commented(shot, f"{number}/{index}") for index, shot in enumerate(trajectory.screenshots)]
        yield dataclasses.replace(trajectory, task_id=f"task-{number % TASKS}", step=number, screenshots=shots)


def commented(png: bytes, comment: str) -> bytes:
    """The PNG with a comment: another file with the same picture."""
    body = b"tEXt" + b"Comment\0" + comment.encode()
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    end_of_header = 8 + 25
    return png[:end_of_header] + chunk + png[end_of_header:]


def main() -> None:
    parser = Arguments(__doc__, "one episode, 32 stored")
    parser.add_size("--episodes", 8, 1, "recorded on the desktop")
    parser.add_size("--stored", TASKS * PER_TASK, 32, "trajectories in the store")
    parser.add_argument("--folder", type=Path, help="for saving, 8 GiB free; the system's by default")
    arguments = parser.parse()
    figures: dict[str, Any] = {**machine(), "screen": f"{SCREEN.width}x{SCREEN.height}", "turns": TURNS}
    figures["episodes"] = arguments.episodes
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        policy, rng = Policy.build(Path(scratch) / "policy"), random.Random(0)
        trajectories = [policy.trajectory(shots, rng) for shots in record_episodes(arguments.episodes, seed=0)]
        figures["tokens"] = len(trajectories[0].prompt_ids) + len(trajectories[0].response_ids)
        figures |= measure_many(
            trajectories, arguments.stored, Path(scratch)
        )  # first, while the process is still small
        figures |= measure_one(trajectories, policy)
    report(figures, arguments.json)


if __name__ == "__main__":
    main()
