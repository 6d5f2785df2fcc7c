"""Every provider of OSWorld's client by the recipe: what the client, its provider and the tool or cloud behind get."""

import contextlib
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import ROOT, fake_machines
from support.fake_machines import Host, Tool

pytest.importorskip("desktop_env")

from desktop_env.providers.vmware.provider import VMwareProvider  # noqa: E402

from arpo_verl.desktops.config import OSWORLD_PROVIDERS, EnvironmentConfig  # noqa: E402
from arpo_verl.desktops.osworld.environment import OSWorldEnvironment  # noqa: E402
from arpo_verl.desktops.osworld.provider_patches import adapt_module  # noqa: E402
from arpo_verl.desktops.provider_checks import check_provider, client_options, desktop_index  # noqa: E402
from arpo_verl.desktops.providers import PROVIDERS  # noqa: E402
from arpo_verl.errors import ConfigError, DesktopBootError, MissingDependencyError  # noqa: E402
from arpo_verl.types import Size, Task  # noqa: E402

SCREEN = Size(1920, 1080)
SMALL = Size(320, 240)
"""For machines of one's own: they show what they like."""

# Counts the episodes that a machine has seen: 1 after each reset where machines are really reverted.
SPEC = {
    "id": "count",
    "instruction": "",
    "config": [{"type": "execute", "parameters": {"command": "echo seen >> ~/episodes", "shell": True}}],
    "evaluator": {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": "wc -l < ~/episodes", "shell": True},
        "expected": {"type": "rule", "rules": {"expected": "1\n"}},
    },
}
TASK = Task("count", "", SPEC)


@pytest.fixture
def host():
    """For OSWorld's own machines, which the clouds allocate."""
    with contextlib.closing(Host(SCREEN)) as host:
        yield host


@pytest.fixture
def small_host():
    """For machines of one's own."""
    with contextlib.closing(Host(SMALL)) as host:
        yield host


@pytest.fixture
def in_desktop_thread():
    """Desktops live in threads of their own, where Python lets nobody handle signals."""
    with ThreadPoolExecutor(1) as thread:
        yield lambda function, *arguments: thread.submit(function, *arguments).result()


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    """Nothing of this machine's own accounts, and no `.env` from above; what is patched here is whole again after."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(VMwareProvider, "_execute_command", vars(VMwareProvider)["_execute_command"])
    for provider in PROVIDERS.values():
        for name in provider.variables:
            monkeypatch.delenv(name, raising=False)


def config(provider, tmp_path, **options):
    options = {"screen_size": SCREEN, "cache_dir": str(tmp_path / "cache"), "password": "secret"} | options
    return EnvironmentConfig(provider=provider, num_desktops=1, **options)


def two_episodes(config, name="desktop-0.1"):
    """Both see a fresh machine; returns what `DesktopEnv`'s constructor was given, as it keeps it."""
    environment = OSWorldEnvironment(config, name)
    try:
        for _ in range(2):
            environment.reset(TASK)
            assert environment.evaluate().score == 1.0
        client = environment._client
        assert (client.provider_name, client.os_type, client.client_password) == (config.provider, "Ubuntu", "secret")
        assert (client.screen_width, client.screen_height) == config.screen_size
        assert (client.headless, client.enable_proxy) == (config.headless, config.proxy)
        return client
    finally:
        environment.close()


def use_sdk(modules, provider, variables, monkeypatch):
    """Put a cloud's SDK and variables in place, and have the client's modules imported anew: they read them then."""
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    for part in ("manager", "provider", "config", "scheduler_utils"):
        monkeypatch.delitem(sys.modules, f"desktop_env.providers.{provider}.{part}", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


# --- Each provider ---------------------------------------------------------------------------------------------


@pytest.mark.release
@pytest.mark.desktop
def test_vmware_gets_its_file_its_snapshot_and_no_window(small_host, in_desktop_thread, tmp_path, monkeypatch):
    (tmp_path / "proxies.json").write_text(json.dumps([{"host": "proxy", "port": 1}]))
    monkeypatch.setenv("PROXY_CONFIG_FILE", "proxies.json")
    # The client rests 3 s after each call of the tool.
    monkeypatch.setattr("desktop_env.providers.vmware.provider.WAIT_TIME", 0.2)
    vmx = tmp_path / "Ubuntu3" / "Ubuntu3.vmx"
    vmx.parent.mkdir()
    vmx.write_text("")
    small_host.create(str(vmx))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    tool = Tool(tmp_path / "bin", "vmrun", fake_machines.vmrun(small_host))
    path = f"{tmp_path}/Ubuntu{{index}}/Ubuntu{{index}}.vmx"
    client = in_desktop_thread(
        two_episodes,
        config("vmware", tmp_path, path_to_vm=path, screen_size=SMALL, snapshot="mine", proxy=True),
        "desktop-3.1",
    )
    tool.close()
    assert client.path_to_vm == str(vmx)
    assert ["-T", "ws", "start", str(vmx), "nogui"] in small_host.calls
    assert small_host.calls.count(["-T", "ws", "revertToSnapshot", str(vmx), "mine"]) == 2
    assert small_host.calls[-1] == ["-T", "ws", "stop", str(vmx)]


def test_a_machine_that_vmware_cannot_revert_does_not_boot(tmp_path, monkeypatch):
    (tmp_path / "vmrun").write_text("#!/bin/sh\necho 'Error: The snapshot does not exist'\nexit 255\n")
    (tmp_path / "vmrun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    adapt_module("vmware")
    with pytest.raises(DesktopBootError, match="revertToSnapshot /a.vmx other failed: .*The snapshot does not exist"):
        VMwareProvider("").revert_to_snapshot("/a.vmx", "other")


AWS = {"AWS_REGION": "ap-east-1", "AWS_SUBNET_ID": "subnet-1", "AWS_SECURITY_GROUP_ID": "sg-1"}


@pytest.mark.desktop
def test_aws_gets_its_region_and_is_reverted_to_that_regions_image(host, in_desktop_thread, tmp_path, monkeypatch):
    use_sdk(fake_machines.aws(host), "aws", AWS, monkeypatch)
    client = in_desktop_thread(two_episodes, config("aws", tmp_path))
    starts = [(call[1], call[2]["ImageId"]) for call in host.calls if call[0] == "run_instances"]
    assert starts == [("ap-east-1", "ami-06850864d18fad836")] * 2
    assert client.region == "ap-east-1" and client.snapshot_name == "ami-06850864d18fad836"
    assert [call[1] for call in host.calls if call[0] == "terminate_instances"] == [["i-0"], ["i-1"]]
    options = client_options(config("aws", tmp_path, region="us-east-1"), 0)
    assert (options["region"], options["snapshot_name"]) == ("us-east-1", "ami-0b505e9d0d99ba88c")
    assert client_options(config("aws", tmp_path, snapshot="ami-mine"), 0)["snapshot_name"] == "ami-mine"
    with pytest.raises(ConfigError, match=r"region must be one that OSWorld has an image in \(us-east-1.*'eu-west-1'"):
        client_options(config("aws", tmp_path, region="eu-west-1"), 0)


@pytest.mark.desktop
def test_azure_gets_its_machine_and_its_snapshot(small_host, in_desktop_thread, tmp_path, monkeypatch):
    use_sdk(fake_machines.azure(small_host), "azure", {"AZURE_SUBSCRIPTION_ID": "sub"}, monkeypatch)
    small_host.create("group/vm")
    of_recipe = config("azure", tmp_path, path_to_vm="group/vm", screen_size=SMALL, region="westeurope")
    for _ in range(2):  # the second desktop finds the machine as the first one left it
        client = in_desktop_thread(two_episodes, of_recipe)
    assert client.region == "westeurope"
    assert ("subscription", "sub") in small_host.calls and ("snapshot", "group", "init_state") in small_host.calls
    assert not small_host.machines["group/vm"].running


PLAIN_SDKS = {
    "aliyun": [
        *("alibabacloud_ecs20140526", "alibabacloud_ecs20140526.client", "alibabacloud_ecs20140526.models"),
        *("alibabacloud_tea_openapi", "alibabacloud_tea_openapi.models"),
        *("alibabacloud_tea_util", "alibabacloud_tea_util.client"),
    ],
    "volcengine": [
        *("volcenginesdkcore", "volcenginesdkcore.rest", "volcenginesdkautoscaling"),
        *("volcenginesdkecs", "volcenginesdkecs.models", "volcenginesdkecs.api"),
    ],
}


@pytest.mark.parametrize("provider", PLAIN_SDKS)
def test_a_cloud_whose_manager_handles_signals_starts_machines_in_a_thread(provider, in_desktop_thread, monkeypatch):
    variables = {name: name.lower() for name in PROVIDERS[provider].variables}
    use_sdk({name: fake_machines.Module(name) for name in PLAIN_SDKS[provider]}, provider, variables, monkeypatch)
    adapt_module(provider)
    manager = sys.modules[f"desktop_env.providers.{provider}.manager"]
    assert in_desktop_thread(manager.signal.signal, manager.signal.SIGINT, manager.signal.SIG_DFL) is None


def test_a_region_is_the_recipes_or_its_variables_and_never_two(tmp_path, monkeypatch):
    """Their providers look at the variable alone."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    monkeypatch.setattr("shutil.which", lambda name: name)
    for name in (*PROVIDERS["aliyun"].variables, *PROVIDERS["volcengine"].variables):
        monkeypatch.setenv(name, "set")
    monkeypatch.delenv("ALIYUN_REGION")
    check_provider(config("aliyun", tmp_path, region="cn-hangzhou"))
    assert os.environ["ALIYUN_REGION"] == "cn-hangzhou"
    with pytest.raises(ConfigError, match="environment.region must be what VOLCENGINE_REGION says"):
        check_provider(config("volcengine", tmp_path, region="elsewhere"))


# --- What is missing is named before anything starts ---------------------------------------------------------------


def some_path(provider, tmp_path):
    path = tmp_path / "vm"
    path.write_text("")
    return None if PROVIDERS[provider].allocates and provider != "docker" else str(path)


@pytest.mark.parametrize("provider", OSWORLD_PROVIDERS)
def test_packages_and_programs_that_are_not_here_are_all_named(provider, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    needs = PROVIDERS[provider]
    with pytest.raises(MissingDependencyError) as raised:
        OSWorldEnvironment(config(provider, tmp_path, path_to_vm=some_path(provider, tmp_path))).prepare()
    for name in (*needs.packages.values(), *needs.programs):
        assert name in str(raised.value)


@pytest.mark.parametrize("provider", [name for name, needs in PROVIDERS.items() if needs.variables])
def test_variables_that_are_not_set_are_all_named(provider, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    with pytest.raises(ConfigError) as raised:
        check_provider(config(provider, tmp_path, path_to_vm=some_path(provider, tmp_path)))
    assert all(name in str(raised.value) for name in PROVIDERS[provider].variables)


def test_variables_may_stand_in_a_dotenv_file(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in AWS.items()))
    for name in AWS:  # monkeypatch removes what the file brings
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    check_provider(config("aws", tmp_path))


@pytest.mark.parametrize(("provider", "kind"), [("vmware", ".vmx"), ("virtualbox", ".vbox"), ("docker", ".qcow2")])
def test_a_machine_whose_file_is_not_here_is_refused(provider, kind, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: name)
    with pytest.raises(ConfigError, match=rf"path_to_vm must be the machine's {kind} file here, got '/no/such'"):
        check_provider(config(provider, tmp_path, path_to_vm="/no/such"))


def test_a_docker_desktop_without_a_path_takes_what_was_fetched_here_or_says_how(tmp_path):
    with pytest.raises(ConfigError, match="docker_vm_data/Ubuntu.qcow2'; `arpo-verl fetch-vm`"):
        check_provider(config("docker", tmp_path))
    assert client_options(config("docker", tmp_path), 0)["path_to_vm"] == f"{tmp_path}/docker_vm_data/Ubuntu.qcow2"


def test_proxies_without_a_file_of_them_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: name)
    (tmp_path / "a.vmx").write_text("")
    with pytest.raises(ConfigError, match="PROXY_CONFIG_FILE"):
        check_provider(config("vmware", tmp_path, path_to_vm=str(tmp_path / "a.vmx"), proxy=True))


@pytest.mark.parametrize(("name", "index"), [("desktop-12.3", 12), ("desktop", 0), ("desktop-4", 4)])
def test_a_desktops_number_is_in_its_name(name, index):
    assert desktop_index(name) == index


def test_the_docs_name_what_each_provider_needs():
    text = (ROOT / "docs" / "providers.md").read_text()
    for name, needs in PROVIDERS.items():
        line = next(line for line in text.splitlines() if line.startswith(f"| `{name}` |"))
        for word in (*needs.packages.values(), *needs.programs, *needs.variables):
            assert word in line
