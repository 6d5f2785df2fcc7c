"""arpo_verl beside a run that is not ours, and in one of ours beside another veRL than it knows."""

import json
import os
import subprocess
import sys

import pytest
from support import ROOT

from arpo_verl.engines.upstream_patches import all_patches

pytestmark = pytest.mark.release
PATCHED = {f"{patch.module}.{name}": key for key, patch in all_patches().items() for name in patch.names}


@pytest.fixture(scope="module")
def walk():
    """What `support/upstream_walk.py` found, in a process of veRL's without any plugin."""
    env = {**os.environ, "VERL_USE_EXTERNAL_PLUGINS": "none", "VERL_PLATFORM": "", "ARPO_VERL_RUN": ""}
    command = [sys.executable, "-m", "support.upstream_walk"]
    done = subprocess.run(command, env=env, cwd=ROOT / "tests", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_name_that_upstream_has_renamed_is_missed_where_it_is_needed_and_nowhere_else(walk):
    assert walk[0].keys() > PATCHED.keys(), "and the registries"
    for place, refused in walk[0].items():
        patch = PATCHED.get(place)
        assert patch is None or f" {place} (which is not there)" in refused.pop(patch)
        if place.startswith("verl."):  # the trainer refuses to begin its first step
            assert place.rpartition(".")[2] in refused.pop("names")
        assert not refused, f"without {place} another patch was lost too"


def test_only_a_run_of_ours_beside_a_veRL_that_we_know_runs_our_functions(walk):
    nobodys, ours, newer = walk[1]
    assert nobodys == [[], True, True], "somebody else's run would notice"
    assert ours == [list(PATCHED), False, False]
    of_vllm = [place for place, patch in PATCHED.items() if patch in ("SEGMENTS", "IMAGE_CACHES")]
    assert newer == [of_vllm, False, False]
