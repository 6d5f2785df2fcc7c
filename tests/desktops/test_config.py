"""The section `environment:` and the fake's script: what they refuse before anything starts."""

import math

import pytest

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.fake import FakeScript
from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import build_config

DOCKER = {"provider": "docker", "screen_size": (1920, 1080)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"provider": "dokcer"}, "provider must be one of embedded, fake, docker, .* or package.module:name"),
        ({"provider": 3}, "provider must be one of"),
        (
            {"quarantine_s": 60},
            "quarantine_s was removed: the sessions of a task that breaks desktops are dropped",
        ),
        ({"screen_size": "640x480"}, r"screen_size must be \[width, height\] in pixels, got '640x480'"),
        ({"screen_size": (640, 480, 3)}, r"screen_size must be \[width, height\] in pixels"),
        ({"screen_size": (640, 99999)}, r"screen_size must be between \[200, 150\] and \[7680, 4320\]"),
        ({"screen_size": (100, 480)}, "screen_size must be between"),
        ({"provider_options": ["a"]}, "provider_options must be a mapping"),
        ({"worker_resources": "CPU"}, "worker_resources must be a mapping"),
        ({"worker_resources": {"CPU": -1}}, "worker_resources.CPU must be a number that is not negative, got -1"),
        ({"worker_resources": {"CPU": "1"}}, "worker_resources.CPU must be a number"),
        ({"host_resource": 3}, "host_resource must be the beginning of Ray resources' names, got 3"),
        ({"status_file": ""}, "status_file must be a file or null, got ''"),
        ({"step_timeout_s": 2, "wait_s": 1, "settle_timeout_s": 1}, "step_timeout_s must be more than the 2 s that"),
        ({"step_timeout_s": 2, "action_pause_s": 3}, "step_timeout_s must be more than the 3 s that"),
        ({"vm": {"memory": 2048}}, r"vm\.memory is not an option; did you mean environment\.vm\.memory_mib"),
        ({"vm": 4096}, "vm must be a mapping, got 4096"),
        # A machine that cannot be meant.
        (DOCKER | {"path_to_vm": ""}, "path_to_vm must be a name or null"),
        (DOCKER | {"region": 1}, "region must be a name or null"),
        (DOCKER | {"snapshot": 1}, "snapshot must be a name or null"),
        (DOCKER | {"headless": "yes"}, "headless must be true or false"),
        (DOCKER | {"proxy": 1}, "proxy must be true or false"),
        (DOCKER | {"os_type": "Plan9"}, "os_type must be one of Ubuntu, Windows"),
        (DOCKER | {"screen_size": (800, 600)}, r"screen_size must be \[1920, 1080\] with OSWorld's own machine"),
        (DOCKER | {"provider_options": {"ports": {}}}, "provider_options must be without the provider's own"),
        (DOCKER | {"provider": "vmware"}, "path_to_vm must be given with provider vmware"),
        (
            DOCKER | {"provider": "azure", "path_to_vm": "g/vm", "num_desktops": 2},
            "path_to_vm must be 2 machines, got 'g/vm'",
        ),
        (DOCKER | {"provider": "aws", "provider_options": {"a": 1}}, "provider_options must be empty with aws"),
    ],
)
def test_a_bad_value_is_refused_with_what_was_expected(options, message):
    with pytest.raises(ConfigError, match=f"^environment.{message}"):
        build_config(EnvironmentConfig, "environment", options)


@pytest.mark.parametrize(
    ("expected", "value", "names"),
    [
        ("a whole number from 1, or null", 0, "max_boots_per_host"),
        (
            "a whole number of at least 1",
            0,
            "num_desktops desktops_per_worker max_attempts guest_attempts max_boot_failures",
        ),
        (
            "0 or more seconds",
            -0.1,
            "action_pause_s settle_timeout_s wait_s setup_pause_s evaluate_pause_s guest_retry_s retry_backoff_s",
        ),
        (
            "more than 0 seconds",
            0,
            "boot_timeout_s reset_timeout_s step_timeout_s evaluate_timeout_s lease_idle_timeout_s settle_interval_s "
            "health_interval_s",
        ),
    ],
)
def test_every_number_has_a_least_value_and_must_be_a_finite_one(expected, value, names):
    for name in names.split():
        for bad in (value, True, "1", math.nan, math.inf, *[None] * ("null" not in expected)):
            with pytest.raises(ConfigError, match=f"^environment.{name} must be {expected}, got {bad!r}"):
                EnvironmentConfig(**{name: bad})


@pytest.mark.parametrize("name", ["fail", "hang", "die", "seconds"])
def test_a_script_for_a_call_that_there_is_not_is_refused(name):
    with pytest.raises(ConfigError, match=f"provider_options.{name} must be keyed by boot, reset, .* got 'bot'"):
        build_config(FakeScript, "environment.provider_options", {name: {"bot": [1]}})


def test_a_virtual_machine_s_options_are_read_with_the_desktop_s():
    made = EnvironmentConfig(provider="qemu", path_to_vm="/a.qcow2", vm={"memory_mib": 2048, "accelerator": "tcg"})
    assert (made.vm.memory_mib, made.vm.cpus, made.vm.accelerator) == (2048, 4, "tcg")
