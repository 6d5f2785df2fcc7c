"""What a run notes of each of its starts."""

import json

from omegaconf import OmegaConf

from arpo_verl.records.json_files import append_objects
from arpo_verl.records.layout import FAULTS_FILE, STARTS_FILE
from arpo_verl.records.starts import faults_before, note_start, read_starts, recipe_values
from arpo_verl.versions import installed_version

RECIPE = {
    "run_dir": "runs/one",
    "gui_agent": {"max_steps": 8, "trajectory_dir": "${run_dir}/trajectories"},
    "replay": {"enable": True, "capacity_per_task": 8},
    "environment": {"provider": "docker", "screen_size": [1920, 1080], "password": "secret"},
    "actor_rollout_ref": {"rollout": {"n": 8}},
}


def test_a_start_holds_the_recipes_values_resolved_and_the_versions(tmp_path):
    note_start(tmp_path / "run", OmegaConf.create(RECIPE))
    (start,) = read_starts(tmp_path / "run")
    recipe = start["recipe"]
    assert recipe["gui_agent.trajectory_dir"] == "runs/one/trajectories"
    assert recipe["replay.capacity_per_task"] == 8 and recipe["actor_rollout_ref.rollout.n"] == 8
    assert recipe["environment.screen_size"] == [1920, 1080]
    assert start["versions"]["torch"] == installed_version("torch")


def test_no_password_is_noted():
    assert "secret" not in json.dumps(recipe_values(OmegaConf.create(RECIPE)))


def test_a_resumed_run_has_a_line_a_start_and_torn_lines_are_passed_over(tmp_path):
    note_start(tmp_path, OmegaConf.create(RECIPE))
    with (tmp_path / STARTS_FILE).open("a") as file:
        file.write('{"time": 17\n')
    note_start(tmp_path, OmegaConf.create({**RECIPE, "replay": {"enable": False}}))
    assert [start["recipe"]["replay.enable"] for start in read_starts(tmp_path)] == [True, False]


def test_a_run_without_the_file_has_no_starts(tmp_path):
    assert list(read_starts(tmp_path)) == []


def test_a_start_follows_the_fault_that_ended_the_one_before(tmp_path):
    starts = [{"time": 10}, {"time": 20}, {"time": "odd"}, {"time": 30}]
    append_objects(tmp_path / FAULTS_FILE, [{"time": time, "sentence": f"{time}"} for time in (15, 26, 31)])
    assert faults_before(tmp_path, starts) == [None, "15", None, "26"]
