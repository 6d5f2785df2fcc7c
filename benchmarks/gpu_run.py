"""A whole run on a machine with one GPU and no network: pack here what it lacks, carry the parts there, run.

    python benchmarks/gpu_run.py pack FOLDER [--engine vllm] [--part-mb N]
    python3 benchmarks/gpu_run.py run FOLDER --out OUT [--smoke] [--steps N] [--seconds N] [--engine vllm|transformers]

Rehearsed without a GPU; not yet run on one. The rehearsal trained on a CPU, with our engine in vLLM's place; of vLLM's
part only the imports were tried. A Hopper GPU takes FlashAttention 3, so vLLM's FlashAttention 2 is left out.

`pack` needs a network, `make setup`, root and mmdebstrap. It expects Ubuntu 24.04 there, with Python 3.12, PyTorch 2.11
and the common packages around it, and writes FOLDER/base-NN: the other Python packages, installed, and the desktops'
Debian packages. `--engine vllm` adds FOLDER/engine-NN. Each file has at most `--part-mb` MB.

`run` starts from nothing but the parts and this checkout, as root. It unpacks, installs, asks `arpo-verl doctor`, and
trains the demo's recipe: store seeded by scripted experts, checkpoint, `kill -9`, resume, validation. OUT gets:

- `gpu_run.json`: after each stage, what is known so far. `sleeping_gb` is vLLM's own word at each sleep, `gpu_used_mb`
  what the GPU's driver reported, by time. `screenshot_bytes_a_turn` is of the recorded files.
- `pages.tar.gz`: the exported pages of the run; `logs.tar.gz`: everything that was printed, and the run's metrics.

Without a GPU it trains on the CPU, by our engine. With a GPU and without vLLM's part, our engine plays on the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RELEASE, MIRROR = "noble", "http://archive.ubuntu.com/ubuntu"
KEYRING = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
"""Where this machine has none, Ubuntu's packages are taken unsigned."""
VENV = "venv"
CONSTRAINED = """verl transformers tokenizers ray tensordict torchdata transferqueue hydra-core omegaconf
antlr4-python3-runtime msgspec pyzmq qwen-vl-utils cachetools fastapi starlette uvicorn pydantic pydantic-core
annotated-types typing-inspection codetiming datasets dill multiprocess xxhash pylatexenc pyvers orjson
importlib-metadata jsonschema jsonschema-specifications referencing rpds-py protobuf packaging python-xlib
cloudpickle six beautifulsoup4 soupsieve cssselect defusedxml docker et-xmlfile distro farama-notifications gymnasium
imagehash pywavelets lazy-importer mutagen odfpy openpyxl pdfminer-six pdfplumber pypdfium2 cryptography cffi pycparser
platformdirs playwright greenlet pypdf pypdf2 python-docx python-dotenv python-pptx pytz rapidfuzz requests-file
requests-toolbelt tldextract tzdata xlsxwriter xmltodict wrapt opentelemetry-api opentelemetry-sdk opentelemetry-proto
opentelemetry-semantic-conventions opentelemetry-exporter-prometheus opentelemetry-exporter-otlp-proto-http
opentelemetry-exporter-otlp-proto-common opentelemetry-exporter-otlp-common opentelemetry-exporter-http-transport
googleapis-common-protos prometheus-client aiohttp-cors colorful cwevals""".split()
"""What PyTorch's machine lacks, or has in another version than veRL 0.9.1 was tried with. The versions are those of
constraints.txt."""
ENGINE = """
anthropic==2.14.0 apache-tvm-ffi==0.1.9 astor==0.8.1 blake3==1.0.11 cbor2==6.3.0 compressed-tensors==0.17.0
depyf==0.20.0 diskcache==5.6.3 distro==1.9.0 docstring-parser==0.18.0 fastapi==0.136.3 httpcore2==2.16.2
httptools==0.9.0 httpx2==2.16.2 ijson==3.6.0 interegular==0.3.3 jiter==0.19.0 jmespath==1.1.0 lark==1.2.2
llguidance==1.7.6 lm-format-enforcer==0.11.3 loguru==0.7.3 mcp==2.3.0 mistral-common==1.13.1
model-hosting-container-standards==0.1.16 openai==3.57.0 openai-harmony==0.0.8 outlines-core==0.2.14
partial-json-parser==0.2.1.1.post7 prometheus-fastapi-instrumentator==8.1.0 py-cpuinfo==9.0.0 pybase64==1.5.1
pycountry==26.2.16 pydantic-extra-types==2.11.1 pydantic-settings==2.16.3 python-dotenv==1.2.4
python-json-logger==4.2.0 python-multipart==0.0.34 setproctitle==1.3.8 sniffio==1.3.1 sse-starlette==3.7.0
supervisor==4.3.0 truststore==0.10.5 vllm==0.24.0 watchfiles==1.3.0 websockets==17.4 xgrammar==0.2.3
""".split()
"""vLLM and what it imports; versions that fit it, as a resolver chose them on 28 November 2026."""
PRUNED = """*/tests bin ray/jars ray/cpp ray/rllib ray/llm ray/dashboard/client playwright/driver vllm/vllm-rs
vllm/vllm_flash_attn/_vllm_fa2_C* pycountry/locales""".split()
LEFT_OUT = re.compile(
    "lib(llvm|gs)[0-9]|mesa-|fonts-urw|poppler-data|groff|man-db|systemd|libsystemd-sh|(lib)?python|(lib)?apt|openssl"
)
"""Debian packages without which the desktops work, or which are there: X draws without OpenGL."""
SLEPT = re.compile(r"Sleep mode freed [\d.]+ GiB memory, ([\d.]+) GiB memory is still in use")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("--part-mb", type=float, default=42, help="most MB of a part")
    running = commands.add_parser("run")
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--json", type=Path, metavar="PATH", help="also write the figures there")
    running.add_argument("--smoke", action="store_true", help="two steps of four tasks")
    running.add_argument("--steps", type=int, help="20 by default, 2 with --smoke")
    running.add_argument("--seconds", type=float, default=500, help="end training after so long, with what there is")
    for each in (packing, running):
        each.add_argument("folder", type=Path)
        each.add_argument("--engine", choices=("vllm", "transformers"), help="run: default by what was packed")
    arguments = parser.parse_args()
    arguments.folder = arguments.folder.absolute()
    if arguments.command == "pack":
        pack(arguments.folder, arguments.engine == "vllm", int(arguments.part_mb * 1e6))
    elif Path(sys.prefix) == arguments.folder / VENV:
        train(arguments)
    else:
        install(arguments.folder)
        python = str(arguments.folder / VENV / "bin" / "python")
        os.execv(python, [python, *sys.argv])


# --- Packing: where there is a network -----------------------------------------------------------------------------


def pack(folder: Path, with_engine: bool, part: int) -> None:
    """Write the parts."""
    from arpo_verl.tools.cli.install_osworld import NO_DEPS

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        base, engine = Path(scratch, "base"), Path(scratch, "engine")
        pins = NO_DEPS | dict(
            line.split(";")[0].split("==") for line in (ROOT / "constraints.txt").read_text().splitlines()
        )
        fetch_packages(
            [*(f"{name}=={pins[name].strip()}" for name in (*CONSTRAINED, *NO_DEPS)), str(ROOT)], base / "site"
        )
        fetch_debs(Path(scratch, "root"), base / "debs")
        write_parts(base, folder, part)
        if with_engine:
            fetch_packages(ENGINE, engine / "engine")
            write_parts(engine, folder, part)


def fetch_packages(requirements: list[str], site: Path) -> None:
    """Install these packages, and none that they need, into a folder for that Python."""
    there = ["--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_34"]
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--link-mode", "copy"]
    subprocess.run([*uv, *there, "--target", str(site), *requirements], check=True)
    for found in [path for pattern in PRUNED for path in site.glob(pattern)]:
        shutil.rmtree(found) if found.is_dir() else found.unlink()


def fetch_debs(root: Path, debs: Path) -> None:
    """Download the desktops' packages with all that a minimal system lacks for them."""
    from arpo_verl.desktops.embedded.packages import BASE, TASKS

    option = f"signed-by={KEYRING}" if KEYRING.is_file() else "trusted=yes"
    sources = [f"deb [{option}] {MIRROR} {suite} main universe" for suite in (RELEASE, f"{RELEASE}-updates")]
    subprocess.run(["mmdebstrap", "--variant=minbase", "--skip=cleanup/apt", RELEASE, str(root), *sources], check=True)
    apt = ["apt-get", "-o", f"Dir={root}", "-o", f"Dir::State::status={root}/var/lib/dpkg/status"]
    apt += ["-o", "APT::Architecture=amd64", "-o", "APT::Sandbox::User=root", "-y", "-q", "--download-only"]
    subprocess.run([*apt, "--no-install-recommends", "install", *BASE, *TASKS], check=True)
    debs.mkdir(parents=True)
    for deb in (root / "var/cache/apt/archives").glob("*.deb"):
        if not LEFT_OUT.match(deb.name):
            deb.rename(debs / deb.name)


def write_parts(content: Path, folder: Path, part: int) -> None:
    """Compress a folder into files of at most `part` bytes."""
    whole = content.with_suffix(".tar.gz")
    with tarfile.open(whole, "w:gz", compresslevel=6) as archive:
        for path in content.iterdir():
            archive.add(path, path.name)
    for old in folder.glob(f"{content.name}-*"):
        old.unlink()
    with whole.open("rb") as stream:
        for number, piece in enumerate(iter(lambda: stream.read(part), b"")):
            (folder / f"{content.name}-{number:02d}").write_bytes(piece)
            print(f"{content.name}-{number:02d} {len(piece) / 1e6:.1f} MB")


# --- Installing: on the bare machine, with its standard library ------------------------------------------------------


def unpack(folder: Path) -> None:
    """Unpack the parts beside them."""
    for name in ("base", "engine"):
        if parts := sorted(folder.glob(f"{name}-[0-9][0-9]")):
            with subprocess.Popen(["cat", *map(str, parts)], stdout=subprocess.PIPE) as stream:
                assert stream.stdout is not None
                with tarfile.open(fileobj=stream.stdout, mode="r|gz") as archive:
                    archive.extractall(folder, filter="tar")


def install(folder: Path) -> None:
    """Unpack the parts, make the virtual environment, and install the Debian packages that are not there."""
    unpack(folder)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / VENV)], check=True)
    import sysconfig

    # The given Python may be an environment itself, whose packages a new one would not see.
    given = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path[1:]])
    site = next((folder / VENV / "lib").glob("python*/site-packages"))
    shown = [str(folder / "engine"), str(folder / "site"), *(path for path in given if "-packages" in path)]
    (site / "gpu_run.pth").write_text("\n".join(shown) + "\n")
    debs = {deb.name.split("_")[0]: deb for deb in sorted((folder / "debs").glob("*.deb"))}
    query = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n"]
    lines = subprocess.run(query, capture_output=True, text=True).stdout.splitlines()
    present = {line.split()[0] for line in lines if line.endswith(" installed")}
    missing = [str(debs[name]) for name in sorted(debs.keys() - present)]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    if missing:  # the machine's libraries may be somewhat older or newer than the packages ask for
        subprocess.run(
            ["dpkg", "--force-depends", "--force-unsafe-io", "-i", *missing], env=environment, stdout=subprocess.DEVNULL
        )


# --- Training: in that environment ------------------------------------------------------------------------------------


class Watch(threading.Thread):
    """Asks the driver twice a second how much of the GPU's memory is in use."""

    QUERY = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, int]] = []

    def run(self) -> None:
        while shutil.which(self.QUERY[0]):
            answer = subprocess.run(self.QUERY, capture_output=True, text=True).stdout.split()
            if answer and answer[0].isdigit():
                self.seen.append((time.time(), int(answer[0])))
            time.sleep(0.5)


def overrides(engine: str, on_gpu: bool, policy: Path, seeds: Path, steps: int, smoke: bool) -> list[str]:
    """Return the options behind the demo's recipe."""
    given = [f"actor_rollout_ref.model.path={policy}", f"replay.seed_from={seeds}", "trainer.val_before_train=false"]
    given += [f"trainer.total_training_steps={steps}", f"trainer.total_epochs={steps}", f"trainer.test_freq={steps}"]
    if smoke:
        given += ["data.train_files=[" + ",".join(SMOKE_TASKS) + "]", "data.val_files=${data.train_files}"]
        given += ["data.train_batch_size=8", "+data.tasks.repeat=2"]
    if not on_gpu:
        return given
    fsdp = "actor_rollout_ref.actor.fsdp_config"
    given += ["trainer.device=cuda", "+environment.num_desktops=8"]
    given += [f"{fsdp}.dtype=bfloat16", f"{fsdp}.mixed_precision=null", f"{fsdp}.param_offload=true"]
    given += [f"{fsdp}.optimizer_offload=true"]
    if engine == "vllm":
        rollout = "actor_rollout_ref.rollout"
        given += [f"{rollout}.name=vllm", f"{rollout}.dtype=bfloat16", f"{rollout}.logprobs_mode=raw_logprobs"]
        given += [f"{rollout}.max_model_len=2048", f"{rollout}.enforce_eager=true", f"{rollout}.max_num_seqs=64"]
        given += [f"{rollout}.max_num_batched_tokens=4096", f"{rollout}.gpu_memory_utilization=0.3"]
    return given


SMOKE_TASKS = tuple(f"families:training:{number}:1" for number in (22, 39, 70, 87))
REGISTER = (
    "import os; os.environ.get('ARPO_VERL_RUN') and "
    "__import__('arpo_verl.engines.cpu.registration', fromlist=['_']).register_when_imported()\n"
)
"""A line that each Python of the environment runs at its start. We register our engine by ourselves on a CPU alone."""


def make_seeds(folder: Path, policy: Path, recipe: list[str]) -> int:
    """Have the scripted expert play the tasks, and write a store of it. Returns how many successes it has."""
    from policies.demonstrations import collect_demonstrations, save_demonstrations
    from verl.utils import hf_processor

    from arpo_verl.agent.rollout.vision import ImageGeometry
    from arpo_verl.desktops.config import EnvironmentConfig
    from arpo_verl.tasks.families import SCREEN, replies_of
    from arpo_verl.tasks.loader import load_tasks

    tasks = load_tasks(SMOKE_TASKS)
    size = ImageGeometry.from_processor(hf_processor(str(policy))).image_size
    played = collect_demonstrations(tasks, replies_of, EnvironmentConfig(num_desktops=2, screen_size=SCREEN), size)
    save_demonstrations(folder / "demonstrations", played)
    told = [word for each in recipe for word in ("--set", each)]
    source, store = str(folder / "demonstrations"), str(folder / "seeds")
    command(folder, "replay", "seed", source, "--recipe", "demo", *told, "--out", store)
    return len(played)


def command(folder: Path, *words: str) -> str:
    """Run an `arpo-verl` command; its output is also kept."""
    line = [sys.executable, "-m", "arpo_verl.tools.cli.main", *words]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)
    with (folder / "commands.log").open("a") as log:
        log.write(f"$ arpo-verl {' '.join(words)}\n{done.stdout}[status {done.returncode}]\n")
    if done.returncode and words[0] != "doctor":
        raise RuntimeError(f"arpo-verl {words[0]} failed: {done.stdout[-2000:]}")
    return done.stdout


def train(arguments: argparse.Namespace) -> None:
    """Everything that runs in the environment; the figures are written after each stage, and after an error."""
    import torch

    on_gpu = torch.cuda.is_available()
    packed = "vllm" if (arguments.folder / "engine").is_dir() else "transformers"
    engine = (arguments.engine or packed) if on_gpu else "transformers"
    work = arguments.folder / "work"
    if work.exists():
        sys.exit(f"{work} is of an earlier run: remove it")
    work.mkdir()
    os.environ["VERL_PLATFORM"] = "nvidia" if on_gpu else "cpu"
    if on_gpu and engine == "transformers":
        site = next((arguments.folder / VENV / "lib").glob("python*/site-packages"))
        (site / "gpu_run_engine.pth").write_text(REGISTER)
    figures: dict[str, Any] = {"machine": describe_machine(), "engine": engine, "seconds": {}}
    begun = time.monotonic()
    watch = Watch()
    watch.start()
    try:
        for stage in stages(arguments, work, figures, watch, engine, on_gpu):
            figures["seconds"][stage] = round(time.monotonic() - begun, 1)
            save(arguments, work, figures)
    except Exception:
        figures["error"] = traceback.format_exc()[-8000:]
        print(figures["error"])
    save(arguments, work, figures)
    print(json.dumps(figures, indent=2))
    sys.exit("error" in figures)


def describe_machine() -> dict[str, Any]:
    import torch
    import transformers

    smi = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    gpu = subprocess.run(smi, capture_output=True, text=True).stdout.strip() if shutil.which(smi[0]) else "none"
    host = {"gpu": gpu, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release()}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return host | {"python": platform.python_version()} | versions


def stages(
    arguments: argparse.Namespace, work: Path, figures: dict[str, Any], watch: Watch, engine: str, on_gpu: bool
) -> Iterator[str]:
    """Do one stage after the other; yield each one's name when it has ended."""
    from trainer_run import TrainerRun

    from arpo_verl.records.layout import CHECKPOINTS, saved_step
    from arpo_verl.tools.policy.shipped import write_shipped

    command(work, "doctor")
    write_shipped("seeing", work / "policy")
    steps = arguments.steps or (2 if arguments.smoke else 20)
    options = overrides(engine, on_gpu, work / "policy", work / "seeds", steps, arguments.smoke)
    figures["options"] = options
    yield "doctor"
    figures["seeds"] = make_seeds(work, work / "policy", options[:1])
    estimate = command(work, "doctor", "--recipe", "demo", *options)
    figures["estimated"] = re.findall(r"^\S.*\n(?:  .*\n)*?  together .*", estimate, re.M)
    yield "seeds"
    run, saved = work / "run", lambda: saved_step(work / "run" / CHECKPOINTS) or 0
    deadline = time.monotonic() + arguments.seconds
    env = {"VERL_PLATFORM": os.environ["VERL_PLATFORM"]}
    start = lambda: TrainerRun(run, *options, env=env, recipe=ROOT / "recipes" / "demo.yaml", restarts=0)  # noqa: E731
    first = start()
    first.wait_for(lambda: saved() >= (1 if arguments.smoke else 2), arguments.seconds)
    first.stop()
    figures["killed_after_step"] = saved()
    yield "killed"
    second = start()
    try:
        second.wait(max(1.0, deadline - time.monotonic()))
    except TimeoutError:
        second.stop()
        figures["ended_by_the_clock"] = True
    figures["resumed"] = max(read_rows(run)) > figures["killed_after_step"]
    yield "trained"
    figures |= read_run(run, watch)
    command(work, "summary", str(run))
    command(work, "view", str(run), "--export", str(work / "pages"))
    yield "exported"


def read_rows(run: Path) -> dict[int, dict[str, Any]]:
    """Return the metrics of each step, over all starts: a later start's replace an earlier one's."""
    from arpo_verl.records.json_files import read_lines
    from arpo_verl.records.metrics_files import MetricsLine, rows_of

    files = sorted(run.glob("metrics*.jsonl"), key=lambda path: path.stat().st_mtime)
    rows = [row for path in files for row in rows_of(read_lines(path, MetricsLine))]
    return {step: data for step, data in rows if "replay/injected" in data}


def read_run(run: Path, watch: Watch) -> dict[str, Any]:
    """Return what the run's records say, by training step."""
    rows = read_rows(run)
    figures: dict[str, Any] = {"steps": max(rows)}
    wanted = ("timing_s/", "rollout/success_mean", "replay/injected", "perf/")
    wanted += ("training/rollout_probs_diff", "replay/without/training/rollout_probs_diff")
    figures["by_step"] = {
        step: {name: value for name, value in data.items() if name.startswith(wanted)} for step, data in rows.items()
    }
    folder = run / "trajectories"
    shown = [path.stat().st_size for path in folder.rglob("*") if path.suffix in (".png", ".jpg", ".webp")]
    figures["screenshot_bytes_a_turn"] = round(statistics.mean(shown)) if shown else None
    output = (run / "front.log").read_text(errors="replace") + (run / "output.log").read_text(errors="replace")
    figures["sleeping_gb"] = [float(number) for number in SLEPT.findall(output)]
    figures["gpu_used_mb"] = watch.seen[:: len(watch.seen) // 500 + 1]
    return figures


def save(arguments: argparse.Namespace, work: Path, figures: dict[str, Any]) -> None:
    """Write what there is into the output folder."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    for path in (arguments.out / "gpu_run.json", arguments.json):
        if path is not None:
            path.write_text(json.dumps(figures, indent=2) + "\n")
    logs = [*work.glob("*.log"), *work.glob("run/*.log"), *work.glob("run/*.jsonl")]
    for name, files in (("logs", logs), ("pages", [work / "pages"])):
        with tarfile.open(arguments.out / f"{name}.tar.gz", "w:gz") as archive:
            for path in filter(Path.exists, files):
                archive.add(path, path.relative_to(work))


if __name__ == "__main__":
    main()
