"""`arpo-verl evaluate` from its command line."""

import dataclasses
import json
import signal
from contextlib import nullcontext

import pytest

from arpo_verl.agent.models import small
from arpo_verl.agent.models.family import load_family
from arpo_verl.agent.rollout.vision import ImageGeometry
from arpo_verl.errors import ConfigError
from arpo_verl.tasks.loader import EMBEDDED_DIR
from arpo_verl.tools.cli.main import build_parser, main
from arpo_verl.tools.cli.playing import image_geometry, open_policy, read_playing
from arpo_verl.tools.evaluation.endpoint import ServedModel
from arpo_verl.tools.evaluation.results import Evaluated, FailedTrial


def read(*options):
    return read_playing(build_parser("evaluate").parse_args(["evaluate", "--out", "e", *options]))


FAKE = ("--provider", "fake", "--tasks", "embedded")


def test_a_recipe_says_how_and_options_win():
    playing = read("--recipe", "embedded")
    agent, environment = playing.settings.agent, playing.settings.environment
    assert (agent.model_family, agent.max_reply_tokens, agent.row_screenshots) == ("small", 96, 8)
    assert playing.settings.budgets == (8,) and len(playing.tasks) == 32
    assert environment.provider == "embedded" and environment.num_desktops == 8 and environment.status_file is None
    options = ["--max-steps", "4,20", "--agent", "max_reply_tokens=64", "--desktops", "3"]
    options += ["--option", "action_pause_s=1", "--option", "partial_credit=0.5"]
    playing = read("--recipe", "embedded", *options)
    assert playing.settings.budgets == (4, 20) and playing.settings.agent.max_turns == 20
    assert playing.settings.agent.max_reply_tokens == 64
    environment = playing.settings.environment
    # Partial credit is of training alone.
    assert (environment.num_desktops, environment.action_pause_s, environment.partial_credit) == (3, 1, 0)


def test_without_one_it_is_as_ui_tars_was_trained():
    settings = read(*FAKE).settings
    assert settings.budgets == (15,) and settings.sampling.temperature == 0.6
    assert settings.agent.model_family == "ui_tars_15"


@pytest.mark.parametrize(("option", "shown"), [("harness=a b", 3), ("model_family=gui_owl", 3), ("context=null", 20)])
def test_all_but_a_whole_history_keep_their_bound_on_images_whatever_the_turns(option, shown):
    agent = read(*FAKE, "--agent", option, "--agent", "max_screenshots=3", "--max-steps", "4,20").settings.agent
    assert (agent.row_screenshots, agent.max_turns) == (shown, 20)


def test_screenshots_are_resized_as_the_models_processor_would():
    def geometry_of(*options):
        arguments = build_parser("evaluate").parse_args(["evaluate", "--out", "e", *FAKE, *options])
        return image_geometry(arguments.processor, read_playing(arguments))

    assert geometry_of() == ImageGeometry(*load_family("ui_tars_15").image)
    assert geometry_of("--agent", "model_family=qwen3_vl") == ImageGeometry(*load_family("qwen3_vl").image)
    assert geometry_of("--min-pixels", "3136", "--max-pixels", "1000000") == ImageGeometry(28, 3136, 1000000)
    playing = dataclasses.replace(read(*FAKE), pixels={"max_pixels": 9, "min_pixels": 4, "do_resize": True})
    assert image_geometry(None, playing) == ImageGeometry(28, 4, 9)


def test_the_models_own_processor_says_so_itself(model_path, policy):
    arguments = build_parser("evaluate").parse_args(["evaluate", "--out", "e", *FAKE, "--processor", model_path])
    assert image_geometry(arguments.processor, read_playing(arguments)) == ImageGeometry.from_processor(policy[1])


def test_a_model_that_transformers_does_not_know_is_played_over_a_server_alone(tmp_path, monkeypatch):
    only = dataclasses.replace(load_family("small"), evaluated_only="transformers does not know it")
    monkeypatch.setattr(small, "ONLY", only, raising=False)
    (tmp_path / "config.json").write_text('{"model_type": "other"}')
    (tmp_path / "model.safetensors").touch()
    options = [
        "--model",
        str(tmp_path),
        "--engine",
        "transformers",
        "--agent",
        "model_family=arpo_verl.agent.models.small:ONLY",
    ]
    arguments = build_parser("evaluate").parse_args(["evaluate", "--out", "e", *FAKE, *options])
    with pytest.raises(ConfigError, match="ONLY works only with `arpo-verl evaluate` and a server"):
        with open_policy(arguments, read_playing(arguments), tmp_path / "e"):
            pass


@pytest.mark.parametrize("number", [None, signal.SIGTERM])
def test_an_interrupted_evaluation_says_that_the_same_command_resumes_it(tmp_path, monkeypatch, capsys, number):
    def evaluate(*_):
        if number is None:
            raise KeyboardInterrupt
        signal.raise_signal(number)

    monkeypatch.setattr("arpo_verl.tools.cli.playing.find_model", find_model)
    monkeypatch.setattr("arpo_verl.tools.evaluation.runner.evaluate", evaluate)
    assert main(["evaluate", "--endpoint", "http://127.0.0.1:1", *FAKE, "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "\narpo-verl: interrupted; the same command resumes it\n"


async def find_model(endpoint, name):
    return ServedModel("m")


def test_lost_trials_are_reported_with_the_last_reason(tmp_path, monkeypatch, capsys):
    lost = Evaluated((), (FailedTrial("t", 0, 15, "EndpointError", "status 400: no images"),), {}, {})
    monkeypatch.setattr("arpo_verl.tools.cli.playing.open_policy", lambda *_: nullcontext())
    monkeypatch.setattr("arpo_verl.tools.evaluation.runner.evaluate", lambda *_: lost)
    monkeypatch.setattr("arpo_verl.tools.evaluation.report.write_report", lambda out: "table")
    assert main(["evaluate", "--endpoint", "http://127.0.0.1:1", "--tasks", "embedded", "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "t: status 400: no images" in printed and f"{tmp_path}/faults.jsonl" in printed


@pytest.mark.release
def test_it_plays_reports_goes_on_and_compares(local_ray, tmp_path, model_path, capsys):
    """The real pool on Ray with fake desktops, our engine with a policy that knows nothing."""
    pytest.importorskip("ray")
    tasks = ",".join(str(EMBEDDED_DIR / f"dialog-confirm-{name}.json") for name in ("yes", "no"))
    out = tmp_path / "e"
    options = ["--provider", "fake", "--tasks", tasks, "--agent", "model_family=small", "--agent", "max_reply_tokens=8"]
    command = ["evaluate", "--model", model_path, *options, "--runs", "2", "--desktops", "2", "--out", str(out)]
    assert main([*command, "--max-steps", "2,3"]) == 0
    content = json.loads((out / "evaluation.json").read_text())["settings"]
    assert content["policy"]["model"] == model_path and content["policy"]["engine"] == "transformers"
    records = {path: path.stat().st_mtime_ns for path in out.rglob("episode.json")}
    assert len(records) == 4 and "| **all** | 2 | 4 |" in (out / "results.md").read_text()
    assert main([*command, "--max-steps", "2,3"]) == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("episode.json")} == records
    assert main([*command, "--max-steps", "2,3", "--temperature", "1"]) == 2
    assert "temperature was 0.6, now 1.0" in capsys.readouterr().err
    assert main(["evaluate", "--compare", str(out), str(out)]) == 0
    assert "no clear difference" in capsys.readouterr().out


@pytest.mark.release
def test_a_harness_plays_on_the_same_pool(local_ray, tmp_path, model_path):
    pytest.importorskip("ray")
    out = tmp_path / "e"
    harness = ["--agent", "harness=support.harness_agents:own_loop", "--agent", "model_family=small"]
    options = ["--provider", "fake", "--tasks", str(EMBEDDED_DIR / "dialog-confirm-yes.json"), *harness]
    options += ["--agent", "max_reply_tokens=8", "--runs", "2", "--desktops", "2", "--max-steps", "2"]
    assert main(["evaluate", "--model", model_path, *options, "--out", str(out)]) == 0
    for path in out.rglob("episode.json"):
        turns = json.loads(path.read_text())["turns"]
        assert turns and all(turn["request"]["messages"] for turn in turns)
    assert len(list(out.rglob("episode.json"))) == 2 and "| **all** | 1 | 2 |" in (out / "results.md").read_text()
