"""`arpo-verl replay`, through the command line's own entry."""

import io
import json

from PIL import Image
from support import ROOT
from support.pictures import screenshot
from support.policies.demonstrations import collect_demonstrations, save_demonstrations
from support.replay_trajectories import stored

from arpo_verl.agent.actions.reply import Reply
from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.replay.store.persistence import Fingerprint, load_store, save_store
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.tools.cli.main import main
from arpo_verl.types import Click, Finish, Point, Task

PRINT = Fingerprint(tokenizer="aaaa", processor="bbbb", prompt="cccc")
RECIPE = str(ROOT / "recipes" / "embedded.yaml")


def save(folder, *trajectories, fingerprint=PRINT):
    store = SuccessStore(8)
    for trajectory in trajectories:
        store.add(trajectory)
    save_store(store, folder, fingerprint)
    return str(folder)


def test_inspect_tells_tasks_steps_ages_and_fingerprint(tmp_path, capsys):
    shots = [screenshot(1), screenshot(2)]
    folder = save(
        tmp_path, stored("calc", 3, shots), stored("calc", 9, shots), stored("dialog", 4, rollout_log_probs=None)
    )
    assert main(["replay", "inspect", folder]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{folder}: 3 successes of 2 tasks") and lines[0].endswith("newest of step 9")
    assert "aaaa" in lines[2] and "bbbb" in lines[2] and "cccc" in lines[2]
    assert lines[-2].split() == ["calc", "2", "0.06", "3-9", "0", "1.00", "2.0", "1.0", "2/2"]
    assert lines[-1].split() == ["dialog", "1", "0.00", "4-4", "5", "1.00", "1.0", "1.0", "0/1"]
    assert main(["replay", "inspect", "--json", folder]) == 0
    contents = json.loads(capsys.readouterr().out)
    assert [task["trajectories"] for task in contents["tasks"]] == [2, 1]
    assert contents["manifest"]["fingerprint"] == vars(PRINT)


def as_webp(shot):
    """As stores of earlier checkouts may hold it."""
    buffer = io.BytesIO()
    Image.open(io.BytesIO(shot)).convert("RGB").save(buffer, "WEBP", lossless=True)
    return buffer.getvalue()


def test_export_is_for_people(tmp_path, model_path, capsys):
    from verl.utils import hf_tokenizer

    tokenizer = hf_tokenizer(model_path)
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    prompt = [*tokenizer.encode("You see <|vision_start|>"), *[pad] * 300, *tokenizer.encode("<|vision_end|>")]
    shots = [screenshot(1), screenshot(2)]
    folder = save(tmp_path / "store", stored("../calc", 3, list(map(as_webp, shots)), prompt_ids=prompt))
    out = tmp_path / "out"
    assert main(["replay", "export", folder, str(out), "--tokenizer", model_path]) == 0
    (target,) = (out / "_calc").iterdir()  # the name of a task cannot lead out of the folder
    assert target.name == "step_000003_0"
    assert sorted(path.name for path in target.iterdir()) == [
        *("00.png", "01.png", "text.txt", "tokens.json", "trajectory.json")
    ]
    for index, shot in enumerate(shots):
        exported, sent = (Image.open(io.BytesIO(data)) for data in ((target / f"{index:02d}.png").read_bytes(), shot))
        assert exported.format == "PNG" and exported.convert("RGB").tobytes() == sent.convert("RGB").tobytes()
    assert "You see <|vision_start|><|image_pad|> x 300<|vision_end|>" in (target / "text.txt").read_text()
    values = json.loads((target / "trajectory.json").read_text())
    assert (values["task_id"], values["step"], values["prompt_tokens"]) == ("../calc", 3, len(prompt))
    assert json.loads((target / "tokens.json").read_text())["prompt_ids"] == prompt
    assert main(["replay", "export", folder, str(out)]) == 2
    assert "must be a new or empty folder" in capsys.readouterr().err


def test_merge_takes_the_newest_of_all_once_and_keeps_bounds(tmp_path, capsys):
    one = save(tmp_path / "one", stored("a", 1), stored("a", 3), stored("b", 5))
    two = save(tmp_path / "two", stored("a", 2), stored("a", 3), stored("a", 4))
    out = tmp_path / "out"
    assert main(["replay", "merge", one, two, "--out", str(out), "--capacity-per-task", "3"]) == 0
    store = load_store(out, PRINT)
    assert [(t.task_id, t.step) for t in store.trajectories()] == [("a", 2), ("a", 3), ("a", 4), ("b", 5)]
    assert store.capacity_per_task == 3
    other = save(tmp_path / "other", stored("a", 1), fingerprint=Fingerprint("aaaa", "bbbb", "dddd"))
    assert main(["replay", "merge", one, other, "--out", str(tmp_path / "never")]) == 2
    assert "differ in prompt" in capsys.readouterr().err
    assert not (tmp_path / "never").exists()


def test_seed_makes_a_store_of_demonstrations_that_the_run_accepts(tmp_path, model_path, capsys):
    from omegaconf import open_dict
    from support.composed import compose_recipe

    from arpo_verl.plugin.sampler import Replayer
    from arpo_verl.plugin.trainer_state import trainer_state

    replies = [Reply("I click.", (Click(Point(35, 38)),)), Reply("Done.", (Finish(),))]
    tasks, environment = [Task("calc", "Press the key.", {})], EnvironmentConfig(provider="fake", num_desktops=1)
    (episode,) = collect_demonstrations(tasks, lambda _: replies, environment, lambda screen: screen)
    save_demonstrations(tmp_path / "demonstrations", [episode])
    overrides = ["--set", f"actor_rollout_ref.model.path={model_path}"]
    out = str(tmp_path / "seeds")
    command = ["replay", "seed", str(tmp_path / "demonstrations"), "--recipe", RECIPE, "--out", out, *overrides]
    assert main(command) == 0
    assert "1 successes of 1 tasks" in capsys.readouterr().out
    run = compose_recipe("embedded", overrides[1], f"replay.seed_from={out}", f"run_dir={tmp_path / 'run'}")
    with open_dict(run):
        del run.environment  # no desktops
    (trajectory,) = Replayer(trainer_state(run)).store.trajectories()
    assert trajectory.task_id == "calc" and trajectory.rollout_log_probs is None
    assert trajectory.screenshots == episode.screenshots
    chosen = tmp_path / "filter"
    chosen.mkdir()
    (tmp_path / "demonstrations").rename(chosen / "trajectories")
    for file in chosen.rglob("episode.json"):  # as an evaluation records it
        file.write_text(json.dumps({**json.loads(file.read_text()), "validation": True}))
    command[2], command[6] = str(chosen), str(tmp_path / "chosen")
    for fate, status in (("too few successes", 2), ("kept", 0)):
        (chosen / "filter.json").write_text(json.dumps({"tasks": [{"task_id": "calc", "fate": fate}]}))
        assert main(command) == status
    (chosen / "filter.json").write_text("[]")
    assert main(command[:6] + [str(tmp_path / "third"), *overrides]) == 2
    assert "must be of `arpo-verl filter-tasks`" in capsys.readouterr().err
    command[6] = out
    assert main(command) == 2  # not over what is there
    assert "must be a new or empty folder" in capsys.readouterr().err
