"""What a run notes of each of its starts, and of what ended it."""

import json
import time

from omegaconf import OmegaConf

from arpo_verl.records.ended_starts import Fault, note_fault, read_faults
from arpo_verl.records.json_files import append_objects
from arpo_verl.records.layout import FAULTS_FILE, STARTS_FILE
from arpo_verl.records.starts import faults_before, note_start, read_starts
from arpo_verl.versions import installed_version

RECIPE = {
    "run_dir": "runs/one",
    "gui_agent": {"max_steps": 8, "trajectory_dir": "${run_dir}/trajectories"},
    "replay": {"enable": True, "capacity_per_task": 8},
    "environment": {"provider": "docker", "screen_size": [1920, 1080], "password": "secret"},
    "actor_rollout_ref": {"rollout": {"n": 8}},
}
DAMAGED = ["[]", "1", "{", "{}", '{"time": 1}', '{"time": "1", "sentence": "a"}', '{"time": 1, "sentence": 2}']
DAMAGED += ['{"time": NaN, "sentence": "a"}', '{"time": 1e300, "sentence": "a"}', "\x00\xff"]


def test_a_start_holds_the_recipes_values_resolved_and_the_versions(tmp_path):
    note_start(tmp_path / "run", OmegaConf.create(RECIPE))
    (start,) = read_starts(tmp_path / "run")
    recipe = start["recipe"]
    assert recipe["gui_agent.trajectory_dir"] == "runs/one/trajectories"
    assert recipe["replay.capacity_per_task"] == 8 and recipe["actor_rollout_ref.rollout.n"] == 8
    assert recipe["environment.screen_size"] == [1920, 1080]
    assert start["versions"]["torch"] == installed_version("torch")
    assert "secret" not in json.dumps(start), "a password"


def test_a_resumed_run_has_a_line_a_start_and_torn_lines_are_passed_over(tmp_path):
    assert read_starts(tmp_path) == []
    note_start(tmp_path, OmegaConf.create(RECIPE))
    with (tmp_path / STARTS_FILE).open("a") as file:
        file.write('{"time": 17\n')
    note_start(tmp_path, OmegaConf.create({**RECIPE, "replay": {"enable": False}}))
    assert [start["recipe"]["replay.enable"] for start in read_starts(tmp_path)] == [True, False]


def test_a_start_follows_the_fault_that_ended_the_one_before(tmp_path):
    starts = [{"time": 10}, {"time": 20}, {"time": "odd"}, {"time": 30}]
    append_objects(tmp_path / FAULTS_FILE, [{"time": time, "sentence": f"{time}"} for time in (15, 26, 31)])
    assert faults_before(tmp_path, starts) == [None, "15", None, "26"]


def test_faults_are_read_in_their_order_without_damaged_lines_and_move_no_cursor(tmp_path):
    assert read_faults(tmp_path) == []
    (tmp_path / FAULTS_FILE).write_text("\n".join(DAMAGED) + "\n")
    before = time.time()
    note_fault(tmp_path, "an engine died")
    note_fault(tmp_path, "the\x1b[2Jqueue\ndied", lasts=True)
    first, second = read_faults(tmp_path)
    assert before <= first.time <= second.time <= time.time()
    assert [first, second] == [
        Fault(first.time, "an engine died"), Fault(second.time, "the?[2Jqueue died", lasts=True)
    ]  # fmt: skip
