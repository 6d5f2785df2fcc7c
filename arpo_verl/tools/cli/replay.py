"""`arpo-verl replay` shows, exports and merges saved stores of successes, and makes them before training."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arpo_verl.errors import ConfigError, ReplayError
from arpo_verl.records.layout import TRAJECTORIES
from arpo_verl.tools.cli.composing import compose_named

if TYPE_CHECKING:
    from arpo_verl.records.recorded import RecordedEpisode

EPILOG = """examples:
  arpo-verl replay inspect runs/embedded/checkpoints/global_step_20/replay
  arpo-verl replay export runs/embedded/checkpoints/global_step_20/replay exported --tokenizer .cache/policy
  arpo-verl replay export runs/embedded/checkpoints/global_step_20/replay sft --tokenizer .cache/policy --format openai
  arpo-verl replay merge run-a/checkpoints/global_step_80/replay run-b/checkpoints/global_step_96/replay --out merged
  arpo-verl replay seed runs/embedded/trajectories --recipe recipes/embedded.yaml --out seeds

Train on seeds with replay.seed_from=seeds.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "replay",
        description="Works on stores in checkpoints: <run_dir>/checkpoints/global_step_<N>/replay.",
        epilog=EPILOG,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_inspect(actions)
    _add_export(actions)
    _add_merge(actions)
    _add_seed(actions)


def _add_inspect(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser("inspect", help="print tasks, counts, bytes, steps, ages and fingerprint")
    parser.add_argument("store", type=Path, help="the store's folder")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=inspect)


def _add_export(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser("export", help="export the successes, to read them or to fine-tune another model")
    parser.add_argument("store", type=Path, help="the store's folder")
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--tokenizer", metavar="MODEL", help="the policy's folder or name, to also write texts")
    parser.add_argument(
        "--format",
        choices=["folders", "sharegpt", "openai"],
        default="folders",
        help="folders: one for each trajectory, with text, screenshots, numbers (the default); sharegpt: for "
        "LLaMA-Factory; openai: messages for TRL. The last two need --tokenizer",
    )
    parser.set_defaults(run=export)


def _add_merge(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "merge",
        help="merge several stores of one policy",
        description="Puts the oldest steps first, equal trajectories once. Default capacity: the stores' largest.",
    )
    parser.add_argument("stores", type=Path, nargs="+", help="the stores' folders")
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--capacity-per-task", type=int, help="successes kept for each task")
    parser.set_defaults(run=merge)


def _add_seed(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = actions.add_parser(
        "seed",
        help="make a store of recorded successes",
        description="Tokenizes recorded successes as the agent loop of the recipe's run would. Leaves out failures, "
        "malformed replies and validation. Keeps log-probs that the same tokenizer recorded.",
    )
    parser.add_argument(
        "sources",
        type=Path,
        nargs="+",
        help="folders of recorded episodes, such as RUN/trajectories; one of filter-tasks gives those of kept tasks",
    )
    parser.add_argument(
        "--recipe", metavar="NAME", required=True, help="recipe of the run to seed: embedded, or your own YAML file"
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an override of the training command, such as actor_rollout_ref.model.path=PATH; may be repeated",
    )
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.set_defaults(run=seed)


def inspect(args: argparse.Namespace) -> int:
    from arpo_verl.replay.store.inspection import format_contents, inspect_store

    contents = inspect_store(args.store)
    print(json.dumps(dataclasses.asdict(contents), indent=1) if args.json else format_contents(contents))
    return 0


def export(args: argparse.Namespace) -> int:
    """Write a store's trajectories for people to read, or to fine-tune on."""
    from arpo_verl.replay.store.export import export_store
    from arpo_verl.replay.store.sft import export_sft

    if args.format != "folders" and args.tokenizer is None:
        raise ConfigError(f"--format {args.format} needs the policy's tokenizer; add --tokenizer MODEL")
    _require_new(args.out)
    tokenizer: Any = None if args.tokenizer is None else _tokenizer(args.tokenizer)
    if args.format != "folders":
        exported = export_sft(args.store, args.out, tokenizer, args.format)
        for reason, trajectories in sorted(exported.left_out.items()):
            print(f"left out: {trajectories} ({reason})")
        print(f"{exported.examples} examples written to {args.out}")
        return 0
    count = export_store(args.store, args.out, None if tokenizer is None else partial(_decode, tokenizer))
    print(f"{count} trajectories written to {args.out}")
    return 0


def merge(args: argparse.Namespace) -> int:
    from arpo_verl.replay.store.merging import merge_stores
    from arpo_verl.replay.store.persistence import read_manifest, save_store
    from arpo_verl.replay.store.success_store import SuccessStore

    _require_new(args.out)
    manifests = [read_manifest(folder) for folder in args.stores]
    per_task = args.capacity_per_task or max(manifest.capacity_per_task for manifest in manifests)
    store = SuccessStore(per_task)
    fingerprint = merge_stores(args.stores, store)
    save_store(store, args.out, fingerprint)
    print(f"{len(store)} successes of {store.num_tasks} tasks in {args.out}")
    return 0


def seed(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from arpo_verl.lib.config import build_config
    from arpo_verl.plugin.seeding import SeedPolicy, seed_store
    from arpo_verl.plugin.trainer_state import TrainerState
    from arpo_verl.replay.config import ReplayConfig
    from arpo_verl.replay.store.persistence import save_store
    from arpo_verl.replay.store.success_store import SuccessStore

    _require_new(args.out)
    recipe = compose_named(args.recipe, args.overrides)
    config = build_config(ReplayConfig, "replay", recipe.replay)
    policy = SeedPolicy.of_recipe(recipe)
    store = SuccessStore(config.capacity_per_task, TrainerState(recipe).reward_function)
    episodes = (episode for source in args.sources for episode in _episodes(source))
    report = seed_store(store, tqdm(episodes, desc="episodes", unit="episode"), policy, config)
    for reason, count in sorted(report.skipped.items()):
        print(f"left out: {count} ({reason})")
    if not report.stored:
        raise ReplayError("no success is left to seed a store with; see above what was left out, and why")
    save_store(store, args.out, policy.fingerprint)
    print(
        f"{len(store)} successes of {store.num_tasks} tasks in {args.out}, {report.with_log_probs} of "
        f"{report.stored} with log-probs; train on them with replay.seed_from={args.out}"
    )
    return 0


def _episodes(source: Path) -> Iterator[RecordedEpisode]:
    """Yield a source's episodes. Those that chose the training tasks count as training, though nothing trained then."""
    from arpo_verl.records.recorded import read_episodes
    from arpo_verl.tools.evaluation.training_list import FILTER_FILE, kept_tasks

    if not (source / FILTER_FILE).is_file():
        yield from read_episodes(source)
        return
    kept = kept_tasks(source)
    for episode in read_episodes(source / TRAJECTORIES):
        if episode.task_id in kept:
            yield dataclasses.replace(episode, validation=False)


def _tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--tokenizer must name a policy with a tokenizer, got {model!r}: {error}") from error


def _decode(tokenizer: Any, token_ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(token_ids), skip_special_tokens=False)
    return text


def _require_new(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"the output must be a new or empty folder, got {out}; remove it or choose another")
