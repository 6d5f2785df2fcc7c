"""Film strips of validation episodes: from rows that veRL's post-processing wrote to real TensorBoard files."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from arpo_verl.errors import ConfigError
from arpo_verl.plugin.trainer_state import SAMPLER_SECTION

TASKS = ["files-a", "files-b", "files-c", "files-d"]


@pytest.fixture
def sampler(compose, model_path, tmp_path, monkeypatch):
    """A sampler, made by the trainer's own code, that shows two episodes in the TensorBoard folder below `tmp_path`."""
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "tensorboard"))

    def make(log_val_episodes=2, loggers="[console,tensorboard]"):
        config = compose(
            f"actor_rollout_ref.model.path={model_path}",
            "+gui_agent.trajectory_dir=runs/one/trajectories",
            f"+{SAMPLER_SECTION}.log_val_episodes={log_val_episodes}",
            f"trainer.logger={loggers}",
        )
        trainer = SimpleNamespace(config=config, trainer_mode="sync", _add_prompts_to_generate=None)
        return PPOTrainer._build_replay_buffer(trainer)

    return make


def read_events(folder):
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"images": 0, "tensors": 0})
    return events.Reload()


def validate(queue, rollouts, sampler, step, success):
    for number, task_id in enumerate(TASKS):
        outputs = [rollouts.output(task_id, success, seed=10 * step + number, step=step)]
        rollouts.put(f"v{step}{number}", outputs, step=step, partition_id="val")
    batch, _ = sampler.sample(global_steps=step, partition_id="val", batch_size=len(TASKS))
    queue.kv_clear(keys=batch.keys, partition_id="val")
    return batch


def test_tensorboard_shows_the_same_tasks_film_strips_at_every_validation(empty_queue, rollouts, sampler, tmp_path):
    showing = sampler()
    validate(empty_queue, rollouts, showing, step=1, success=0.0)
    validate(empty_queue, rollouts, showing, step=2, success=1.0)
    events = read_events(tmp_path)
    tags = events.Tags()["images"]
    assert len(tags) == 2 and {tag.removeprefix("val_episodes/") for tag in tags} < set(TASKS)
    number = TASKS.index(tags[0].removeprefix("val_episodes/"))
    assert [event.step for event in events.Images(tags[0])] == [1, 2]
    image = Image.open(io.BytesIO(events.Images(tags[0])[1].encoded_image_string))
    sent = rollouts.output(TASKS[number], 1.0, seed=20 + number).screenshots
    for column, screenshot in enumerate(sent):  # the screenshots that this episode saw, at half their size, in order
        expected = np.asarray(Image.open(io.BytesIO(screenshot)).resize((320, 240)), dtype=float)
        got = np.asarray(image.crop((column * 328, 0, column * 328 + 320, 240)), dtype=float)
        assert np.abs(got - expected).mean() < 1


def test_the_text_names_task_outcome_replies_and_the_episode_to_open(empty_queue, rollouts, sampler, tmp_path):
    validate(empty_queue, rollouts, sampler(), step=3, success=1.0)
    events = read_events(tmp_path)
    (tag,) = [tag for tag in events.Tags()["tensors"] if tag.startswith("val_episodes/")][:1]
    text = events.Tensors(tag)[0].tensor_proto.string_val[0].decode()
    task_id = tag.split("/")[1]
    number = TASKS.index(task_id)
    for line in (f"task     {task_id}", "says     Wait, please.", "success  1", "stopped  finished"):
        assert f"    {line}\n" in text
    assert f"    episode  step_000003/{task_id}__v3{number}_0\n" in text
    assert "    open     arpo-verl view runs/one/trajectories\n" in text
    assert f"    1. Thought: {30 + number}.\n    Action: wait()" in text and "<|im_end|>" not in text


def test_a_validation_in_several_batches_shows_no_more(empty_queue, rollouts, sampler, tmp_path):
    showing = sampler(log_val_episodes=3)
    for number, task_id in enumerate(TASKS * 2):
        rollouts.put(f"w{number}", [rollouts.output(task_id, 1.0, seed=number)], partition_id="val")
        if number % 2:
            batch, _ = showing.sample(global_steps=1, partition_id="val", batch_size=2)
            empty_queue.kv_clear(keys=batch.keys, partition_id="val")
    assert len(read_events(tmp_path).Tags()["images"]) == 3


@pytest.mark.parametrize("options", [{"log_val_episodes": 0}, {"loggers": "[console,file]"}])
def test_nothing_is_read_or_written_where_nothing_is_to_be_shown(
    empty_queue, rollouts, sampler, tmp_path, options, monkeypatch
):
    monkeypatch.setattr("arpo_verl.plugin.validation_samples.read_samples", lambda *args: pytest.fail("read"))
    validate(empty_queue, rollouts, sampler(**options), step=1, success=1.0)
    assert not (tmp_path / "tensorboard").exists()


def test_a_logger_that_fails_costs_the_pictures_alone(empty_queue, rollouts, sampler, monkeypatch, tmp_path, caplog):
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    batch = validate(empty_queue, rollouts, sampler(), step=1, success=1.0)
    assert len(batch) == len(TASKS)
    assert "could not show sample episodes of the validation at step 1" in caplog.text


@pytest.mark.parametrize("count", [-1, 1.5, True])
def test_a_bad_number_of_episodes_is_refused(sampler, count):
    with pytest.raises(ConfigError, match=r"sampler_kwargs\.log_val_episodes must be a whole number"):
        sampler(log_val_episodes=count)
