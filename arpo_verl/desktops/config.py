"""The recipe's section `environment:`, validated before anything starts."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from arpo_verl.desktops.providers import INDEX, OS_TYPES, PROVIDERS, Provider
from arpo_verl.lib.config import (
    Problems,
    build_config,
    check_fields,
    did_you_mean,
    number,
    one_of,
    require,
    text,
    truth,
    whole,
)
from arpo_verl.types import Size

EMBEDDED = "embedded"
FAKE = "fake"
OSWORLD_PROVIDERS = tuple(PROVIDERS)

# The screen of every machine that OSWorld publishes; no provider changes it.
OSWORLD_SCREEN = Size(1920, 1080)
OSWORLD_DEFAULTS: Mapping[str, Any] = {
    "screen_size": OSWORLD_SCREEN,
    # OSWorld's client blocks its process while it waits for a virtual machine.
    "desktops_per_worker": 1,
    # The pace of OSWorld's own client, since a full desktop paints slowly; `wait` takes what it takes in the paper.
    "action_pause_s": 2.0,
    "wait_s": 5.0,
    # A virtual machine's network may lose a request.
    "guest_attempts": 3,
    "guest_retry_s": 1.0,
}
"""Defaults of `EnvironmentConfig` if the provider is one of OSWorld's client."""
# Arguments of `containers.run` that the Docker provider sets itself.
_DOCKER_OWN_OPTIONS = ("detach", "ports", "volumes")

_HOST = re.compile(r"[\w-]+(\.[\w-]+)+", re.ASCII)

_Seconds = Annotated[float, number(lambda x: x >= 0, "0 or more seconds")]
_PositiveSeconds = Annotated[float, number(lambda x: x > 0, "more than 0 seconds")]


@dataclass(frozen=True)
class VmConfig:
    """Options of the provider `qemu`'s virtual machines."""

    memory_mib: Annotated[int, whole(512)] = 4096
    """Memory of the guest; OSWorld's have 4 GiB. Clones share the pages that they have not written to."""
    cpus: Annotated[int, whole(1)] = 4
    """Processors of the guest; OSWorld's have four."""
    accelerator: Annotated[str, one_of(("kvm", "tcg"))] = "kvm"
    """`kvm`, or `tcg`, QEMU's emulation, some ten times slower, for hosts without KVM."""
    binary: Annotated[str, text("a program")] = "qemu-system-x86_64"
    """QEMU, by its name or path. Templates need 8.2 or newer."""
    folder: Annotated[str | None, text("a folder or null")] = None
    """Folder on a local disk for templates, each as large as the memory that its boot used, and for clones' disk
    writes. None means `$XDG_CACHE_HOME/arpo_verl/vm` (`~/.cache/...`)."""
    disk_mib: Annotated[int, whole(256)] = 8192
    """Most that a machine may write to its disk. A machine that writes more is ended, as its guest's own doing."""
    template: Annotated[bool, truth()] = True
    """Whether machines are clones of a template; False boots every desktop and every reset cold."""

    def __post_init__(self) -> None:
        check_fields(self, "environment.vm")

    @property
    def path(self) -> Path:
        """Return `folder`, or its default."""
        if self.folder is not None:
            return Path(self.folder).expanduser().absolute()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "arpo_verl", "vm")


@dataclass(frozen=True)
class EnvironmentConfig:
    """Chooses the desktops that an agent works on, how many, and how long we wait for them.

    Times are in seconds, sizes in pixels. A time-out is there for calls that hang, not for slow ones: after a time-out
    we throw the desktop away, and the episode starts again on another. With a provider of OSWorld's client, screen,
    pace and `desktops_per_worker` have other defaults in a recipe: `OSWORLD_DEFAULTS`.
    """

    # --- Which desktop -----------------------------------------------------------------------------------------
    provider: str = EMBEDDED
    """Where desktops come from: `embedded` (an X server on this machine), a provider of OSWorld's client, `fake`
    (scripted, for tests), or `package.module:name`: your own `MachineProvider`, whose machines OSWorld's client drives,
    or a function that returns a `DesktopEnvironment`. We call either with this section and the desktop's name."""
    screen_size: Size = Size(640, 480)
    """Width and height of the screen, the pixels of clicks. Checked against the first screenshot."""
    path_to_vm: Annotated[str | None, text("a name or null")] = None
    """OSWorld: the machine. docker, qemu: the .qcow2 file that all desktops start from (None: the one that `arpo-verl
    fetch-vm` put into the working folder); vmware, virtualbox: a .vmx or .vbox file; azure: RESOURCE_GROUP/VM; aws,
    aliyun, volcengine: a machine's id, or None to allocate machines. We replace `{index}` by the desktop's number, from
    0: only docker's and qemu's desktops may share a machine."""
    region: Annotated[str | None, text("a name or null")] = None
    """OSWorld's clouds: where machines are allocated; None takes the region of the provider's own variable
    (`AWS_REGION`, `ALIYUN_REGION`, `VOLCENGINE_REGION`)."""
    snapshot: Annotated[str | None, text("a name or null")] = None
    """OSWorld: the snapshot that a machine is reverted to. None is `init_state`; on aws, OSWorld's image for the region
    and screen. docker, aliyun and volcengine ignore it: they start a fresh machine."""
    os_type: Annotated[str, one_of(OS_TYPES)] = "Ubuntu"
    """OSWorld: the machine to fetch, `Ubuntu` or `Windows`."""
    headless: Annotated[bool, truth()] = True
    """OSWorld, vmware and virtualbox: whether the machine runs without a window on its host."""
    proxy: Annotated[bool, truth()] = False
    """OSWorld: whether tasks that ask for a proxy get one, from the file that `PROXY_CONFIG_FILE` names."""
    password: str = field(default="", repr=False)
    """OSWorld: the guest user's password, for set-up steps that need sudo; empty takes the client's own default.
    `env:NAME` reads the variable NAME where the desktop's worker runs. Use that, because veRL prints the recipe."""
    provider_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Keyword arguments for the embedded provider, the fake's script, or as your own provider reads them. docker:
    arguments of the Docker SDK's `containers.run`, added to the provider's own: `{environment: {RAM_SIZE: 8G,
    CPU_CORES: 8}, mem_limit: 10g}`; and `private_networks`, which desktops may reach beside the internet (default:
    none; see docs/providers.md)."""
    vm: VmConfig = field(default_factory=VmConfig)
    """qemu: the virtual machines, as a mapping of `VmConfig`'s fields; experimental, see docs/vm-desktops.md."""
    cache_dir: str | None = None
    """Folder that keeps downloaded task files; None is `$XDG_CACHE_HOME/arpo_verl` (`~/.cache/...`)."""

    # --- How many ----------------------------------------------------------------------------------------------
    num_desktops: Annotated[int, whole(1)] = 8
    """Desktops, so episodes that run at once. A rollout waits its turn when all are busy."""
    desktops_per_worker: Annotated[int, whole(1)] = 16
    """Desktops that one worker process serves in threads. Importing the OSWorld client costs a process 200 to 300 MB
    and 5 to 8 s, and an embedded desktop's worker mostly waits; a Docker worker may want 1."""
    host_resource: str | None = None
    """Ray resource by which nodes offer desktops: `docker:` means every `docker:<ip>` that a node was started with
    (`ray start --resources='{"docker:10.0.0.1": 16}'`). Each desktop takes one unit, and each node gets its share of
    the desktops by what it offers. None means `docker:` for the Docker provider, and no resource for the others; an
    empty text means no resource. Without one, Ray spreads the workers over all nodes."""
    worker_resources: Mapping[str, float] = field(default_factory=dict)
    """Other Ray resources that each worker process asks for, such as `{desktop_host: 1}`. `CPU` and `memory` (bytes)
    are Ray's own; by default a worker asks for no `CPU`, because it mostly waits."""
    max_boots_per_host: Annotated[int | None, whole(1, "a whole number from 1, or null")] = None
    """How many desktops of a node may boot or be cleaned at once. Virtual machines that all boot together slow each
    other down past their time-outs. The others wait their turn; ready ones are leased meanwhile. None: three fifths of
    the node's desktops, at least 8; see docs/desktop-pool.md."""
    py_executable: str | None = None
    """Path of another Python for the workers, if `desktop-env` clashes with the trainer's packages. It needs arpo_verl,
    the OSWorld client and the same Ray. None: the trainer's own."""

    status_file: Annotated[str | None, text("a file or null")] = None
    """JSON file that shows what every desktop is doing while the run goes on; None writes none. The pool's process, on
    the trainer's node, rewrites it after a change. See docs/trajectories.md."""

    # --- Pace --------------------------------------------------------------------------------------------------
    action_pause_s: _Seconds = 0.05
    """Least time between an action and the look at its effect. Measured on the embedded suite, on two busy cores: at
    0 s 33 of 71 looks missed the effect, at 0.05 s 2, at 0.2 s 4 (programs that were still starting). OSWorld's VMs
    are slower; its client waits 2 s by default."""
    settle_timeout_s: _Seconds = 0.0
    """Longest time to keep looking, after `action_pause_s`, until two looks in a row are the same. 0 looks once."""
    settle_interval_s: _PositiveSeconds = 0.05
    """Time between two of those looks."""
    wait_s: _Seconds = 0.5
    """How long the agent's `wait` action takes. The paper's VMs need 5 s."""
    setup_pause_s: _Seconds = 0.0
    """Pause after a task's set-up, before the first look. OSWorld's own runner waits 60 s."""
    evaluate_pause_s: _Seconds = 0.0
    """Pause before the evaluator looks. OSWorld's own runner waits 20 s."""

    # --- Patience ----------------------------------------------------------------------------------------------
    max_attempts: Annotated[int, whole(1)] = 3
    """Desktops that one episode may use up before it is dropped, whatever broke them. A failed set-up does not count if
    its host fails every task's set-up, so that we drop the host."""
    retry_backoff_s: _Seconds = 1.0
    """Pause before an episode's second attempt, doubled before each further one. It takes a moment to notice and
    replace what broke the desktop, such as a dead node or a lost network."""
    guest_attempts: Annotated[int, whole(1)] = 1
    """How often the client asks the guest for a screenshot or a file. A missing file costs every attempt, so use 1 for
    a guest on this machine, and 3 where a network may lose a request. An action is always sent once."""
    guest_retry_s: _Seconds = 0.0
    """Pause after each failed attempt; the client's own is 5 s."""
    boot_timeout_s: _PositiveSeconds = 300.0
    """Time-out of a boot. A cold OSWorld VM takes minutes; an embedded desktop about one second."""
    reset_timeout_s: _PositiveSeconds = 600.0
    """Time-out of a task's whole set-up: downloads, program starts, and the boot if no desktop was ready."""
    step_timeout_s: _PositiveSeconds = 120.0
    """Time-out of an action. The client itself allows 90 s."""
    evaluate_timeout_s: _PositiveSeconds = 300.0
    evaluator_memory_gib: Annotated[float, number(lambda x: x >= 0.25, "0.25 GiB or more")] = 4.0
    """GiB that each process of an evaluation may use beside OSWorld's client. A metric that reads a document or an
    image needs some hundred MB, one that reads text in images 2 GB. A result of the policy's that a metric cannot read
    within this scores 0."""
    evaluator_hosts: Sequence[str] = ()
    """Internet hosts that evaluators may ask, by HTTPS: `[ipapi.co]` for tasks whose dates depend on where the machine
    is. None by default; tasks that need one are refused."""
    evaluator_runs_policy_code: Annotated[bool, truth()] = False
    """Whether a metric may import what the policy wrote (`check_python_file_by_test_suite`). That code reaches nothing
    outside of its evaluation's sandbox, but it can give itself any score."""
    partial_credit: Annotated[float, number(lambda x: 0 <= x <= 1, "in [0, 1]")] = 0.0
    """Part of the training reward that a failed episode gets for the share of checks that it passed: this weight times
    the share. The paper's reward is binary, so 0. Evaluators with one check have no share. Success, replay, validation
    and evaluations stay binary. docs/suites.md explains the risk."""
    lease_idle_timeout_s: _PositiveSeconds = 3600.0
    """Seconds after which the pool takes back a desktop whose holder does not use it: the holder's process died or
    hangs."""
    max_boot_failures: Annotated[int, whole(1)] = 8
    """Boots in a row that may fail before the run ends with the last one's error, if no desktop of the job ever came
    up: that is a mistake, not an outage. They must also span a minute (or `boot_timeout_s`, if that is less)."""
    outage_timeout_s: _PositiveSeconds = 900.0
    """How long rollouts wait when desktops had come up, but no host gives any now: usually an engine, a network or a
    node is starting again. After that, requests fail at once, until a desktop serves again or nobody has asked for one
    for a minute."""
    health_interval_s: _PositiveSeconds = 30.0
    """How often the pool asks an idle desktop whether it is still alive; it replaces a dead one before anybody leases
    it. Each question costs the guest one screenshot."""

    @staticmethod
    def defaults_beside(values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the defaults that differ from the fields' own beside these values of the section."""
        return OSWORLD_DEFAULTS if values.get("provider") in OSWORLD_PROVIDERS else {}

    def __post_init__(self) -> None:
        problems = Problems()
        for check in (self._take_size, self._take_mappings, self._take_vm, self._take_hosts):
            with problems.gather():
                check()
        with problems.gather():
            check_fields(self, "environment")
        problems.raise_all()
        for check in (self._check_provider, self._check_resources, self._check_waits):
            with problems.gather():
                check()
        problems.raise_all()

    def _take_size(self) -> None:
        value: Any = self.screen_size  # a list, as YAML gives it
        ok = isinstance(value, (list, tuple)) and len(value) == 2 and all(isinstance(v, int) for v in value)
        require(ok, "environment.screen_size", "[width, height] in pixels", value)
        size = Size(*value)
        inside = 200 <= size.width <= 7680 and 150 <= size.height <= 4320
        require(inside, "environment.screen_size", "between [200, 150] and [7680, 4320]", list(size))
        object.__setattr__(self, "screen_size", size)

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
        """The prefix of the resources' names by which nodes offer desktops; empty where any node may have some."""
        if self.host_resource is not None:
            return self.host_resource
        return "docker:" if self.provider == "docker" else ""


def read_password(password: str) -> str:
    """Return the guest's password: the text of `environment.password`, or the variable that it names.

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
