"""Every metric that we log has a meaning in `metric_names`, and every one that stands there is logged."""

import ast
import functools
import re
from pathlib import Path

import torch
import verl
from support import ROOT
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from arpo_verl.agent.rollout.scoring import EXTRA
from arpo_verl.desktops.pool.metrics import PoolMetrics
from arpo_verl.desktops.pool.pool_actor import GAUGES
from arpo_verl.plugin.dataset import DATA_SOURCE
from arpo_verl.plugin.step_metrics import SCORED_METRICS, staleness_without
from arpo_verl.records import metric_names
from arpo_verl.records.metric_names import RATIOS, TABLES, TIMES, WITHOUT_REPLAYS, labels
from arpo_verl.replay.distance import ratio_metrics
from arpo_verl.types import StopReason

NAME = re.compile(r"[a-z]\w*(/[\w*]+)+")
# They read metrics, or write files of such names. The pool puts its names together, and is asked for them.
NOT_WRITTEN_IN = ("tools/viewer/", "records/", "desktops/vm/", "desktops/pool/metrics.py")
WITHOUT = "replay/without/"
NAMES = {name: re.compile(re.sub("[A-Z]+", r"[^/]+", re.escape(name))) for table in TABLES for name in table}


def names_in(path):
    """The names with a slash that a module gives values in dicts; `*` stands for what it fills in."""
    text = path.read_text("utf-8")
    if "/" not in text:
        return set()
    keys = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Dict():
                keys += node.keys
            case ast.DictComp():
                keys.append(node.key)
            case ast.Subscript(ctx=ast.Store()):
                keys.append(node.slice)
    return {name for key in keys if NAME.fullmatch(name := text_of(key))}


def text_of(key):
    if isinstance(key, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "*" for part in key.values)
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""


def pool_metrics():
    return set(PoolMetrics(num_desktops=1).collect())


@functools.cache
def validation_metrics():
    """Of one episode whose reward function returned nothing beside the reward."""
    infos = {"reward": [1.0], **{name: [0.0] for name in EXTRA}}
    return set(PPOTrainer._val_metrics_update(None, [DATA_SOURCE], ["uid"], infos, [2]))


@functools.cache
def ours():
    package = ROOT / "arpo_verl"
    paths = [path for path in package.rglob("*.py") if not str(path.relative_to(package)).startswith(NOT_WRITTEN_IN)]
    found = set().union(*map(names_in, paths))
    filled = {
        "environment/*": {f"environment/{name}" for name in GAUGES},
        "rollout/stop/*": {f"rollout/stop/{reason}" for reason in StopReason},
        "replay/*": {f"replay/{name}" for name in ratio_metrics(torch.zeros(1))},
        "replay/without/*": {name for name in SCORED_METRICS if name.startswith(WITHOUT)},
    }
    assert {name for name in found if "*" in name} == set(filled), "say here what is filled in"
    return (found - set(filled)).union(pool_metrics(), *filled.values())


def verls():
    folder = Path(verl.__file__).parent
    modules = [folder / "trainer/ppo/metric_utils.py", folder / "utils/debug/metrics.py"]
    modules += sorted((folder / "trainer/ppo/v1").glob("*.py"))
    timers = re.findall(r'marked_timer\("(\w+)"', "\n".join(path.read_text("utf-8") for path in modules))
    return set().union(*map(names_in, modules)) | {f"timing_s/{timer}" for timer in timers} | validation_metrics()


def meant(logged):
    """The names that stand for this metric."""
    name = "replay/without/NAME" if logged.startswith(WITHOUT) else logged
    return {known for known, pattern in NAMES.items() if known == name or pattern.fullmatch(name)}


def test_every_metric_that_we_log_has_one_meaning():
    validation = {name for name in validation_metrics() if DATA_SOURCE in name}
    assert {name: meant(name) for name in ours() | validation if len(meant(name)) != 1} == {}
    assert sum(map(len, TABLES)) == len(NAMES)


def test_every_metric_with_a_meaning_is_logged():
    logged = set().union(*map(meant, ours() | verls()))
    assert set(NAMES) - logged == set()


def test_what_is_logged_of_replays_and_without_them_is_explained_in_these_tables():
    (staleness,) = staleness_without([{"max_global_steps": 1}], step=2)
    without = {name.removeprefix(WITHOUT) for name in [*SCORED_METRICS, staleness] if name.startswith(WITHOUT)}
    assert without == set(WITHOUT_REPLAYS)
    assert {name for name in SCORED_METRICS if not name.startswith(WITHOUT)} == set(RATIOS)


def test_the_page_has_every_table_and_a_label_is_a_first_sentence():
    page = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    assert [getattr(metric_names, name) for name in re.findall(r"<!-- metrics: (\w+) -->", page)] == list(TABLES)
    assert labels(TIMES, ["timing_s/ref"]) == {"timing_s/ref": "reference log-probs"}
