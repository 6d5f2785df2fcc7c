"""The provider of docs/own-provider.md: the page's own code, on pods of an API server that answers by the book."""

import ast
import importlib
import json
import os
import re
import shlex
import sys

import pytest
from support import documents

pytest.importorskip("kubernetes")
pytest.importorskip("desktop_env")

from omegaconf import OmegaConf  # noqa: E402
from support.composed import compose_recipe  # noqa: E402
from support.http_server import Server  # noqa: E402
from support.scripted_guest import CLICK, SIZE, Guest, executed, png, task  # noqa: E402

import arpo_verl  # noqa: E402
from arpo_verl import (  # noqa: E402
    ConfigError,
    DesktopBootError,
    DesktopLostError,
    EnvironmentConfig,
    Finish,
    MachineProvider,
)
from arpo_verl.desktops.factory import environment_factory  # noqa: E402
from arpo_verl.lib.config import build_config  # noqa: E402

PODS = "/api/v1/namespaces/desktops/pods"


def code():
    (text,) = documents.code("docs/own-provider.md")
    return text


class ApiServer:
    """The pods of a namespace, as the Kubernetes API reference has its answers: `POST`, `GET` and `DELETE` of a pod.

    A guest stands behind each pod: at the pod's address, an address of this host's loopback, on OSWorld's ports.
    """

    def __init__(self):
        self.pods, self.guests, self.requests = {}, {}, []
        self.becomes_ready = True
        self.server = Server(self._respond)

    def create(self, manifest):
        name = f"{manifest['metadata']['generateName']}{len(self.requests):05d}"
        metadata = {"name": name, "namespace": "desktops", "uid": f"uid-of-{name}", "resourceVersion": "1"}
        metadata = {**manifest["metadata"], **metadata, "creationTimestamp": "2026-01-01T00:00:00Z"}
        self.pods[name] = {**manifest, "metadata": metadata, "status": {"phase": "Pending", "qosClass": "Burstable"}}
        return 201, self.pods[name]

    def read(self, name):
        """A pod that was asked for once is scheduled, its machine boots, and it is ready when it is asked for again."""
        if name not in self.pods:
            return 404, {"kind": "Status", "message": f'pods "{name}" not found'}
        pod = self.pods[name]
        if pod["status"]["phase"] == "Pending" and self.becomes_ready:
            is_scheduled = "conditions" in pod["status"]
            pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
            if is_scheduled:
                self._be_ready(name, pod)
        return 200, pod

    def delete(self, name):
        if name not in self.pods:
            return 404, {"kind": "Status", "message": f'pods "{name}" not found'}
        if name in self.guests:
            self.guests.pop(name).stop()
        return 200, self.pods.pop(name)

    def end(self, phase, reason):
        """The one pod that runs ends."""
        (pod,) = self.pods.values()
        pod["status"] |= {"phase": phase, "reason": reason, "conditions": [{"type": "Ready", "status": "False"}]}

    def close(self):
        for name in list(self.pods):
            self.delete(name)
        self.server.close()

    def _be_ready(self, name, pod):
        guest = self.guests[name] = Guest()
        pid = os.getpid()
        guest.listens = (f"127.{100 + pid // 65536 % 100}.{pid // 256 % 256}.{1 + pid % 250}", 5000)
        guest.start()
        conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]
        pod["status"] |= {"phase": "Running", "podIP": guest.listens[0], "conditions": conditions}

    def _respond(self, handler, content):
        path = handler.path.partition("?")[0]
        name = path.removeprefix(PODS).strip("/")
        self.requests.append((handler.command, path))
        assert path.startswith(PODS) and handler.headers["Authorization"] == "Bearer of-the-worker"
        if handler.command == "POST":
            status, document = self.create(json.loads(content))
        else:
            status, document = (self.read if handler.command == "GET" else self.delete)(name)
        handler.answer(status, json.dumps(document).encode(), Content_Type="application/json")


@pytest.fixture
def api(tmp_path, monkeypatch):
    api = ApiServer()
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": api.server.url}}],
        "users": [{"name": "u", "user": {"token": "of-the-worker"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(kubeconfig))
    for module in ("kubernetes.config", "kubernetes.config.kube_config"):
        monkeypatch.setattr(f"{module}.KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield api
    api.close()


@pytest.fixture
def make(api, tmp_path, monkeypatch):
    (tmp_path / "kubernetes_provider.py").write_text(code())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(importlib.import_module("kubernetes_provider"), "POLL_S", 0.01)
    made = []

    def build(**options):
        config = EnvironmentConfig(
            provider="kubernetes_provider:PodProvider",
            path_to_vm="/vms/Ubuntu.qcow2",
            provider_options={"namespace": "desktops"},
            screen_size=SIZE,
            action_pause_s=0,
            cache_dir=str(tmp_path / "downloads"),
            **options,
        )
        made.append(environment_factory(config)(config, "desktop-3.1"))
        return made[-1]

    yield build
    for environment in made:
        environment.close()
    sys.modules.pop("kubernetes_provider")


def test_each_episode_is_played_and_evaluated_on_a_pod_of_its_own(make, api):
    environment = make()
    assert environment.reset(task()).screenshot == png()
    (first,) = api.pods
    pod = api.pods[first]
    assert pod["metadata"]["labels"]["arpo-verl/desktop"] == "desktop-3.1"
    assert pod["spec"]["volumes"][0]["hostPath"]["path"] == "/vms/Ubuntu.qcow2"
    environment.step(CLICK)
    assert "pyautogui.click(x=10, y=20" in api.guests[first].code()[0]
    environment.step(Finish())
    api.guests[first].replies["/execute"] = lambda: executed("yes")
    assert environment.evaluate().score == 1.0
    environment.reset(task())
    assert list(api.pods) != [first] and len(api.pods) == 1 and ("DELETE", f"{PODS}/{first}") in api.requests
    environment.close()
    assert not api.pods


@pytest.mark.parametrize(
    ("end", "message"),
    [
        (lambda api: api.end("Failed", "Evicted"), "pod arpo-desktop-.* ended: Evicted"),
        (lambda api: api.delete(*api.pods), "the API server has no pod .*: 404"),
    ],
)
def test_a_pod_that_ended_or_was_deleted_is_a_lost_desktop_and_never_evaluated(make, api, end, message):
    environment = make()
    environment.reset(task())
    end(api)
    with pytest.raises(DesktopLostError, match=message):
        environment.step(CLICK)
    with pytest.raises(DesktopLostError):
        environment.evaluate()
    environment.reset(task())  # on another


def test_a_pod_that_does_not_become_ready_is_no_desktop_and_is_deleted(make, api):
    api.becomes_ready = False
    with pytest.raises(DesktopBootError, match=r"was not ready within 0\.2 s"):
        make(boot_timeout_s=0.2).prepare()
    assert not api.pods


def test_a_recipe_without_the_machines_file_is_refused(make):
    config = EnvironmentConfig(provider="kubernetes_provider:PodProvider", screen_size=SIZE)
    with pytest.raises(ConfigError, match="environment.path_to_vm"):
        environment_factory(config)(config, "desktop").prepare()


def test_it_imports_public_names_alone():
    imports = [node for node in ast.walk(ast.parse(code())) if isinstance(node, (ast.Import, ast.ImportFrom))]
    ours = [node for node in imports if isinstance(node, ast.ImportFrom)]
    assert {alias.name for node in imports if node not in ours for alias in node.names} == {"time", "kubernetes"}
    assert {node.module for node in ours} == {"arpo_verl"}
    assert {alias.name for node in ours for alias in node.names} <= set(arpo_verl.__all__)
    assert not re.search(r"\._[a-z]", code())


def test_the_pages_command_composes_to_a_section_that_is_accepted():
    (command,) = documents.commands("docs/own-provider.md")
    section = OmegaConf.to_container(compose_recipe(*shlex.split(command)[2:]).environment, resolve=True)
    config = build_config(EnvironmentConfig, "environment", section)
    assert (config.provider, config.provider_options) == ("kubernetes_provider:PodProvider", {"namespace": "desktops"})


class Unfinished(MachineProvider):
    def start(self): ...


def test_a_class_that_lacks_a_method_is_refused_before_anything_starts():
    config = EnvironmentConfig(provider=f"{__name__}:Unfinished")
    with pytest.raises(ConfigError, match="a class that has address, stop"):
        environment_factory(config)
