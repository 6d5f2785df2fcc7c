"""The recipe's section `environment:`, validated before anything starts."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from arpo_verl.config import Problems, build_config, check_fields, did_you_mean, number, require, text, truth, whole
from arpo_verl.environments.providers import INDEX, OS_TYPES, PROVIDERS, Provider
from arpo_verl.types import Size
from arpo_verl.vm.config import VmConfig

EMBEDDED = "embedded"
FAKE = "fake"
OSWORLD_PROVIDERS = tuple(PROVIDERS)

# The screen of every machine that OSWorld publishes; no provider changes it.
OSWORLD_SCREEN = Size(1920, 1080)
# What the Docker provider itself hands to `containers.run`.
_DOCKER_OWN_OPTIONS = ("detach", "ports", "volumes")

_HOST = re.compile(r"[\w-]+(\.[\w-]+)+", re.ASCII)

_Seconds = Annotated[float, number(lambda x: x >= 0, "0 or more seconds")]
_PositiveSeconds = Annotated[float, number(lambda x: x > 0, "more than 0 seconds")]


@dataclass(frozen=True)
class EnvironmentConfig:
    """Which desktops an agent works on, how many, and how patient we are with them.

    Times are in seconds, sizes in pixels. Time-outs bound a hang, not the usual case: a call past its time-out costs
    the desktop, and the episode starts anew on another.
    """

    # --- Which desktop -----------------------------------------------------------------------------------------
    provider: str = EMBEDDED
    """`embedded` (an X server on this machine), a provider of OSWorld's client, `fake` (scripted, for tests), or
    `package.module:name`: a `MachineProvider` of yours, whose machines OSWorld's client drives, or a function that
    returns a `DesktopEnvironment`. Either is called with this section and the desktop's name."""
    screen_size: Size = Size(640, 480)
    """What the desktop shows; clicks are given in these pixels. Checked against the first screenshot."""
    path_to_vm: str | None = None
    """OSWorld: the machine. docker, qemu: the .qcow2 file that all desktops start from (None: what `arpo-verl
    fetch-vm` left in the working folder); vmware, virtualbox: a .vmx or .vbox file; azure: RESOURCE_GROUP/VM; aws,
    aliyun, volcengine: None, which allocates machines, or one's id. `{index}` in it becomes the desktop's number, from
    0: only docker's and qemu's desktops may share a machine."""
    region: str | None = None
    """OSWorld's clouds: where machines are allocated; None is what the provider's own variable says (`AWS_REGION`,
    `ALIYUN_REGION`, `VOLCENGINE_REGION`)."""
    snapshot: str | None = None
    """OSWorld: what a machine is reverted to. None is `init_state`, on aws OSWorld's image for the region and screen;
    docker, aliyun and volcengine start a fresh machine and look at none."""
    os_type: str = "Ubuntu"
    """OSWorld: `Ubuntu` or `Windows`: which machine is fetched."""
    headless: bool = True
    """OSWorld, vmware and virtualbox: whether the machine opens no window on its host."""
    proxy: bool = False
    """OSWorld: whether tasks that ask for a proxy get one, of the file that `PROXY_CONFIG_FILE` names."""
    password: str = field(default="", repr=False)
    """OSWorld: the guest user's password, for set-up steps that need sudo; empty takes the client's own default.
    `env:NAME` is the value of that variable where the desktop's worker runs: veRL prints the recipe when it starts."""
    provider_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Keyword arguments handed to the embedded provider, or to the fake's script; a provider of yours reads them as it
    likes. docker: to `containers.run` of the
    Docker SDK, beside the provider's own: `{environment: {RAM_SIZE: 8G, CPU_CORES: 8}, mem_limit: 10g}`; and
    `private_networks`, which desktops may reach beside the internet: none by default, see docs/providers.md."""
    vm: VmConfig = field(default_factory=VmConfig)
    """qemu: the virtual machines, as a mapping of `VmConfig`'s fields; experimental, see docs/vm-desktops.md."""
    cache_dir: str | None = None
    """Where task files that were downloaded once are kept; None is `$XDG_CACHE_HOME/arpo_verl` (`~/.cache/...`)."""

    # --- How many ----------------------------------------------------------------------------------------------
    num_desktops: Annotated[int, whole(1)] = 8
    """How many episodes run at once. A rollout waits its turn when all are busy."""
    desktops_per_worker: Annotated[int, whole(1)] = 16
    """Desktops that one worker process serves in threads. Importing the OSWorld client costs a process 200 to 300 MB
    and 5 to 8 s, and an embedded desktop's worker mostly waits; a Docker worker may want 1."""
    host_resource: str | None = None
    """Ray resource by which nodes offer desktops: `docker:` stands for every `docker:<ip>` that a node was started
    with (`ray start --resources='{"docker:10.0.0.1": 16}'`). Each desktop takes one unit, and nodes share the desktops
    in proportion to what they offer. None is `docker:` for the Docker provider and no resource for any other; empty
    is none. Without one, Ray spreads the workers over all nodes."""
    worker_resources: Mapping[str, float] = field(default_factory=dict)
    """Ray resources that each worker process asks for besides, such as `{desktop_host: 1}`. `CPU` and `memory` (bytes)
    are Ray's own; without `CPU` a worker asks for none, since it mostly waits."""
    max_boots_per_host: Annotated[int | None, whole(1, "a whole number from 1, or null")] = None
    """Desktops that boot or are cleaned at once on a node. Virtual machines that all boot together starve each other
    past their time-outs; the others wait their turn while ready ones are leased. None: three fifths of the node's
    desktops, at least 8; see docs/desktop-pool.md."""
    py_executable: str | None = None
    """Another Python for the workers, where `desktop-env` clashes with the trainer's packages. It needs arpo_verl,
    the OSWorld client and the same Ray. None: the trainer's own."""

    status_file: Annotated[str | None, text("a file or null")] = None
    """Where what every desktop is at can be read while the run goes on, as JSON; None: nowhere. Written by the process
    behind the pool, on the trainer's node, when something changed. See docs/trajectories.md."""

    # --- Pace --------------------------------------------------------------------------------------------------
    action_pause_s: _Seconds = 0.05
    """Least time between an action and the look at its effect. Measured on the embedded suite, on two busy cores: at
    0 s 33 of 71 looks missed the effect, at 0.05 s 2, at 0.2 s 4 (programs that were still starting). OSWorld's VMs
    are slower; its client waits 2 s by default."""
    settle_timeout_s: _Seconds = 0.0
    """Keep looking after `action_pause_s` until two looks in a row show the same, at most this long. 0 looks once."""
    settle_interval_s: _PositiveSeconds = 0.05
    """Time between two of those looks."""
    wait_s: _Seconds = 0.5
    """What the agent's `wait` action takes. The paper's VMs need 5 s."""
    setup_pause_s: _Seconds = 0.0
    """Rest after a task's set-up, before the first look. OSWorld's own runner rests 60 s."""
    evaluate_pause_s: _Seconds = 0.0
    """Rest before the evaluator looks. OSWorld's own runner rests 20 s."""

    # --- Patience ----------------------------------------------------------------------------------------------
    max_attempts: Annotated[int, whole(1)] = 3
    """Fresh desktops that one episode may use up before it is dropped. One whose set-up fails on a host that rests,
    since it fails every task, does not count."""
    retry_backoff_s: _Seconds = 1.0
    """Rest before an episode's second attempt, twice as long before each further one: what broke the desktop, a node
    that died or a network that broke off, takes a moment to be noticed and replaced."""
    guest_attempts: Annotated[int, whole(1)] = 1
    """How often the client asks the guest for a screenshot or a file. A file that is not there costs every attempt,
    so 1 for a guest on this machine; 3 where a network may lose a request. Actions are sent once, always."""
    guest_retry_s: _Seconds = 0.0
    """Pause after each failed attempt; the client's own is 5 s."""
    boot_timeout_s: _PositiveSeconds = 300.0
    """A cold OSWorld VM takes minutes; an embedded desktop about one second."""
    reset_timeout_s: _PositiveSeconds = 600.0
    """A task's whole set-up, downloads and program starts included, and the boot where none was ready."""
    step_timeout_s: _PositiveSeconds = 120.0
    """The client itself gives an action 90 s."""
    evaluate_timeout_s: _PositiveSeconds = 300.0
    evaluator_memory_gib: Annotated[float, number(lambda x: x >= 0.25, "0.25 GiB or more")] = 4.0
    """GiB that each process of an evaluation may take beside what OSWorld's client takes: a metric that reads a
    document or an image takes some hundred MB, one that reads text in images 2 GB. What the policy made and a metric
    cannot read within it scores 0."""
    evaluator_hosts: Sequence[str] = ()
    """Names of the internet that evaluators may ask, by HTTPS: `[ipapi.co]` for tasks whose dates depend on where the
    machine is. None by default; tasks that need one are refused."""
    evaluator_runs_policy_code: Annotated[bool, truth()] = False
    """Whether a metric may import what the policy wrote (`check_python_file_by_test_suite`). It still reaches nothing
    outside of its evaluation's sandbox, but it can give itself any score."""
    partial_credit: Annotated[float, number(lambda x: 0 <= x <= 1, "in [0, 1]")] = 0.0
    """Weight of the share of its evaluator's checks that a failed episode met, in its training reward: the paper's
    reward is binary, 0. Evaluators with one check have no share. Success, replay, validation and evaluations stay
    binary. docs/suites.md has the risk."""
    lease_idle_timeout_s: _PositiveSeconds = 3600.0
    """Seconds after which a desktop that its holder does not use is taken back: that process died, or hangs. Those of a
    rollout worker that dies are taken back at once."""
    max_boot_failures: Annotated[int, whole(1)] = 8
    """Boots that must fail in a row, for a minute (for `boot_timeout_s`, where that is less), before the run ends with
    the last one's error, as long as no desktop of the job ever came up: that is rather a mistake than an outage."""
    outage_timeout_s: _PositiveSeconds = 900.0
    """How long rollouts wait when desktops had come up and no host gives any now: an engine, a network or a node that
    is started again is back by then. Those who come right after that get an error at once, until a desktop serves again
    or nobody has asked for one for a minute."""
    health_interval_s: _PositiveSeconds = 30.0
    """How often a ready desktop that nobody uses is asked whether it is still alive; a dead one is replaced before
    anybody leases it. Costs the guest one screenshot."""
    quarantine_faults: Annotated[int, whole(0)] = 6
    """A task whose episodes broke desktops so often, with none completed in between while other tasks' were, is
    quarantined: its sessions are dropped at once, so that it cannot eat up the others' desktops. Two sessions' attempts
    by default; 0 never does. Where there are two hosts, it must have broken some on both."""
    quarantine_desktops: Annotated[int, whole(1)] = 3
    """On how many different desktops of the pool those faults must have come (all of them in a smaller pool): a single
    bad place is not the task's fault."""
    quarantine_s: _Seconds = 1800.0
    """After this long the task is tried again; one more fault sends it back, one completed episode clears it."""

    def __post_init__(self) -> None:
        problems = Problems()
        for check in (self._take_size, self._take_mappings, self._take_vm, self._take_hosts, self._check_fields):
            with problems.gather():
                check()
        problems.raise_all()
        for check in (self._check_provider, self._check_resources, self._check_waits):
            with problems.gather():
                check()
        problems.raise_all()

    def _check_fields(self) -> None:
        check_fields(self, "environment")

    def _take_size(self) -> None:
        object.__setattr__(self, "screen_size", _size(self.screen_size))

    def _take_mappings(self) -> None:
        for name in ("provider_options", "worker_resources"):
            require(isinstance(getattr(self, name), Mapping), f"environment.{name}", "a mapping", getattr(self, name))
            object.__setattr__(self, name, dict(getattr(self, name)))

    def _take_vm(self) -> None:
        vm: Any = self.vm  # a mapping, as YAML gives it
        if not isinstance(vm, VmConfig):
            require(isinstance(vm, Mapping), "environment.vm", "a mapping", vm)
            object.__setattr__(self, "vm", build_config(VmConfig, "environment.vm", vm))

    def _take_hosts(self) -> None:
        hosts = self.evaluator_hosts
        ok = isinstance(hosts, (list, tuple)) and all(isinstance(h, str) and _HOST.fullmatch(h) for h in hosts)
        require(ok, "environment.evaluator_hosts", "a list of host names", hosts)
        object.__setattr__(self, "evaluator_hosts", tuple(hosts))

    def _check_resources(self) -> None:
        ok = self.host_resource is None or isinstance(self.host_resource, str)
        require(ok, "environment.host_resource", "the beginning of Ray resources' names", self.host_resource)
        for name, amount in self.worker_resources.items():
            ok = isinstance(amount, (int, float)) and amount >= 0
            require(ok, f"environment.worker_resources.{name}", "a number that is not negative", amount)

    def _check_waits(self) -> None:
        waits = max(self.action_pause_s, self.wait_s) + self.settle_timeout_s
        require(
            waits < self.step_timeout_s,
            "environment.step_timeout_s",
            f"more than the {waits:g} s that an action may wait by action_pause_s, wait_s and settle_timeout_s",
            self.step_timeout_s,
        )

    def _check_provider(self) -> None:
        known = (EMBEDDED, FAKE, *OSWORLD_PROVIDERS)
        ok = isinstance(self.provider, str) and (self.provider in known or ":" in self.provider)
        expected, hint = f"one of {', '.join(known)} or package.module:name", did_you_mean(self.provider, known)
        require(ok, "environment.provider", expected, self.provider, hint.removeprefix("; "))
        if self.provider in PROVIDERS:
            self._check_machine(PROVIDERS[self.provider])

    def _check_machine(self, provider: Provider) -> None:
        for name in ("path_to_vm", "region", "snapshot"):
            value = getattr(self, name)
            ok = value is None or (isinstance(value, str) and value != "")
            require(ok, f"environment.{name}", "a name or null", value)
        for name in ("headless", "proxy"):
            require(isinstance(getattr(self, name), bool), f"environment.{name}", "a truth value", getattr(self, name))
        require(self.os_type in OS_TYPES, "environment.os_type", f"one of {', '.join(OS_TYPES)}", self.os_type)
        if self.path_to_vm is None:
            require(provider.allocates, "environment.path_to_vm", f"given with provider {self.provider}", None)
            remedy = "set it so, or give a machine of yours by environment.path_to_vm"
            ok = self.screen_size == OSWORLD_SCREEN
            expected = f"{list(OSWORLD_SCREEN)} with OSWorld's own machine"
            require(ok, "environment.screen_size", expected, list(self.screen_size), remedy)
        elif not provider.shares_vm:
            remedy = f"write {INDEX} where the desktops' machines differ"
            ok = self.num_desktops == 1 or INDEX in self.path_to_vm
            require(ok, "environment.path_to_vm", f"{self.num_desktops} machines", self.path_to_vm, remedy)
        options = set(self.provider_options)
        if self.provider == "docker":
            ok = options.isdisjoint(_DOCKER_OWN_OPTIONS)
            expected = f"without the provider's own {', '.join(_DOCKER_OWN_OPTIONS)}"
            require(ok, "environment.provider_options", expected, self.provider_options)
            allowed = self.provider_options.get("private_networks", ())
            name, expected = "environment.provider_options.private_networks", "a list such as [10.1.2.3, 10.8.0.0/16]"
            require(_are_networks(allowed), name, expected, allowed)
        else:
            require(not options, "environment.provider_options", f"empty with {self.provider}", self.provider_options)

    @property
    def host_prefix(self) -> str:
        """How the names of the resources begin by which nodes offer desktops; empty where any node may have some."""
        if self.host_resource is not None:
            return self.host_resource
        return "docker:" if self.provider == "docker" else ""


def read_password(password: str) -> str:
    """The guest's password, of `environment.password` as it stands in the recipe.

    Raises:
        ConfigError: it names a variable that is not set here.
    """
    name = password.removeprefix("env:")
    if name == password:
        return password
    remedy = "set it where the desktops' workers start, as by `ray start`"
    require(name in os.environ, f"the variable {name} of environment.password", "set", None, remedy)
    return os.environ[name]


def _are_networks(value: Any) -> bool:
    try:
        return isinstance(value, (list, tuple)) and all(ipaddress.IPv4Network(network) for network in value)
    except ValueError:
        return False


def _size(value: Any) -> Size:
    """A screen size from `[width, height]`, as YAML gives it."""
    ok = isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(v, int) for v in value)
    require(ok, "environment.screen_size", "[width, height] in pixels", value)
    size = Size(*value)
    inside = 200 <= size.width <= 7680 and 150 <= size.height <= 4320
    require(inside, "environment.screen_size", "between [200, 150] and [7680, 4320]", list(size))
    return size
