"""Faults under the real loop and the real trainer, on real desktops: does anything hang, lie, get lost or stay behind?

    python benchmarks/chaos.py [--smoke] [--json PATH] [--seed N] [--episodes N] [--desktops N] [--outage SECONDS]
        [--kills N] [--work FOLDER]

It has two parts. What a file of `--json` has already is not done again: the same command goes on where it was stopped.

    hangs               runs in which nothing happened for two minutes, and that said not why (`training`)
    steps_repeated      by what was killed, the steps that each kill cost (`training`)
    false_rewards, leaks, lost_sessions_share           of both parts together; see below

**training**: runs by `arpo-verl train`, of which processes are killed, and which start again: `chaos_training`. A run
has its `kills`, its `episodes`, and those that were `lost`.

**desktops**: `GuiAgentLoop` plays episodes of the shipped suite on the job's pool, on a Ray cluster of a head and two
nodes with embedded desktops. The expert's replies stand for the policy; three of ten episodes say that they are done
before they have done anything, so that a 0 is earned. 20% of the episodes meet a fault (`chaos_desktop.KINDS`), at a
random moment of their first attempt; besides, nodes die, and come back. Root is needed: the truth is read through
/proc.

    false_rewards       scored episodes whose reward is not what the desktop's files say, read past guest and metrics
                        right before and right after the verdict, either of which counts. Also false: scored without a
                        verdict, or when the truth could not be read.
    faults              by kind: `injected`, `retried` (the episode was played again), `lost` (given up)
    lost_sessions_share given up of all
    outage              after that, three episodes a desktop, and for so many seconds every desktop dies and none boots:
                        `lost`, of all that were `played`
    leaks               what was left after all was closed: processes, listening ports, mounts, cgroups, /dev/shm,
                        scratch folders
    throughput          episodes scored a second, with faults and without; `ratio` is the first over the second. Both
                        take turns in five rounds, since other work on the machine comes and goes
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import json
import os
import queue
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
from figures import Arguments, machine, show, write

from arpo_verl.lib.own_ray import PATIENCE

T = TypeVar("T")
HERE = Path(__file__).parent
FAULTY_SHARE, LAZY_SHARE = 0.2, 0.3
MOMENTS = ("reset", "step", "evaluate")
TMP_BYTES = 256 << 20
NODE_BACK_S = 5.0
CLOSED_WITHIN_S = 60.0
# Ray's, one of each a node: they outlive a raylet that is killed by a minute or two.
RAYS_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
END = "<|im_end|>"
LAZY = "Thought: Nothing to do.\nAction: finished()"
_CLONE_NEWNS, _PR_SET_CHILD_SUBREAPER = 0x20000, 36
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18


@dataclass(frozen=True)
class Plan:
    """One episode, drawn before anything starts."""

    id: str
    task_id: str
    is_lazy: bool
    fault: str | None = None
    at: str = ""


@dataclass
class Played:
    plan: Plan
    attempts: int = 0
    reward: float | None = None
    success: float | None = None
    stop_reason: str = ""
    error: str = ""
    seconds: float = 0.0
    notes: list[dict[str, Any]] = field(default_factory=list)
    was_injected: bool = False

    @property
    def truth(self) -> set[bool | None]:
        """What the reward may be. Infeasible tasks are done by saying so, which only the policy does."""
        if self.plan.task_id.startswith("infeasible"):
            return {not self.plan.is_lazy}
        verdicts = [note for note in self.notes if "score" in note]
        return {verdicts[-1]["before"], verdicts[-1]["after"]} if verdicts else {None}

    @property
    def is_false(self) -> bool:
        if self.reward is None:
            return False
        return None in self.truth or self.reward != self.success or self.reward not in map(float, self.truth)


Part = tuple[list[Played], float]
"""Episodes, and the seconds that they took together."""


def draw(seed: int, number: int, share: float, name: str) -> list[Plan]:
    """Episodes; every kind of fault comes as often as every other."""
    from chaos_desktop import KINDS, TRUTHS

    numbers = random.Random(f"{seed}-{name}")
    tasks = [*TRUTHS, "infeasible-bluetooth", "infeasible-fax-note"]
    hit = set(numbers.sample(range(number), round(number * share)))
    kinds = [KINDS[index % len(KINDS)] for index in range(len(hit))]
    numbers.shuffle(kinds)
    plans = []
    for index in range(number):
        task_id, is_lazy = numbers.choice(tasks), numbers.random() < LAZY_SHARE
        fault = kinds.pop() if index in hit else None
        at = "evaluate" if fault == "evaluator_raises" else numbers.choice(MOMENTS)
        plans.append(Plan(f"{name}-{index:04d}", task_id, is_lazy, fault, at if fault else ""))
    return plans


# --- The stage -------------------------------------------------------------------------------------------------------


class Nodes:
    """A Ray cluster of a head and two nodes with desktops, one of which dies now and then."""

    def __init__(self, num_desktops: int):
        from ray.cluster_utils import Cluster

        os.environ.update(PATIENCE)
        self.deaths = 0
        self._orders: queue.Queue[tuple[Callable[[], Any], concurrent.futures.Future[Any]]] = queue.Queue()
        self._units = -(-num_desktops // 2)
        self._cluster = Cluster()
        self._cluster.add_node(num_cpus=2, include_dashboard=False)
        self._nodes = {name: self._add(name) for name in ("east", "west")}

    @property
    def address(self) -> str:
        address: str = self._cluster.address
        return address

    def _add(self, name: str) -> Any:
        return self._cluster.add_node(num_cpus=0, resources={f"desktop:{name}": self._units})

    async def die(self, name: str) -> None:
        """SIGKILL a node with its workers, and start it again."""
        self.deaths += 1
        await self._in_main(lambda: self._cluster.remove_node(self._nodes[name], allow_graceful=False))
        await asyncio.sleep(NODE_BACK_S)
        self._nodes[name] = await self._in_main(lambda: self._add(name))

    async def _in_main(self, function: Callable[[], Any]) -> Any:
        """Ray starts nodes, which handle signals, in the main thread only."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._orders.put((function, future))
        return await asyncio.wrap_future(future)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it in a thread, while this one, the main one, does what it asks for."""
        loop = asyncio.new_event_loop()
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            task = loop.create_task(coroutine)
            done = threads.submit(loop.run_until_complete, task)
            try:
                while not done.done() or not self._orders.empty():
                    with contextlib.suppress(queue.Empty):
                        function, future = self._orders.get(timeout=0.1)
                        future.set_result(function())
                return done.result()
            finally:
                loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        """The head last: Ray has a node that is stopped ask it for leave."""
        for node in [*self._nodes.values(), self._cluster.head_node]:
            self._cluster.remove_node(node, allow_graceful=False)


class Engine:
    """Stands for veRL's `LLMServerClient`: replies as planned, from the first screenshot on in each attempt."""

    def __init__(self, tokenizer: Any, geometry: Any, played: Played):
        from arpo_verl.agent.models.family import load_family
        from arpo_verl.tasks.expert import EXPERT_SCREEN, expert_replies

        size = geometry.image_size(EXPERT_SCREEN)
        texts = [load_family("ui_tars_15").format(r, size, EXPERT_SCREEN) for r in expert_replies(played.plan.task_id)]
        if played.plan.is_lazy:
            texts = [LAZY]
        self._replies = [tokenizer.encode(text + END, add_special_tokens=False) for text in texts]

    async def generate(self, *, image_data: Any, **_: Any) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        turn = len(image_data) - 1
        token_ids = self._replies[turn]
        return TokenOutput(token_ids=token_ids, log_probs=[-0.1] * len(token_ids), stop_reason="completed")


class Stage:
    """Plays plans on the job's pool."""

    def __init__(self, model: str, num_desktops: int, nodes: Nodes, notes: Path):
        from verl.utils import hf_processor, hf_tokenizer

        from arpo_verl.plugin.settings import connect_pool
        from arpo_verl.tasks.loader import load_tasks

        self._tokenizer, self._processor = hf_tokenizer(model), hf_processor(model)
        self._tasks = {task.task_id: task for task in load_tasks("embedded")}
        self._config = recipe(num_desktops)
        self._num_desktops = num_desktops
        self.nodes = nodes
        self._notes = notes
        self.pool = connect_pool(self._config)

    async def play(self, plans: list[Plan], deaths: int) -> tuple[list[Played], float]:
        """Play all of them, two at a time for each desktop; nodes die in turn, evenly spread. Returns seconds too."""
        waiting, done, began = list(reversed(plans)), [], time.monotonic()
        due = [round(len(plans) * (index + 1) / (deaths + 1)) for index in range(deaths)]
        dying: list[asyncio.Task[None]] = []

        async def work() -> None:
            while waiting:
                done.append(await self._episode(waiting.pop()))
                if due and len(done) >= due[0]:
                    due.pop(0)
                    dying.append(asyncio.create_task(self.nodes.die(("east", "west")[len(dying) % 2])))
                print(f"\r{len(done)} of {len(plans)}", end="", file=sys.stderr, flush=True)

        await asyncio.gather(*(work() for _ in range(2 * self._num_desktops)))
        seconds = time.monotonic() - began
        print(file=sys.stderr)
        await asyncio.gather(*dying)
        return done, seconds

    async def play_in_outage(self, plans: list[Plan], seconds: float) -> dict[str, Any]:
        """Play them while every desktop dies and none boots, from when the first is done and for as long."""
        playing = [asyncio.create_task(self._episode(plan)) for plan in plans]
        await asyncio.wait(playing, return_when=asyncio.FIRST_COMPLETED)
        outage = self._notes / "outage"
        outage.touch()
        await asyncio.sleep(seconds)
        outage.unlink()
        played = await asyncio.gather(*playing)
        return {
            "seconds": seconds,
            "played": len(played),
            "lost": sum(bool(each.error) for each in played),
            "false_rewards": sum(each.is_false for each in played),
        }

    async def _episode(self, plan: Plan) -> Played:
        from verl.experimental.agent_loop.agent_loop import DictConfigWrap

        from arpo_verl.agent.rollout.vision import ImageGeometry
        from arpo_verl.errors import ArpoError
        from arpo_verl.plugin.agent_loop import GuiAgentLoop

        played, task, began = Played(plan), self._tasks[plan.task_id], time.monotonic()
        attempts = _Counting(self.pool, played)
        loop = GuiAgentLoop(
            trainer_config=DictConfigWrap(self._config),
            server_manager=Engine(self._tokenizer, ImageGeometry.from_processor(self._processor), played),
            tokenizer=self._tokenizer,
            processor=self._processor,
            hf_model_type=self._processor.config.model_type,
            dataset_cls=None,
            data_config=DictConfigWrap(self._config.data),
            tools=None,
            pool=attempts,
        )
        spec = {**task.spec, "chaos": {"episode": plan.id, "fault": plan.fault, "at": plan.at}}
        row = {
            **{"uid": plan.id, "session_id": 0, "global_steps": 1, "data_source": "embedded"},
            "extra_info": {"task_id": task.task_id, "instruction": task.instruction, "spec": spec},
        }
        try:
            output = await loop.run({"temperature": 1.0, "logprobs": True}, **row)
        except ArpoError as error:
            played.error = f"{type(error).__name__}: {error}"
        else:
            played.reward, played.success = output.reward_score, output.extra_fields["success"]
            played.stop_reason = output.extra_fields["stop_reason"]
        played.seconds = time.monotonic() - began
        noted, injected = self._notes / f"verdict-{plan.id}", self._notes / f"injected-{plan.id}"
        if noted.exists():
            played.notes = [json.loads(line) for line in noted.read_text().splitlines()]
        played.was_injected = injected.exists()
        return played


class _Counting:
    """The pool's handle, counting the attempts of one episode."""

    def __init__(self, pool: Any, played: Played):
        self._pool = pool
        self._played = played

    def session(self, task_id: str, batch: int) -> Any:
        session, played = self._pool.session(task_id, batch), self._played
        lease = session.lease

        def counted() -> Any:
            played.attempts += 1
            return lease()

        session.lease = counted
        return session

    async def refuse(self, message: str) -> None:
        await self._pool.refuse(message)


def recipe(num_desktops: int) -> Any:
    """The sections that the agent loop reads. Time-outs are short enough that a hang is found in the run."""
    from omegaconf import OmegaConf

    agent = {
        "max_steps": 8,
        "max_screenshots": 8,
        "max_reply_tokens": 96,
        "model_family": "small",
        "trajectory_dir": None,
    }
    rollout = {"prompt_length": 512, "response_length": 1536, "full_determinism": False}
    environment = {
        "provider": "chaos_desktop:make",
        "screen_size": [640, 480],
        "num_desktops": num_desktops,
        "desktops_per_worker": 4,
        "host_resource": "desktop:",
        "retry_backoff_s": 0.5,
        "step_timeout_s": 15.0,
        "reset_timeout_s": 60.0,
        "evaluate_timeout_s": 40.0,
        "boot_timeout_s": 60.0,
        "health_interval_s": 5.0,
    }
    sections = {"gui_agent": agent, "environment": environment, "data": {}}
    return OmegaConf.create({**sections, "actor_rollout_ref": {"rollout": rollout}})


# --- What is left ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def own_place() -> Iterator[Path]:
    """A small disk of our own for temporary files, and orphans come to us: what is left at the end is ours alone."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *args: Any) -> None:
        if getattr(libc, name)(*args) != 0:
            raise OSError(ctypes.get_errno(), name)

    call("unshare", _CLONE_NEWNS)
    call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    place = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        for name in ("tmp", "notes"):
            (place / name).mkdir()
        call("mount", b"chaos", bytes(place / "tmp"), b"tmpfs", 0, f"size={TMP_BYTES}".encode())
        os.environ["TMPDIR"] = tempfile.tempdir = str(place / "tmp")
        # Ray's logs and Torch's cache stay by design, and are not what a full disk is to hit here.
        os.environ["RAY_TMPDIR"], os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(place), str(place / "torch")
        yield place
    finally:
        for process in _children():
            with contextlib.suppress(psutil.Error):
                process.kill()
        libc.umount2(bytes(place / "tmp"), 2)
        import shutil

        shutil.rmtree(place, ignore_errors=True)


def belongings() -> dict[str, set[str]]:
    """What can be left behind."""
    own = [process for process in _children() if not _command(process).startswith(RAYS_AGENTS)]
    return {
        "processes": {f"{process.pid} {_command(process)}" for process in own if _command(process)},
        "ports": {port for process in [psutil.Process(), *own] for port in _listening(process)},
        "mounts": {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()},
        # Not by `rglob`, which ends at a folder that vanishes meanwhile: others' desktops come and go.
        "cgroups": {f"{at}/{name}" for at, names, _ in os.walk("/sys/fs/cgroup") for name in names if "arpo" in name},
        "shm": set(os.listdir("/dev/shm")),
        # veRL locks each checkpoint by a file that it leaves there.
        "scratch": {str(path) for path in Path(tempfile.gettempdir()).iterdir() if not path.match("ckpt_*.lock")},
    }


def _children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _listening(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):  # it has ended
        return [str(each.laddr.port) for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
    return []


def _command(process: psutil.Process) -> str:
    """A process's command; empty for one that has ended."""
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.Error:
        return ""


def _open_files(pid: int | str) -> Iterator[str]:
    """What a process has open; nothing of one that has ended, nor what it closes meanwhile."""
    folder, names = f"/proc/{pid}/fd", list[str]()
    with contextlib.suppress(OSError):
        names = os.listdir(folder)
    for name in names:
        with contextlib.suppress(OSError):
            yield os.readlink(f"{folder}/{name}")


def leaks(before: dict[str, set[str]]) -> dict[str, list[str]]:
    """What has come and stays, but for what a moment's patience ends. /dev/shm and cgroups are the machine's: what
    others, who use it too, made meanwhile is theirs if a process of theirs still has it."""
    deadline = time.monotonic() + CLOSED_WITHIN_S
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = {name: sorted(now - before[name]) for name, now in belongings().items()}
        left["cgroups"] = [path for path in left["cgroups"] if not _is_others(Path(path))]
        left["shm"] = [name for name in left["shm"] if not _is_open(f"/dev/shm/{name}")]
        if not any(left.values()) or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def _is_others(cgroup: Path) -> bool:
    """Whether processes are in it, none of them ours, or it is gone by now."""
    try:
        return any(path.read_text().strip() for path in [cgroup, *cgroup.parents][0].rglob("cgroup.procs"))
    except OSError:
        return True


def _is_open(path: str) -> bool:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if path in _open_files(pid):
            return True
        with contextlib.suppress(OSError):
            if path in Path(f"/proc/{pid}/maps").read_text():
                return True
    return False


# --- Figures ---------------------------------------------------------------------------------------------------------


def summarize(parts: list[Part], calm_parts: list[Part]) -> dict[str, Any]:
    """What both kinds of parts came to; see above."""
    (faulty, faulty_s), (calm, calm_s) = _join(parts), _join(calm_parts)
    played = [*faulty, *calm]
    kinds = sorted({each.plan.fault for each in faulty if each.plan.fault})
    hit = {kind: [each for each in faulty if each.plan.fault == kind] for kind in kinds}
    rates = {
        "faulty": sum(each.reward is not None for each in faulty) / faulty_s,
        "fault_free": sum(each.reward is not None for each in calm) / calm_s,
    }
    return {
        "episodes": len(faulty),
        "episodes_fault_free": len(calm),
        "faults": {
            kind: {
                "planned": len(those),
                "injected": sum(each.was_injected for each in those),
                "retried": sum(each.attempts > 1 for each in those),
                "lost": sum(bool(each.error) for each in those),
            }
            for kind, those in hit.items()
        },
        "false_rewards": sum(each.is_false for each in played),
        "lost_sessions_share": sum(bool(each.error) for each in faulty) / len(faulty),
        "throughput": {**rates, "ratio": rates["faulty"] / rates["fault_free"]},
    }


def _join(parts: list[Part]) -> Part:
    return [each for played, _ in parts for each in played], sum(seconds for _, seconds in parts)


def main() -> None:
    parser = Arguments(__doc__, "one episode of each kind of fault, none of them repeated")
    parser.add_argument("--seed", type=int, default=0, help="of tasks, faults and their moments")
    parser.add_size("--episodes", 500, 40, "with 20% faulty (half, with --smoke)")
    parser.add_size("--desktops", 8, 4, "at once")
    parser.add_size("--calm", 100, 20, "episodes without faults")
    parser.add_size("--rounds", 5, 1, "of both")
    parser.add_size("--deaths", 5, 1, "of nodes")
    parser.add_size("--outage", 300, 20, "seconds of an outage of all desktops")
    parser.add_size("--kills", 10, 2, "of processes of a trainer, in each mode")
    parser.add_argument("--work", type=Path, help="folder of the trainer's runs: one that was stopped goes on")
    args = parser.parse()
    if os.geteuid() != 0:
        parser.error("needs root: the truth is read through /proc")
    document: dict[str, Any] = json.loads(args.json.read_text()) if args.json and args.json.is_file() else {}

    def save() -> None:
        document.update(totals(document))
        write(document, args.json)

    with own_place() as place:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        if "desktops" not in document:
            context = {**machine(), "seed": args.seed, "desktops": args.desktops}
            figures, details = run(args, 0.5 if args.smoke else FAULTY_SHARE, place)
            document["desktops"] = {**context, "command": " ".join(["python", *sys.argv]), **figures}
            save()
            for each in details:
                print(each)
        run_trainers(args, document, args.work or place, save)
    save()
    show(document)


def run_trainers(args: Any, document: dict[str, Any], place: Path, save: Callable[[], None]) -> None:
    """The part `training`, as far as the document does not have it."""
    import chaos_training
    from chaos_desktop import NOTES_VARIABLE

    os.environ[NOTES_VARIABLE] = str(place / "notes of training")
    (place / "notes of training").mkdir(parents=True, exist_ok=True)
    done = {name: document.get("training", {}).get(name, empty) for name, empty in (("unbroken", {}), ("runs", []))}
    before = belongings()

    def summarize() -> None:
        document["training"] = {**machine(), **chaos_training.summarize(done)}
        save()

    chaos_training.train(place, done, args, summarize, lambda: leaks(before))


def totals(document: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of both parts together."""
    parts = [document[name] for name in ("desktops", "training") if name in document]
    lost = sum(part.get("lost", part.get("lost_sessions_share", 0.0) * part["episodes"]) for part in parts)
    return {
        **{name: document.get("training", {}).get(name, 0) for name in ("hangs", "steps_repeated")},
        **{name: sum(part[name] for part in parts) for name in ("false_rewards", "leaks")},
        "lost_sessions_share": lost / sum(part["episodes"] for part in parts),
    }


def run(args: Any, share: float, place: Path) -> tuple[dict[str, Any], list[str]]:
    """Everything of the part `desktops` between the two looks at what belongs to us."""
    from chaos_desktop import NOTES_VARIABLE

    os.environ[NOTES_VARIABLE] = str(place / "notes")
    before = belongings()
    import ray
    from policies.architecture import PolicySize
    from policies.build import build_policy

    model = str(build_policy(place / "policy", size=PolicySize(num_layers=1, vision_depth=1)))
    nodes = Nodes(args.desktops)
    try:
        ray.init(address=nodes.address, log_to_driver=False)
        stage = Stage(model, args.desktops, nodes, place / "notes")
        figures, told = nodes.run(play_all(stage, args, share))
        stage.pool.close()
    finally:
        ray.shutdown()
        nodes.close()
    left = leaks(before)
    figures["leaks"] = sum(map(len, left.values()))
    figures["left"] = {name: things for name, things in left.items() if things}
    return figures, told


async def play_all(stage: Stage, args: Any, share: float) -> tuple[dict[str, Any], list[str]]:
    """Rounds with and without faults in turn, then the outage."""
    await stage.play(draw(args.seed, args.desktops, 0, "warm-up"), 0)
    faulty, calm = draw(args.seed, args.episodes, share, "faulty"), draw(args.seed, args.calm, 0, "calm")
    parts: dict[bool, list[Part]] = {True: [], False: []}
    for number in range(args.rounds):
        deaths = len(range(number, args.deaths, args.rounds))
        for is_faulty in (True, False) if number % 2 else (False, True):
            plans = (faulty if is_faulty else calm)[number :: args.rounds]
            parts[is_faulty].append(await stage.play(plans, deaths if is_faulty else 0))
    hurt = draw(args.seed, 3 * args.desktops, 0, "outage")
    outage = await stage.play_in_outage(hurt, args.outage)
    figures = summarize(parts[True], parts[False])
    figures["faults"]["node_killed"] = {"injected": stage.nodes.deaths}
    figures["outage"] = outage
    played = [each for part in (*parts[True], *parts[False]) for each in part[0]]
    told = [f"{word}: {each}" for each in played for word, so in (("false", each.is_false), ("lost", each.error)) if so]
    return figures, told


if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    main()
