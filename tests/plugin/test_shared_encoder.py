"""The GPUs of a split sequence share its screenshots: what they learn from is the same, and each encodes its part."""

import json
import os
import subprocess
import sys

import pytest
from support import ROOT
from support.split_sequence import CASES

from arpo_verl.plugin.shared_encoder import divide

FAMILIES = ("qwen2_5_vl", "qwen3_vl")
PATCHES = {
    "4 images over 4": [16, 16, 16, 16],
    "3 images over 4": [24, 24, 24, 24],
    "1 image over 2": [16, 16],
    "5 unequal ones over 2": [64, 88],
    "no image over 2": [16, 16],
}


def run_ranks(module, folder, *arguments, **env):
    """Run a module of `support` that forks, in a process of its own, and return each rank's findings."""
    env = {**os.environ, **env, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "tests", ROOT / "benchmarks")))}
    command = [sys.executable, "-m", f"support.{module}", str(folder), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_ranks("split_sequence", tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_features_and_gradients_are_those_of_ranks_that_each_encode_all(family, case, ranks):
    found = [rank[f"{family} {case}"] for rank in ranks if f"{family} {case}" in rank]
    if case == "no image over 2" and family == "qwen2_5_vl":
        assert not found
        return
    assert [rank["encoded"] for rank in found] == [[patches] for patches in PATCHES[case]]
    for rank in found:
        assert rank["features apart"] < 1e-12 and rank["gradients apart"] < 1e-12
        assert (rank["smallest gradient"] > 1e-5) == (case != "no image over 2"), "of all the encoder's parameters"
        assert (rank["gathers"], rank["reductions"]) == (1, 1), "also with gradient checkpointing"


@pytest.mark.parametrize(
    ("patches", "ranks", "expected"),
    [
        ([5] * 15, 4, [4, 3, 4, 4]),
        ([5] * 5, 5, [1] * 5),
        ([5] * 3, 4, [1, 0, 1, 1]),
        ([5], 4, [0, 0, 1, 0]),
        ([90, 10, 10, 10], 2, [1, 3]),
        ([10, 10, 10, 90], 2, [3, 1]),
        ([7, 7, 7], 1, [3]),
    ],
)
def test_images_are_divided_whole_in_order_and_about_evenly(patches, ranks, expected):
    shares = divide(patches, ranks)
    assert [number for share in shares for number in share] == list(range(len(patches)))
    assert list(map(len, shares)) == expected


@pytest.mark.release
def test_verls_engine_scores_and_updates_as_without(tmp_path):
    """FSDP2 over two ranks that split each sequence: log-probs, gradients, their norm, and the weights behind."""
    alone, together = run_ranks("split_engine", tmp_path, VERL_PLATFORM="cpu")
    # Three screenshots of 112 patches: the first rank encodes one. Two rows are scored and trained on.
    assert (alone["patches encoded"], together["patches encoded"]) == ([3 * 112] * 4, [112] * 4)
    assert alone["smallest gradient"] > 1e-6 and alone["grad_norm"] > 0.1 and alone["loss"]
    assert together["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert together["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-5)
    assert together["log-probs apart"] < 1e-5 and together["gradients apart"] < 1e-4
    assert together["weights apart"] < 1e-3, "of gradients near 0 AdamW makes a step of any size"
