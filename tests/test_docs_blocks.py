"""Each fenced block of the documentation: run, typed, or put through its command's own parser; or listed with a reason.

Commands get the very words that a reader copies. `tests/test_cluster_page.py` types those of docs/osworld.md in order.
"""

import argparse
import array
import base64
import contextlib
import json
import re
import runpy
import shlex
import sys
import tempfile
import tomllib
import zlib
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from support import ROOT, documents
from support.composed import compose_in, compose_recipe
from support.pictures import png
from support.replay_trajectories import stored
from support.viewer_run import ViewerRun
from tools.migration.reference_run import write_run

from arpo_verl.agent.models.family import load_family
from arpo_verl.desktops.embedded import packages
from arpo_verl.easyr1.settings import read_config
from arpo_verl.errors import ActionParseError
from arpo_verl.plugin.recipe.options import Recipe
from arpo_verl.plugin.recipe.silent import check_silent
from arpo_verl.plugin.recipe.values import check_by_verl
from arpo_verl.records import layout
from arpo_verl.replay.store.persistence import Fingerprint, save_store
from arpo_verl.replay.store.success_store import SuccessStore
from arpo_verl.tools.cli.main import COMMANDS, build_parser, main
from arpo_verl.tools.cli.options import parse_options
from arpo_verl.types import Click, Point, Scroll, Size

# Which test runs a page's Python as it stands; the others run here.
PYTHON = {
    "README.md": "tests/test_api.py",
    "docs/advantages.md": "tests/plugin/test_own_estimator.py",
    "docs/harness.md": "tests/agent/harness/test_document.py",
    "docs/model-families.md": "tests/agent/models/test_own_family.py",
    "docs/own-provider.md": "tests/desktops/test_own_provider.py",
    "docs/reward.md": "tests/plugin/test_own_reward.py",
    "docs/trajectories.md": "tests/plugin/test_trajectories_document.py",
}
# Why nothing here types a command that begins so, or which other test does.
NOT_TYPED = {
    "grep -cE ": "asks the processor",
    "ls -l /dev/kvm": "asks the kernel",
    "sudo apt-get install ": "as root on your machine; `make test-docker` installs the same",
    "apt-get install ": "as root on your machine; `make setup` and `make test-vm` install the same",
    "docker ": "needs a Docker engine",
    "curl ": "needs a container: `make test-docker`",
    "rsync ": "needs a second node",
    "ray ": "needs a cluster; tests/plugin/test_loop_on_cluster.py starts several nodes on one machine",
    "pip install ": "tests/test_install_lines.py: it resolves, and what has no wheel builds",
    "hf download ": "needs the internet",
    "huggingface-cli download ": "needs the internet",
    "mkdir -p bundles && tar ": "needs the data set; tests/desktops/osworld/test_bundles.py has a bundle of ours",
    "git clone ": "needs the internet",
    "git show ": "tests/agent/models/test_own_family.py",
    "export ": "sets a variable for the next line",
    "VM=": "sets a variable for the next lines",
    "trap ": "needs Slurm; tests/trainer/test_preempted.py makes the same file",
    "arpo-verl train ... & ": "needs Slurm",
    "tensorboard ": "a server of another project",
    "python -m verl.model_merger ": "tests/tools/migration/test_checkpoints.py",
    "python scripts/model_merger.py ": "the reference's script in the reference's environment",
    "python -m pytest ": "`make test-desktops`",
    "cd /sys/fs/cgroup ": "changes this machine; needs a container with --privileged",
    "echo +memory ": "changes this machine",
    "for net in ": "tests/desktops/docker/test_network.py",
    "iptables ": "tests/desktops/docker/test_network.py",
    "done": "tests/desktops/docker/test_network.py",
    "starts=": "sets a variable for the next line",
    "until python ": "trains until it has; tests/trainer/test_crashes.py gives the same command again",
}
# What only reads, or writes small files: typed here, in a folder with runs, stores and scripts.
TYPED = re.compile(r"(\.venv/bin/)?arpo-verl (summary|report|convert|replay inspect|replay merge|view .*--export)\b")
# Where the blocks of text are from whose pages are not in MADE_HERE.
TEXT = {
    "run folder   runs/demo": "a demo of three steps; tests/tools/cli/test_train.py has its form",
    "steps        20;": "tests/plugin/test_run_callback.py has the same line",
    "goes on      after step 8": "a second start of a demo; tests/plugin/recipe/test_resuming.py has each line's form",
    "worker process  ": "a drawing",
    "arpo_verl/\n  tools/ ": "tests/test_docs.py has the names of its folders",
}
# Where a block of text has a test: docs/own-task.md's task is played by tests/tasks/test_suites.py.
MADE_HERE = ("docs/actions.md", "docs/migration.md", "docs/own-task.md", "docs/replay.md", "docs/trajectories.md")
LINES = list(dict.fromkeys((page, line) for page in documents.PAGES for line in documents.commands(page)))
OURS = [(page, line) for page, line in LINES if not line.startswith(tuple(NOT_TYPED))]


def test_every_line_of_a_table_above_is_of_a_block_and_every_block_has_a_language_that_is_checked():
    lines = [line for _, line in LINES]
    assert not [start for start in NOT_TYPED if not any(line.startswith(start) for line in lines)]
    texts = [block for page in documents.PAGES for block in documents.blocks(page)]
    assert {block.language for block in texts} == {"bash", "json", "python", "yaml", "toml", "text"}
    fences = [line for page in documents.PAGES for line in documents.page(page).splitlines() if "```" in line]
    assert len(fences) == 2 * len(texts)
    others = [text for page in documents.PAGES if page not in MADE_HERE for text in documents.code(page, "text")]
    assert sorted(next((start for start in TEXT if text.startswith(start)), text) for text in others) == sorted(TEXT)
    named = re.findall(r"tests/[\w/.]*\w", " ".join([*NOT_TYPED.values(), *TEXT.values()]))
    assert named and all((ROOT / path).exists() for path in named)
    for page, test in PYTHON.items():
        assert f'documents.code("{page}")' in documents.page(test)


class Parsed(Exception):
    """A program has read its command line, and does nothing more."""


@pytest.fixture
def only_parse(monkeypatch):
    """Has a program end where it has read its arguments."""
    read = argparse.ArgumentParser.parse_args

    def parse(parser, arguments=None, namespace=None):
        read(parser, arguments, namespace)
        raise Parsed

    def start(run, program, words):
        with monkeypatch.context() as patch, pytest.raises(Parsed):
            patch.setattr(argparse.ArgumentParser, "parse_args", parse)
            patch.setattr("signal.signal", lambda *_: None)
            patch.setattr(sys, "argv", [program, *words])
            run(program, run_name="__main__")

    return start


@pytest.mark.parametrize(("page", "line"), OURS)
def test_a_command_is_one_with_the_words_that_a_reader_copies(page, line, only_parse, monkeypatch):
    words = [word for word in shlex.split(line) if word != "..."]
    while "=" in words[0]:
        words.pop(0)  # of the environment
    match [words[0].rpartition("/")[2], *words[1:]]:
        case ["arpo-verl", *words]:
            check_arpo_verl(build_parser(words[0]).parse_args(words))
        case ["make", *words]:
            check_make(words)
        case ["python", "-m", "verl.trainer.main_ppo", *words]:
            check_trainer(words)
        case ["python", "-m", "arpo_verl.easyr1", *words]:
            assert read_config(words)
        case ["python", "-m", "arpo_verl.desktops.embedded.packages", *words]:
            monkeypatch.setattr(packages, "_install", lambda names: 0)
            assert packages.main(words) == 0
        case ["python", "-m", module, *words]:
            only_parse(runpy.run_module, module, words)
        case ["python", script, *words]:
            only_parse(runpy.run_path, str(ROOT / script), words)
        case _:
            pytest.fail(f"{page}: nothing checks {line!r}; say in NOT_TYPED why")


def check_arpo_verl(args):
    given = {**vars(args)}
    if recipe := given.get("recipe"):
        check_recipe(recipe, [*given.get("overrides", ()), *given.get("set", ())])
    for flag, section in (("option", "environment"), ("agent", "gui_agent")):
        options = parse_options(given.get(flag) or (), f"--{flag}", f"{section}.")
        assert options.keys() <= documents.OPTIONS[section]


def check_trainer(words):
    parser = argparse.ArgumentParser()
    parser.add_argument("--config-dir", choices=["recipes", "$(arpo-verl recipes)", "my_configs"])
    parser.add_argument("--config-name", default="osworld_full")  # where `...` stands for it
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args(words)
    if args.config_dir == "my_configs" or "+plugin=arpo" in words:
        (mine,) = documents.code("docs/recipes.md", "yaml")
        check_own_configuration(mine, args)
    else:
        check_recipe(args.config_name, args.overrides)


def check_own_configuration(text, args):
    """It composes without our folder, gets all of `arpo`, and neither veRL nor we refuse anything but absent files."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "mine.yaml").write_text(text)
        name = args.config_name if args.config_dir else "ppo_trainer"
        config = compose_in(folder, name, *args.overrides, hydra=True)
    assert "arpo_verl" in config.hydra.callbacks and config.algorithm.adv_estimator == "replay_grpo"
    if args.config_dir:
        check_by_verl(config)
        check_silent(Recipe(config))


def check_recipe(name, overrides):
    """Hydra refuses an override of an option that the recipe and veRL do not have; one behind `+` must be ours."""
    stem = name.removeprefix("recipes/").removesuffix(".yaml").replace("NAME", "osworld_full")
    config = compose_recipe(stem, *overrides)
    for section, known in documents.OPTIONS.items():
        first, _, second = section.partition(".")
        assert set(config[first][second] if second else config[first]) <= known


def check_make(words):
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = re.search(r"^\.PHONY: (.*)$", text, re.M)[1].split() + re.findall(r"^(?:export )?(\w+) \?=", text, re.M)
    assert all(word.partition("=")[0] in known for word in words)


@pytest.mark.parametrize("page", documents.PAGES)
def test_a_command_within_a_line_has_the_options_that_it_names(page):
    for span in re.findall(r"`([^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", documents.page(page), flags=re.M | re.S)):
        words = span.split()
        if words[0] == "make":
            check_make(words[1:])
        elif words[0] == "arpo-verl" and len(words) > 1 and words[1] in COMMANDS:
            options = [word.partition("=")[0] for word in words if word.startswith("--")]
            assert set(options) <= options_of(build_parser(words[1])), span


def options_of(parser):
    found = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found.update(*map(options_of, action.choices.values()))
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with what the pages' commands read."""
    for name in ("demo", "embedded", "gpu_smoke", "osworld_full"):
        run = ViewerRun(tmp_path / "runs" / name)
        run.episode(1)
        run.metrics(1, **{"episode/success": 0.5, "timing_s/step": 1.0})
    for place in ("runs/embedded/checkpoints/global_step_20/replay", "STORE", "STORE_A", "STORE_B"):
        store = SuccessStore(8)
        store.add(stored("calc", 3, [png()], extra_fields={"place": place}))
        save_store(store, tmp_path / place, Fingerprint(tokenizer="a", processor="b", prompt="c"))
    write_run(tmp_path / "ARPO", "subset").rename(tmp_path / "ARPO/examples/osworld_subset32.sh")
    write_run(tmp_path, "full").rename(tmp_path / "run.sh")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands_that_only_read_do_what_they_say(folder, capsys):
    typed = [line for _, line in OURS if TYPED.match(line)]
    assert len(typed) >= 12
    for line in dict.fromkeys(typed):
        status = main(shlex.split(line.replace("/shared/", ""))[1:])
        assert status == 0, (line, capsys.readouterr().err)
    for made in ("runs/demo/report.html", "shared/index.html", "merged/store.json", "recipes/subset.yaml"):
        assert (folder / made).is_file()
    (refusal,) = documents.code("docs/migration.md", "text")
    capsys.readouterr()
    assert main(["convert", "run.sh", "data.train_num_workers=1", "data.val_num_workers=1"]) == 2
    assert capsys.readouterr().err == refusal


def run(page, folder, **names):
    """The page's Python in this folder, all in one; its names."""
    with contextlib.chdir(folder):
        exec("\n".join(documents.code(page)), names)
    return names


def test_python_that_no_other_test_runs(tmp_path):
    ran = {"docs/families.md", "docs/replay.md", "docs/suites.md"}
    assert ran | set(PYTHON) == {page for page in documents.PAGES if documents.code(page)}
    task = run("docs/families.md", tmp_path)["task"]
    assert task.spec["id"] and task.replies and task.labels
    (task,) = run("docs/suites.md", tmp_path)["load"]("easy")
    assert set(task) == {"id", "instruction", "config", "evaluator"}
    numbers = base64.b64encode(zlib.compress(array.array("i", [7, 8]).tobytes())).decode()
    names = run("docs/replay.md", tmp_path, line=json.dumps({"response_ids": numbers}), png=png())
    assert list(names["ids"]) == [7, 8]
    (file,) = (tmp_path / "store").glob("trajectories-*.jsonl")
    assert json.loads(file.read_text())["task_id"] == "t"


@pytest.mark.parametrize("page", documents.PAGES)
def test_yaml_and_toml_name_options_that_exist(page):
    for code in documents.code(page, "yaml"):
        for section, options in yaml.safe_load(code).items() if "defaults:" not in code else ():
            if section in documents.OPTIONS:
                assert set(options) <= documents.OPTIONS[section]
            else:  # one option of veRL's or vLLM's, which a recipe has
                assert OmegaConf.select(compose_recipe("osworld_full"), section) == options
    for code in documents.code(page, "toml"):
        (group,) = tomllib.loads(code)["project"]["entry-points"]
        assert group == "arpo_verl.tasks"


def test_replies_are_read_as_the_page_says():
    click, scroll, message = documents.code("docs/actions.md", "text")
    screen = Size(1000, 1000)
    read = load_family("ui_tars_15").parse(click, screen, screen)
    assert (read.thought, read.actions) == ("The menu is open.", (Click(Point(100, 200)),))
    qwen = load_family("qwen3_vl")
    assert [type(action) for action in qwen.parse(scroll, screen, screen).actions] == [Scroll]
    with pytest.raises(ActionParseError, match=re.escape(message.strip())):
        qwen.parse(scroll.replace('"scroll", "pixels": -5', '"left_click", "x": 5, "y": 0'), screen, screen)


def test_listings_name_the_files_that_are_written(folder):
    (listing,) = documents.code("docs/trajectories.md", "text")
    files = {value for name, value in vars(layout).items() if name.endswith("_FILE")}
    files -= {layout.EVALUATION_FILE, layout.RESULTS_FILE}  # of an evaluation
    assert files == set(re.findall(r"[a-z_]+\.(?:jsonl?|log)\b", listing))
    (listing,) = documents.code("docs/replay.md", "text")
    written = [str(path.relative_to(folder / "STORE")) for path in (folder / "STORE").rglob("*") if path.is_file()]
    forms = re.findall(r"^  (\S+) ", listing, re.M)
    forms = [re.escape(form).replace("<sha256>", r"\w{64}").replace("<ending>", r"\w+") for form in forms]
    assert all(sum(bool(re.fullmatch(form, name)) for form in forms) == 1 for name in written) and len(written) == 3
