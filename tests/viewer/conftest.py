"""A run's folder to write to, and its reader, which looks at each call."""

import pytest
from viewer_run import ViewerRun

from arpo_verl.records import run as runs


@pytest.fixture
def written(tmp_path):
    return ViewerRun(tmp_path / "a-run")


@pytest.fixture
def run(written, monkeypatch):
    monkeypatch.setattr(runs, "REFRESH_S", 0.0)
    monkeypatch.setattr(runs, "_REST", 0)
    return runs.open_run(written.path)
