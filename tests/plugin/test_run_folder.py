"""What a node's look at the checkpoints' folder takes; on a real cluster: `test_loop_on_cluster.py`."""

import time
from types import SimpleNamespace

import pytest
import ray

from arpo_verl.errors import ConfigError
from arpo_verl.plugin import run_folder
from arpo_verl.plugin.run_folder import require_shared


def test_a_network_file_system_may_show_a_new_file_late(monkeypatch):
    looks = iter([False, False, True])
    monkeypatch.setattr(run_folder, "os", SimpleNamespace(path=SimpleNamespace(isfile=lambda path: next(looks))))
    monkeypatch.setattr(run_folder, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: None))
    assert run_folder._appears("/shared/mark", patience_s=60.0)
    looks = iter([False])
    assert not run_folder._appears("/shared/mark", patience_s=0.0)


def test_a_folder_that_cannot_be_made_is_named(monkeypatch, tmp_path):
    node = {"Alive": True, "Resources": {"CPU": 1.0}}
    monkeypatch.setattr(ray, "nodes", lambda: [node, node])
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"trainer.default_local_dir must be a folder that can be written to, got .*"):
        require_shared(tmp_path / "file" / "checkpoints", "trainer.default_local_dir")
