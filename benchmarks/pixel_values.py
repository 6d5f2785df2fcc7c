"""What a training process spends on the pixel values of a row of 15 screenshots of 1920x1080, for log-probs and after.

    python benchmarks/pixel_values.py [--rows N]

CPU seconds of one thread, for each row: the first time, and again from what is kept, as an update has them.
"""

from __future__ import annotations

import time

import torch
from event_loop_parts import screenshot
from figures import Arguments, report
from transformers import Qwen2VLImageProcessor

from arpo_verl import pixels

SCREENSHOTS = 15


def cpu_s(row: pixels.LazyPixels) -> float:
    """Of what veRL's training engine does with a micro-batch of one row."""
    begun = time.process_time()
    torch.cat([row])  # type: ignore[list-item]  # what stands for a tensor
    return time.process_time() - begun


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--rows", type=int, default=3, help="how many")
    arguments = parser.parse()
    torch.set_num_threads(1)
    pixels.THREADS = 1
    processor = Qwen2VLImageProcessor(size={"shortest_edge": 3136, "longest_edge": 2_116_800}, patch_size=14)
    figures = []
    for number in range(arguments.rows):
        shots = [screenshot(1920, 1080, f"{number} {turn}") for turn in range(SCREENSHOTS)]
        row = pixels.pixel_values(shots, processor)
        assert isinstance(row, pixels.LazyPixels)
        figures.append((cpu_s(row), cpu_s(row)))
    first, again = zip(*figures, strict=True)
    report({"log_probs_cpu_s": list(first), "update_cpu_s": list(again)}, arguments.json)


if __name__ == "__main__":
    main()
