"""What a harness's endpoint costs: CPU beside the engine's for a turn, and how long a command takes to start.

    python benchmarks/harness.py --json

So many episodes at once ask the endpoint over HTTP, with the last five of their screenshots of 1920x1080 in each
request, as official runners do. The engine answers at once with the same reply, so that what is left is ours: JSON,
base64, decoding, tokens, rows. The clients run in processes of their own and are not counted; the server's process is,
all of its threads. `decodes_a_turn` says how often a picture was decoded: once for each that is new. The time to start
is that of the command `true`, sandbox included, one after the other on an idle machine.
"""

from __future__ import annotations

import asyncio
import io
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from figures import Arguments, machine, report
from PIL import Image, ImageDraw
from policies.architecture import PolicySize
from policies.build import build_policy

from arpo_verl.harness.client import HarnessClient
from arpo_verl.harness.command import run_command
from arpo_verl.harness.endpoint import shared_endpoint
from arpo_verl.harness.token_chat import TokenChat
from arpo_verl.plugin.sent_images import take_in
from arpo_verl.plugin.settings import chat_tokenizer, load_processor
from arpo_verl.rollout import episode
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.rollout.conversation import TokenLimits
from arpo_verl.rollout.sequence import Generated

SHOWN = 5
REPLY = "Thought: the button is at the top.\nAction: click(start_box='(20,20)')<|im_end|>"
CLIENT = """
import asyncio, base64, sys
import aiohttp

async def play(folder, url, token, turns, shown):
    def url_of(number):
        with open(f"{folder}/{number}.png", "rb") as file:
            return f"data:image/png;base64,{base64.b64encode(file.read()).decode()}"

    shots, replies = [], []
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        for turn in range(turns):
            shots = [*shots, url_of(turn)][-shown:]
            first = turn + 1 - len(shots)
            messages = [{"role": "system", "content": "You are a GUI agent."}, {"role": "user", "content": "Do it."}]
            messages += [{"role": "assistant", "content": reply} for reply in replies[:first]]
            for number, shot in enumerate(shots, first):
                messages.append({"role": "user", "content": [{"type": "image_url", "image_url": {"url": shot}}]})
                messages += [{"role": "assistant", "content": reply} for reply in replies[number : number + 1]]
            async with session.post(f"{url}/chat/completions", json={"model": "m", "messages": messages}) as got:
                answer = await got.json()
                assert got.status == 200, answer
                replies.append(answer["choices"][0]["message"]["content"])

asyncio.run(play(*sys.argv[1:4], *map(int, sys.argv[4:])))
"""


def screenshots(folder: Path, count: int) -> None:
    """Windows with text and a photograph, as PNG, each unlike the others."""
    for number in range(count):
        rng = np.random.default_rng(number)
        image = Image.new("RGB", (1920, 1080), tuple(int(value) for value in rng.integers(0, 255, 3)))
        draw = ImageDraw.Draw(image)
        for line in range(60):
            draw.text((40, 16 * line), f"line {line} of {rng.integers(10**9)}", fill="white")
        image.paste(Image.fromarray(rng.integers(0, 255, (200, 300, 3), dtype=np.uint8)), (900, 300))
        buffer = io.BytesIO()
        image.save(buffer, format="PNG")
        (folder / f"{number}.png").write_bytes(buffer.getvalue())


async def play(folder: Path, episodes: int, turns: int) -> dict[str, float]:
    """Have all episodes played at once."""
    processor = load_processor(build_policy(folder / "policy", size=PolicySize(num_layers=1, vision_depth=1)))
    chat = chat_tokenizer(processor.tokenizer, processor, "qwen2_5_vl")
    reply = Generated(tuple(processor.tokenizer.encode(REPLY, add_special_tokens=False)), None)
    decoded = 0
    decode = episode.decode_screenshot

    def counted(screenshot: bytes) -> Image.Image:
        nonlocal decoded
        decoded += 1
        return decode(screenshot)

    async def generate(prompt_ids: list[int], images: list[Image.Image], max_tokens: int) -> Generated:
        return reply

    config = GuiAgentConfig(max_steps=turns, max_screenshots=SHOWN, harness="benchmark", model_family="small")
    endpoint = await shared_endpoint()
    loop = asyncio.get_running_loop()
    limits = TokenLimits(40_000, 40_000)
    chats = [TokenChat(generate, chat, config, limits, _no_tools) for _ in range(episodes)]
    clients = [HarnessClient(one, config, take_in, loop.create_future(), None, endpoint.url) for one in chats]
    with ExitStack() as held:
        held.enter_context(patch.object(episode, "decode_screenshot", counted))
        for client in clients:
            held.enter_context(endpoint.serving(client))
        began, cpu = time.perf_counter(), time.process_time()
        command = [sys.executable, "-c", CLIENT, str(folder)]
        processes = [
            await asyncio.create_subprocess_exec(*command, client.url, client.token, str(turns), str(SHOWN))
            for client in clients
        ]
        assert not any([await process.wait() for process in processes])
    played = episodes * turns
    return {
        "cpu_ms_a_turn": 1000 * (time.process_time() - cpu) / played,
        "decodes_a_turn": decoded / played,
        "wall_s": time.perf_counter() - began,
        "screenshot_kb": statistics.fmean(path.stat().st_size for path in folder.glob("*.png")) / 1000,
    }


async def _no_tools(*_: Any) -> Any:
    raise AssertionError("no request offers tools")


async def start(times: int) -> float:
    """Seconds that a command takes which does nothing; the median."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        end = await run_command(["true"], {}, log=None, memory_mb=512, log_mb=1.0)
        assert end.returncode == 0, end
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def main() -> None:
    arguments = Arguments(__doc__, smoke="two episodes of two turns")
    arguments.add_size("--episodes", 32, 2, "episodes at once")
    arguments.add_size("--turns", 15, 2, "turns of each")
    arguments.add_size("--starts", 20, 2, "starts of a command")
    chosen = arguments.parse()
    figures: dict[str, Any] = {**machine(), "episodes": chosen.episodes, "turns": chosen.turns, "shown": SHOWN}
    with tempfile.TemporaryDirectory() as folder:
        screenshots(Path(folder), chosen.turns)
        figures |= asyncio.run(play(Path(folder), chosen.episodes, chosen.turns))
    figures["start_s"] = asyncio.run(start(chosen.starts))
    report(figures, chosen.json)


if __name__ == "__main__":
    main()
