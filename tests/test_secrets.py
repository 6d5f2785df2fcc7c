"""No secret of a recipe's or of the environment's gets into a message, a log, a record, an export or a run's folder."""

import asyncio
import json
import logging
import os
import stat

import pytest
from omegaconf import OmegaConf

from arpo_verl.desktops.config import EnvironmentConfig, read_password
from arpo_verl.desktops.osworld import task_files
from arpo_verl.errors import ConfigError, DesktopSetupError
from arpo_verl.lib import files
from arpo_verl.lib.config import build_config

SECRET = "hunter2-s3cret"
ENVIRONMENT = {
    "provider": "docker",
    "screen_size": [1920, 1080],
    "password": SECRET,
    "provider_options": {"environment": {"AWS_SECRET_ACCESS_KEY": SECRET, "PROXY": f"http://me:{SECRET}@proxy:1"}},
}
VARIABLES = ("HF_TOKEN", "WANDB_API_KEY", "SWANLAB_API_KEY", "AWS_SECRET_ACCESS_KEY", "RAY_AUTH_TOKEN")


@pytest.fixture(autouse=True)
def secrets_in_the_environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:{SECRET}@localhost:1")


def test_the_environment_section_does_not_show_its_secrets():
    config = build_config(EnvironmentConfig, "environment", ENVIRONMENT)
    assert SECRET not in repr(config) + str(config) + f"{[config]}"
    assert "num_desktops=8" in repr(config)


@pytest.mark.parametrize("wrong", [{"num_desktops": 0}, {"retry_backoff_s": -1}, {"screen_size": [1]}, {"nam": 1}])
def test_a_refused_environment_section_does_not_show_its_secrets(wrong):
    with pytest.raises(ConfigError) as caught:
        build_config(EnvironmentConfig, "environment", {**ENVIRONMENT, **wrong})
    assert SECRET not in repr(caught.value)


def test_a_pool_that_is_asked_for_with_another_section_names_what_differs_and_shows_nothing():
    pytest.importorskip("ray")
    from arpo_verl.desktops.pool.pool_actor import PoolActor

    async def start():
        actor = PoolActor(build_config(EnvironmentConfig, "environment", ENVIRONMENT))
        actor._workers = object()  # started
        other = {**ENVIRONMENT, "password": f"another-{SECRET}", "num_desktops": 3}
        return await actor.start(build_config(EnvironmentConfig, "environment", other))

    assert asyncio.run(start()).endswith("section: password, num_desktops differ")


def test_a_password_is_read_from_the_variable_that_the_recipe_names(monkeypatch):
    monkeypatch.setenv("GUEST_PASSWORD", SECRET)
    assert read_password("env:GUEST_PASSWORD") == SECRET
    assert read_password("plain") == "plain" and read_password("") == ""
    monkeypatch.delenv("GUEST_PASSWORD")
    with pytest.raises(ConfigError, match="the variable GUEST_PASSWORD of environment.password must be set, got None"):
        read_password("env:GUEST_PASSWORD")


def test_a_start_notes_the_recipe_without_its_secrets(tmp_path, monkeypatch, capfd, caplog):
    pytest.importorskip("verl")
    from arpo_verl.plugin import run_callback
    from arpo_verl.plugin.recipe import checks

    monkeypatch.setattr("ray.init", None)  # so that it is put back afterwards
    # A cluster that another test has just started is none that this run joins.
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(checks, "RAY_CLUSTER_FILE", tmp_path / "none")
    caplog.set_level(logging.DEBUG)
    for name in (
        "VERL_FILE_LOGGER_PATH",
        "TENSORBOARD_DIR",
        "RAY_OVERRIDE_JOB_RUNTIME_ENV",
        run_callback.RAY_JOB_CONFIG,
    ):
        monkeypatch.setenv(name, "{}" if name == run_callback.RAY_JOB_CONFIG else "")
    trainer = {"default_local_dir": str(tmp_path / "checkpoints"), "resume_mode": "auto", "total_epochs": 3}
    config = {"run_dir": str(tmp_path / "run"), "trainer": trainer, "environment": ENVIRONMENT, "data": {}}
    with pytest.raises(SystemExit) as refused:  # it has a provider and hardly more
        run_callback.RunCallback().on_job_start(OmegaConf.create(config))
    assert "problems" in str(refused.value) and SECRET not in str(refused.value)
    monkeypatch.setattr(run_callback, "refuse_unfit", lambda config: None)
    run_callback.RunCallback().on_job_start(OmegaConf.create(config))
    written = [path.read_text() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert any('"environment.provider": "docker"' in text for text in written)
    said = capfd.readouterr()
    assert SECRET not in "".join([*written, said.out, said.err, caplog.text, os.environ[run_callback.RAY_JOB_CONFIG]])


def test_a_download_that_fails_shows_no_name_password_or_signature(tmp_path, monkeypatch, caplog):
    def refuse(url, **_):
        raise task_files.requests.ConnectionError(f"no route to {url}")

    monkeypatch.setattr(task_files.requests, "get", refuse)
    monkeypatch.setattr(task_files, "RETRY_S", 0)
    url = f"https://me:{SECRET}@example.org/a/file.xlsx?X-Signature={SECRET}"
    store = task_files.DownloadStore(tmp_path)
    with pytest.raises(DesktopSetupError, match="https://example.org/a/file.xlsx could not be downloaded") as caught:
        store.copy("task", task_files.Download(url, "file.xlsx"), tmp_path / "target")
    assert SECRET not in str(caught.value) + caplog.text
    assert caught.value.__suppress_context__


def test_the_viewers_token_is_in_no_log(written, caplog):
    pytest.importorskip("fastapi")
    from starlette.testclient import TestClient

    from arpo_verl.records.run import open_run
    from arpo_verl.tools.viewer.server import build_app, build_server

    caplog.set_level(logging.INFO, logger="uvicorn")
    written.episode(1)
    run = open_run(written.path)
    server = build_server(run, token=SECRET, port=8000)
    assert server.config.access_log is False
    client = TestClient(build_app(run, token=SECRET, port=8000), base_url="http://localhost:8000")
    for answer in (client.get(f"/?token={SECRET}"), client.get("/api/run"), client.get("/api/run?token=wrong")):
        assert SECRET not in answer.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_scratch_is_its_owners_alone_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        scratch = files.ScratchFolder(tmp_path, "kind-")
        files.write_whole(tmp_path / "whole", json.dumps({}).encode())
    finally:
        os.umask(before)
    assert stat.S_IMODE(scratch.path.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 & ~umask for path in scratch.path.iterdir())
    assert stat.S_IMODE((tmp_path / "whole").stat().st_mode) == 0o644 & ~umask  # a record, as the user's umask says
