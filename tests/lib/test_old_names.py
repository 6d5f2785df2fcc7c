"""What users wrote, and what runs saved, before the package got its rooms still works."""

import importlib
import importlib.metadata
import pickle
import subprocess
import sys

import pytest

from arpo_verl.engines.pixels import LazyPixels
from arpo_verl.lib.old_names import NEW_NAMES
from arpo_verl.replay.labels import RowLabel

# Each `arpo_verl.` path of docs, the notebook, recipes, the entry points and the public docstrings at that time.
NAMED = """
actions actions.checks:check_action actions.pyautogui:to_code actions.ui_tars:format_reply cli.main:main
cpu.warm_workers:WarmWorkers cpu.adapter:ServerAdapter desktop desktop.guest desktop.packages:main easyr1
errors:ActionError evaluation.statistics:Summary models.family:load_family plugin plugin.agent_loop:GuiAgentLoop
plugin.checkpoints:ReplayCheckpointCallback plugin.dataset plugin.loop_manager:GuiAgentLoopManager
plugin.run_callback:RunCallback plugin.sampler:ReplaySampler policy policy.optimizer:UpperLayersAdamW
policy.shipped:write_shipped recipes records.film_strip:film_strip records.groups:TrainedGroup records.metrics:Metrics
records.summaries:EpisodeSummary replay.choice replay.rules:task_content replay.store.persistence:load_store
replay.store.success_store:SuccessStore reward:compute_score tasks tasks.families:generate types:Task viewer
vllm_segments:register actions.keys:KEY_NAMES harness.loading:Program rollout.vision:decode_screenshot
environments.config:EnvironmentConfig rollout.config:GuiAgentConfig cpu.options:EngineOptions
""".split()
QUEUE = (
    b"\x80\x02]q\x00(carpo_verl.pixels\n_arrived\nq\x01c_codecs\nencode\nq\x02X\x03\x00\x00\x00pngq\x03X\x06\x00\x00\x00"
    b"latin1q\x04\x86q\x05Rq\x06\x85q\x07X\x02\x00\x00\x00{}q\x08\x86q\tRq\ncarpo_verl.replay.labels\nRowLabel\nq\x0b("
    b"X\x04\x00\x00\x00taskq\x0cX\x08\x00\x00\x00task_0_1q\r\x88\x88tq\x0eRq\x0fe."
)
"""Rows' parts, pickled as TransferQueue keeps them, by commit b3c520fe."""


@pytest.mark.parametrize("name", NAMED)
def test_a_name_of_before_is_the_same_thing(name):
    pytest.importorskip("verl")
    module, _, attribute = name.partition(":")
    found = importlib.import_module(f"arpo_verl.{module}")
    assert not attribute or hasattr(found, attribute)
    assert sys.modules[found.__name__] is found and found.__spec__.name == found.__name__


@pytest.mark.parametrize("old", NEW_NAMES)
def test_each_old_name_leads_to_a_module_that_is_there(old):
    for package in ("torch", "transformers", "wrapt", "ray"):
        pytest.importorskip(package)
    assert importlib.import_module(f"arpo_verl.{old}") is importlib.import_module(f"arpo_verl.{NEW_NAMES[old]}")


def test_a_saved_queue_is_read():
    pytest.importorskip("tensordict")
    pixels, label = pickle.loads(QUEUE)
    assert pixels == LazyPixels([b"png"], "{}") and type(label) is RowLabel and label.key == "task_0_1"


@pytest.mark.parametrize("words", [["policy", "--help"], ["desktop.packages", "list"], ["cli.main", "--version"]])
def test_a_module_of_before_runs_as_a_program_without_a_warning(words):
    command = [sys.executable, "-W", "error", "-m", f"arpo_verl.{words[0]}", *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout


def test_the_entry_points_of_an_older_installation_load():
    for name in ("arpo_verl.vllm_segments:register", "arpo_verl.cli.main:main"):
        assert callable(importlib.metadata.EntryPoint("arpo_verl", name, "group").load())


def test_an_unknown_module_in_an_old_folder_is_told_by_the_name_that_was_asked():
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'arpo_verl\.policy\.no_such'"):
        importlib.import_module("arpo_verl.policy.no_such")
