"""Sample episodes in the trainer's loggers, through each logger's own package. TensorBoard's files are read back in
tests/plugin/test_validation_samples.py."""

import io
import json
from pathlib import Path

import pytest
from PIL import Image

from arpo_verl.plugin.validation_samples import EpisodeLoggers, SampleEpisode

HOSTILE = "</code></pre><script>alert(1)</script>\n\n# [click](javascript:alert(1)) <img src=x onerror=alert(1)>"

COLUMNS = ["step", "task", "instruction", "success", "stop reason", "replies", "episode", "film strip"]


def png(color, size=(640, 480)):
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, "PNG")
    return buffer.getvalue()


def episode(task_id, success=1.0, replies=("Thought: look.", "Action: finished()")):
    shots = tuple(png(color) for color in ("navy", "green"))
    return SampleEpisode(f"step_000007/{task_id}__u_0", task_id, "Make it so.", success, "finished", replies, shots)


@pytest.mark.release
def test_wandb_gets_a_table_with_a_film_strip_in_each_row(tmp_path, monkeypatch, capfd):
    wandb = pytest.importorskip("wandb")
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    wandb.init(project="p", name="n", mode="offline", dir=tmp_path, settings=wandb.Settings(console="off"))
    EpisodeLoggers(["console", "wandb"], "runs/one").log([episode("a"), episode("b", success=0.5)], step=7)
    wandb.log({"val/success": 0.75}, step=7)  # as veRL does next: the step must still be open
    wandb.finish()
    assert "val/success 0.75" in capfd.readouterr().err
    tables = [json.loads(path.read_text()) for path in (tmp_path / "WANDB_DATA_DIR").rglob("tmp*") if is_table(path)]
    table = tables[0]  # wandb stages it once for the run and once for the step
    assert table["columns"] == COLUMNS
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [(row["step"], row["task"], row["success"]) for row in rows] == [(7, "a", 1.0), (7, "b", 0.5)]
    assert rows[0]["episode"] == "step_000007/a__u_0" and rows[0]["replies"] == "Thought: look.\nAction: finished()"
    assert [row["film strip"]["_type"] for row in rows] == ["image-file"] * 2
    assert rows[0]["film strip"]["width"] == episode("a").image.width


def is_table(path: Path) -> bool:
    return path.is_file() and path.read_bytes().startswith(b'{"_type": "table"')


@pytest.mark.release
def test_swanlab_gets_a_film_strip_an_episode(tmp_path):
    swanlab = pytest.importorskip("swanlab")
    swanlab.init(project="p", experiment_name="n", logdir=str(tmp_path), mode="offline")
    EpisodeLoggers(["swanlab"], None).log([episode("a"), episode("b", success=0.0)], step=7)
    swanlab.log({"val/success": 0.5}, step=7)
    swanlab.finish()
    (strip,) = {Image.open(path).size for path in tmp_path.rglob("media/image/*.png")}
    assert strip == episode("a").image.size


def test_without_a_wandb_run_nothing_is_logged(monkeypatch):
    wandb = pytest.importorskip("wandb")
    assert wandb.run is None
    logged = []
    monkeypatch.setattr(wandb, "log", lambda *values, **options: logged.append(values))
    EpisodeLoggers(["wandb"], None).log([episode("a")], step=1)
    assert logged == []


def test_what_a_model_writes_is_text_in_tensorboard(tmp_path, monkeypatch):
    from tensorboard.plugin_util import markdown_to_safe_html

    markdown = EpisodeLoggers(["tensorboard"], "runs/one")._markdown(episode("a", replies=(HOSTILE, "fine")))
    html = markdown_to_safe_html(markdown)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html and "<script" not in html
    assert not any(tag in html for tag in ("<img", "<a ", "<h1"))
    assert html.count("<pre>") == 1


def test_loggers_that_take_no_images_are_passed_over():
    assert not EpisodeLoggers(["console", "file", "mlflow"], None)
    assert EpisodeLoggers(["console", "tensorboard"], None) and EpisodeLoggers("tensorboard", None)
