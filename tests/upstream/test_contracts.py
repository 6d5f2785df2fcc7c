"""Whether the installed veRL, TransferQueue, Transformers and OSWorld client still are what we took them for.

A failure names what moved: read it again and follow; `names.py` has what we rely on beyond names.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from support import ROOT
from upstream.names import ANSWERS, OPEN_KEYS, PASSED, RELIED_ON
from upstream.uses import modules, resolve, source, uses

from arpo_verl.engines.upstream_patches import IMAGE_CACHES, all_patches

pytest.importorskip("verl")


def parameters_of(function: Any) -> dict[str, inspect.Parameter]:
    # Ray adds a parameter of its own to the methods of what becomes an actor.
    drop = {"self", "cls", "_ray_trace_ctx"}
    return {name: p for name, p in inspect.signature(function).parameters.items() if name not in drop}


# In an environment of its own (`make vllm`), or beside the client alone.
OPTIONAL = ("vllm", "desktop_env", "mm_agents")


def is_of_a_missing_package(name: str, error: ModuleNotFoundError) -> bool:
    """Whether what is missing is a package that upstream's module needs, or one that need not be here."""
    root = name.partition(":")[0].split(".")[0]
    return error.name == root in OPTIONAL or bool(error.name and error.name.split(".")[0] != root)


@contextlib.contextmanager
def skipping_what_is_not_installed(name: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if is_of_a_missing_package(name, error):
            pytest.skip(f"{name} needs the package {error.name}")
        raise


def test_every_name_that_the_package_uses_is_there():
    pytest.importorskip("desktop_env")
    found, gone = uses(), []
    for name, used_by in found.items():
        try:
            resolve(name)
        except (ImportError, AttributeError) as error:
            if not (isinstance(error, ModuleNotFoundError) and is_of_a_missing_package(name, error)):
                gone.append(f"{name}, used by {', '.join(used_by)}: {error}")
    assert not gone
    assert len(found) > 100


@pytest.mark.parametrize(("name", "passed"), PASSED.items())
def test_a_method_takes_what_is_passed_where_mypy_does_not_look(name, passed):
    with skipping_what_is_not_installed(name):
        thing = resolve(name)
    takes = parameters_of(thing)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    assert takes_any or set(passed.split()) <= takes.keys(), f"{name} takes {', '.join(takes)}"
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_ONLY)
    required = {n for n, p in takes.items() if p.default is p.empty and p.kind in plain}
    assert required <= set(passed.split()), f"{name} requires {', '.join(sorted(required - set(passed.split())))} too"


@pytest.mark.parametrize("ours, name, lines", RELIED_ON, ids=lambda value: value if isinstance(value, str) else "")
def test_upstream_does_what_we_rely_on(ours, name, lines):
    if name == IMAGE_CACHES.module and not IMAGE_CACHES.is_needed():
        pytest.skip("nothing of ours is put there")
    with skipping_what_is_not_installed(name):
        text, at = source(name) if lines else "", 0
        resolve(name) if ":" in name else None
    for line in lines:
        assert line in text[at:], f"{ours} relies on {line!r} in {name}"
        at += text[at:].index(line)


def test_what_is_relied_on_belongs_to_a_module_that_is_there():
    assert not {ours for ours, _, _ in RELIED_ON if f"arpo_verl.{ours}" not in modules()}


@pytest.mark.parametrize("patch", ANSWERS)
def test_upstream_has_no_answer_of_its_own_to_a_patch(patch):
    name, thread = ANSWERS[patch]
    (row,) = [line for line in (ROOT / "docs" / "architecture.md").read_text().splitlines() if f"{patch}`" in line]
    assert f"[{thread}]" in row
    if not all_patches()[patch].is_needed():
        return
    with contextlib.suppress(ImportError, AttributeError):
        resolve(name)
        pytest.fail(f"upstream has {name} ({thread}): try to do without {patch}, and say so in docs/architecture.md")


def test_an_agent_loops_output_has_the_fields_that_are_stored():
    fields = {"prompt_ids", "response_ids", "response_mask", "response_logprobs", "multi_modal_data", "reward_score"}
    fields |= {"num_turns", "metrics", "extra_fields", "mm_processor_kwargs"}
    known = resolve("verl.experimental.agent_loop:AgentLoopOutput").model_fields.keys()
    # Any other field would be lost by a replay: look at it, then name it here.
    assert known - fields == {"routed_experts", "mm_processor_output"} and fields <= known


def test_the_workers_compute_model_inputs_from_processor_and_tokenizer_alone():
    worker = "verl.experimental.agent_loop:AgentLoopWorker."
    functions = ("_compute_multi_modal_inputs", "_compute_position_ids", "_get_mm_processor_kwargs")
    used = {name for f in functions for name in re.findall(r"self\.(\w+)", source(worker + f))}
    assert used == {"processor", "tokenizer", "mm_processor_kwargs", "_get_mm_processor_kwargs"}


def test_a_custom_sampler_is_given_what_ours_takes():
    """veRL gives its own two more, which ours has as options of its own."""
    from arpo_verl.plugin.sampler import ReplaySampler

    build = source("verl.trainer.ppo.v1.trainer_base:PPOTrainer._build_replay_buffer")
    given = set(re.findall(r"^ +(\w+)=", build.split("replay_buffer_kwargs = dict(")[1].split("        )")[0], re.M))
    takes = parameters_of(resolve("verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.__init__"))
    assert (
        given
        and given <= takes.keys()
        and issubclass(ReplaySampler, resolve("verl.trainer.ppo.v1.replay_buffer:ReplayBuffer"))
    )


def test_our_rollout_server_has_what_verl_calls():
    from arpo_verl.engines.cpu.server import TransformersServer

    called = {line for ours, _, lines in RELIED_ON if ours == "engines.cpu.server" for line in lines}
    methods = {match[1] for line in called if (match := re.fullmatch(r"server\.(\w+)\.remote\(", line))}
    assert len(methods) == 9 and all(callable(getattr(TransformersServer, name)) for name in methods)
    passed = {line.removesuffix("=") for line in called if line.endswith("=") and " " not in line}
    assert len(passed) == 5 and passed <= parameters_of(TransformersServer.generate).keys()


def keys_of(tree: Any, before: str = "") -> Iterator[str]:
    if not isinstance(tree, Mapping) or not tree:
        yield before
        return
    for key, value in tree.items():
        yield from keys_of(value, f"{before}.{key}" if before else str(key))


def keys_of_recipes() -> list[str]:
    ours = {"defaults", "hydra", "run_dir", "variant", "gui_agent", "environment", "replay"}
    recipes = [path for path in (ROOT / "recipes").rglob("*.yaml") if path.parent.name != "easyr1"]  # EasyR1's keys
    trees = [yaml.safe_load(path.read_text()) for path in recipes]
    keys = {key for tree in trees for key in keys_of(tree) if key.split(".")[0] not in ours}
    return sorted(key for key in keys if not f"{key}.".startswith(tuple(f"{open_key}." for open_key in OPEN_KEYS)))


@pytest.fixture(scope="module")
def stock_config():
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    with initialize_config_module("verl.trainer.config", version_base=None):
        return OmegaConf.to_container(compose("ppo_trainer"), resolve=False)


@pytest.fixture(scope="module")
def verl_source():
    from pathlib import Path

    folder = Path(importlib.util.find_spec("verl").origin).parent
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py")))


@pytest.mark.parametrize("key", keys_of_recipes())
def test_a_recipes_key_is_one_of_verls_and_read_by_it(key, stock_config, verl_source):
    """Hydra takes any key from a file: one that veRL has renamed would be without effect."""
    node = stock_config
    for part in key.split("."):
        assert isinstance(node, Mapping) and part in node, f"{key}: veRL has no {part}"
        node = node[part]
    assert re.search(rf"\b{re.escape(key.rsplit('.', 1)[-1])}\b", verl_source), f"{key} is read by nothing"
