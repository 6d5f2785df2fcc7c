"""CUA-Gym's bundles read as tasks: what is carried along, where addresses lead, and what is refused."""

import base64
import json
import os

import pytest
from support.cua_gym_bundle import REWARD, TASK_ID, write_bundle

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.errors import TaskError
from arpo_verl.tasks import load_tasks
from arpo_verl.tasks.cua_gym import load
from arpo_verl.tasks.validation import explain_task
from arpo_verl.tools.cli.by_hand import find_task
from arpo_verl.tools.evaluation.midway import why_not_midway
from arpo_verl.types import is_bundle

EMBEDDED = EnvironmentConfig()


def steps(task, kind):
    return [step["parameters"] for step in task.spec["config"] if step["type"] == kind]


def change(bundle, **changes):
    task = json.loads((bundle / "task.json").read_text())
    (bundle / "task.json").write_text(json.dumps(task | changes))


def test_a_bundle_becomes_a_task_that_carries_its_programs(tmp_path):
    write_bundle(tmp_path)
    (task,) = load_tasks(f"cua_gym:{tmp_path}")
    assert (task.task_id, task.domain) == (TASK_ID, "cua_gym")
    assert [step["type"] for step in task.spec["config"]] == [
        "web_apps",
        "bundle_files",
        "bundle_command",
        "bundle_end",
    ]
    dist = str(tmp_path / "websites/notes-app_mock/dist")
    assert steps(task, "web_apps") == [{"apps": {"notes-app_mock": {"folder": dist, "port": 8100}}}]
    ((file,),) = [one["files"] for one in steps(task, "bundle_files")]
    assert file["path"] == "/home/user/initial_setup.py" and 'BASE_URL = "http://localhost:8100"' in file["text"]
    assert steps(task, "bundle_end") == [{"remove": ["/home/user/initial_setup.py"]}]
    program = task.spec["evaluator"]["result"]["program"]
    assert program == REWARD.replace("__CUA_GYM_NOTES_APP_URL__", "http://localhost:8100")
    assert is_bundle(task.spec) and json.loads(json.dumps(task.spec)) == task.spec
    assert explain_task(task, EMBEDDED) == []
    assert load_tasks(f"cua_gym:{tmp_path / TASK_ID}") == [task] == [find_task(f"cua_gym:{tmp_path}")]
    assert "reward_program" in (why_not_midway(task) or "")


def test_every_form_of_an_applications_address_leads_to_its_port(tmp_path, monkeypatch):
    reward = (
        "__CUA_GYM_NOTES_APP_HOST__ https://cua-gym-notes-app.xlang.ai/go __CUA_GYM_JIRA_URL__ cua-gym-jira.xlang.ai"
    )
    shown = {"type": "launch", "parameters": {"command": "google-chrome __CUA_GYM_NOTES_APP_URL__"}}
    change(write_bundle(tmp_path, setup="pass", reward=reward), config=[shown])
    (tmp_path / "websites").rename(tmp_path / "elsewhere")
    hub = tmp_path / "hub"
    (hub / "websites/JIRA_mock/dist").mkdir(parents=True)
    monkeypatch.setenv("CUA_GYM_HUB", str(hub))
    (task,) = load_tasks(f"cua_gym:{tmp_path}")
    program = task.spec["evaluator"]["result"]["program"]
    assert program == "localhost:8100 http://localhost:8100/go http://localhost:8101 localhost:8101"
    assert steps(task, "launch") == [{"command": "google-chrome http://localhost:8100"}]
    (apps,) = [one["apps"] for one in steps(task, "web_apps")]
    assert apps["JIRA_mock"] == {"folder": str(hub / "websites/JIRA_mock/dist"), "port": 8101}
    reasons = explain_task(task, EMBEDDED)
    assert len(reasons) == 2 and "web application JIRA_mock is not built" in reasons[1]
    assert "notes_app_mock is not built" in reasons[0] and "CUA_GYM_HUB" in reasons[0]


def test_files_that_are_no_text_and_downloads_and_other_steps_go_along(tmp_path):
    bundle = write_bundle(tmp_path, reward="print('REWARD: 0.0')")
    content = bytes(range(256))
    (bundle / "initial_setup.docx").write_bytes(content)
    carried = {"url": "./initial_setup.docx", "path": "/home/user/a.docx"}
    downloaded = {"url": "https://example.com/b.png", "path": "/home/user/b.png"}
    config = [
        {"type": "download", "parameters": {"files": [carried, downloaded]}},
        {"type": "open", "parameters": {"path": "/home/user/a.docx"}},
        {"type": "execute", "parameters": {"command": ["true"]}},
    ]
    postconfig = [{"type": "sleep", "parameters": {"seconds": 0.1}}]
    change(bundle, config=config, evaluator={"type": "python", "url": "./reward.py", "postconfig": postconfig})
    (task,) = load_tasks(f"cua_gym:{tmp_path}")
    assert [step["type"] for step in task.spec["config"]] == [
        "bundle_files",
        "download",
        "open",
        "execute",
        "bundle_end",
    ]
    assert steps(task, "bundle_files")[0]["files"] == [
        {"path": "/home/user/a.docx", "base64": base64.b64encode(content).decode()}
    ]
    assert steps(task, "download") == [{"files": [downloaded]}] and steps(task, "bundle_end") == [{"remove": []}]
    assert task.spec["evaluator"]["postconfig"] == postconfig


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda bundle: (bundle / "reward.py").unlink(), "FileNotFoundError"),
        (lambda bundle: (bundle / "task.json").write_text("{"), "JSONDecodeError"),
        (lambda bundle: (bundle / "task.json").write_text("[]"), "TypeError"),
        (lambda bundle: (bundle / "task.json").write_text("[" * 100_000), "nested too deeply"),
        (
            lambda bundle: os.mkfifo(bundle / "pipe") or os.replace(bundle / "pipe", bundle / "reward.py"),
            "regular file",
        ),
        (lambda bundle: change(bundle, evaluator={"type": "rubric"}), "must be of type python, got 'rubric'"),
        (
            lambda bundle: change(bundle, evaluator={"type": "python", "url": "../../secret"}),
            "leads out of the bundle",
        ),
        (lambda bundle: change(bundle, id=None), "id must be letters, digits"),
        (lambda bundle: change(bundle, config=[{"type": "burn", "parameters": {}}]), "set-up step 'burn'"),
    ],
)
def test_a_bundle_that_cannot_be_read_is_named_and_can_be_left_out(tmp_path, spoil, message):
    (tmp_path / "secret").write_text("")
    write_bundle(tmp_path / "b", "good")
    spoil(write_bundle(tmp_path / "b", "bad"))
    with pytest.raises(TaskError, match=f"(?s)1 of 2 tasks cannot be used.*{message}"):
        load_tasks(f"cua_gym:{tmp_path / 'b'}")
    assert [task.task_id for task in load_tasks(f"cua_gym:{tmp_path / 'b'}", skip_unusable=True)] == ["good"]


def test_a_folder_without_bundles_and_other_desktops_say_what_to_do(tmp_path):
    with pytest.raises(TaskError, match="names no folder with CUA-Gym's task bundles"):
        list(load(str(tmp_path)))
    write_bundle(tmp_path)
    (task,) = load_tasks(f"cua_gym:{tmp_path}")
    docker = EnvironmentConfig(provider="docker", screen_size=(1920, 1080))
    assert "which only the embedded desktop runs (environment.provider=embedded)" in explain_task(task, docker)[0]
