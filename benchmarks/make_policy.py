"""Makes the small policies that come with the package, and others of their kind.

    python benchmarks/make_policy.py embedded --out .cache/made --target-success 0.22   # 3 minutes on two quiet cores
    python benchmarks/make_policy.py seeing --out .cache/made                           # hours; can be interrupted

`embedded`: the scripted expert plays each task on real desktops; a random Qwen2.5-VL imitates it until it solves as
many tasks as asked for, in the rows that the agent loop would make of them. The same settings, tasks and scripts find
the finished policy again, and the demonstrations stay beside it. The same demonstrations, threads and versions of torch
give the same weights. `seeing`: lessons in reading and acting, see docs/seeing.md.

`--ship` then replaces the files in the package, weights in half precision, and prints what
`arpo_verl/policy/shipped.py: SHIPPED` must say of them.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from policies.prepare import REPORT, PolicyConfig, PreparedPolicy, prepare_policy

from arpo_verl.errors import ArpoError
from arpo_verl.files import replacing_directory
from arpo_verl.policy.shipped import FOLDER, WEIGHTS, check_out, digest


def build_parser() -> argparse.ArgumentParser:
    defaults = PolicyConfig()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="name", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--out", type=Path, required=True, help="the policy's folder")
    common.add_argument("--ship", action="store_true", help="then replace the files in the package")
    embedded = kinds.add_parser("embedded", parents=[common])
    for name, kind, words in (
        ("seed", int, "of the weights and the order of imitation"),
        ("tasks", str, "task file, folder, 'embedded' or 'embedded_long'"),
        ("target-success", float, "stop imitation at this mean probability of the expert's replies"),
        ("floor", float, "and go on until each task's own probability is this"),
        ("num-desktops", int, "desktops that demonstrations are played on"),
    ):
        default = getattr(defaults, name.replace("-", "_"))
        embedded.add_argument(f"--{name}", type=kind, default=default, help=f"{words} (default: {default})")
    seeing = kinds.add_parser("seeing", parents=[common])
    seeing.add_argument("--lessons", type=Path, help="captures and checkpoints (default: OUT-lessons)")
    seeing.add_argument("--threads", type=int, choices=range(1, 65), metavar="N", default=1, help="of torch")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Make a policy; an `ArpoError` is one line, with exit status 2."""
    args = build_parser().parse_args(argv)
    # Nothing here asks a hub; so say at once if some file were missing, instead of after a network time-out.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # As in `arpo_verl.cpu`: threads that spin while they wait stand in each other's way on busy cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    options = vars(args)
    name, out, shipping = options.pop("name"), options.pop("out").absolute(), options.pop("ship")
    began = time.monotonic()
    try:
        if name == "embedded":
            print(summary(prepare_policy(out, PolicyConfig(**options)), time.monotonic() - began))
        else:
            _teach(out, args.lessons or out.with_name(f"{out.name}-lessons"), args.threads)
    except ArpoError as error:
        print(f"make_policy: {error}", file=sys.stderr)
        return 2
    if shipping:
        print(json.dumps(ship(out, FOLDER / name), indent=4))
    return 0


def _teach(out: Path, lessons: Path, threads: int) -> None:
    import torch
    from policies.seeing.training import LessonPlan, Schooling

    check_out("seeing", out)  # before hours of lessons
    torch.set_num_threads(threads)
    schooling = Schooling(lessons, LessonPlan())
    schooling.learn()
    schooling.export(out)


def summary(prepared: PreparedPolicy, seconds: float) -> str:
    """One line: what was made or found, and how good it is."""
    report = prepared.report
    shares = sorted(report["success_by_task"].values())
    what = "is up to date" if prepared.reused else f"made in {seconds:.0f} s"
    return (
        f"policy {prepared.directory} {what}: {report['num_parameters'] / 1e6:.1f} M parameters, "
        f"{report['epochs']} epochs, the expert's replies have probability {report['mean_success']:.2f} "
        f"(tasks: {shares[0]:.2f} to {shares[-1]:.2f})"
    )


def ship(model_folder: Path, folder: Path) -> dict[str, str]:
    """Make the files to ship from a model folder, weights in half precision; returns each file's SHA-256."""
    from safetensors.torch import load_file, save_file

    with replacing_directory(folder) as scratch:
        for path in sorted(model_folder.iterdir()):
            if path.name not in (WEIGHTS, REPORT):
                shutil.copyfile(path, scratch / path.name)
        weights = {name: tensor.half() for name, tensor in load_file(model_folder / WEIGHTS).items()}
        save_file(weights, scratch / WEIGHTS, metadata={"format": "pt"})
        shutil.copymode(scratch / "config.json", scratch / WEIGHTS)
    return {path.name: digest(path) for path in sorted(folder.iterdir())}


if __name__ == "__main__":
    sys.exit(main())
