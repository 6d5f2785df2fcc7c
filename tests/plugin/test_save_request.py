"""A checkpoint that was asked for by a file comes with the end of the step, and the rhythm is then as before."""

import pytest
from omegaconf import OmegaConf
from support.desktop_harness import eventually

pytest.importorskip("verl")

from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback  # noqa: E402

from arpo_verl.plugin.checkpoints import REQUEST_FILE, SaveRequest  # noqa: E402


@pytest.fixture(params=[20, -1])
def config(tmp_path, request):
    return OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path), "save_freq": request.param}})


def test_the_file_has_the_step_saved_and_goes_with_the_checkpoint(config, tmp_path):
    before, file = config.trainer.save_freq, tmp_path / REQUEST_FILE
    file.touch()  # an earlier start's, which was killed
    request = SaveRequest(config, poll_s=0.01)
    assert not file.exists() and config.trainer.save_freq == before
    for _ in range(2):
        file.touch()
        eventually(lambda: config.trainer.save_freq == 1)
        request.saved()
        assert not file.exists() and config.trainer.save_freq == before
    request.saved()  # by its own rhythm
    assert config.trainer.save_freq == before
    request.close()
    config.trainer.save_freq = 1  # by a watch that saw the file just before it went
    request.saved()
    assert config.trainer.save_freq == before


def test_the_recipes_callback_listens(config, tmp_path, monkeypatch):
    monkeypatch.setattr(SaveRequest.__init__, "__defaults__", (0.01,))  # it looks every two seconds by itself
    config.trainer.checkpoint_callback_class = "arpo_verl.plugin.checkpoints.ReplayCheckpointCallback"
    callback = build_checkpoint_callback(config)
    (tmp_path / REQUEST_FILE).touch()
    eventually(lambda: config.trainer.save_freq == 1)
    callback._request.close()
