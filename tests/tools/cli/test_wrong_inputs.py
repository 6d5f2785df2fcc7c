"""Wrong inputs of each command and of recipes, with what a user reads then. A new command needs its rows here; what all
commands have from their parser is here once.

Each row is typed as it stands, in a folder that has a file, an empty folder, an empty run and a YAML file that is none.
"""

import shlex
from pathlib import Path

import pytest

pytest.importorskip("verl")
from support import composed  # noqa: E402

from arpo_verl.tools.cli import composing  # noqa: E402
from arpo_verl.tools.cli.main import COMMANDS, main  # noqa: E402
from arpo_verl.tools.cli.recipes import recipes_folder  # noqa: E402

KNOWN = "Known: demo, embedded, families, gpu_smoke, osworld_full"
NO_TASKS = (
    "must be a task file, a folder of task files, NAME:ARGUMENT or one of embedded, embedded_long, got a path that"
)
NO_RUN = "RUN must be a run's folder, got {}, which is {}"
NO_FOLDER = "no folder given for the episodes; add --out DIR"
FAKE = "--provider fake --tasks embedded --endpoint http://127.0.0.1:1/v1"
NO_POLICY = "no policy given; name one with --model PATH or --endpoint URL"

# Command -> words typed after it -> how what is read then begins, without `arpo-verl`. Other tests have the rest.
WRONG = {
    "doctor": {
        "--recipe dmeo": f": there is no recipe 'dmeo'; did you mean demo? {KNOWN}",
        "--recipe nowhere.yaml": ": there is no recipe nowhere.yaml",
        "--recipe demo --node-gb much": " doctor: --node-gb: invalid float value: 'much'. See",
        "--receipe demo": " doctor: there is no option --receipe; did you mean --recipe? See",
        "trainer.nnodes=2": ": trainer.nnodes=2: these are overrides of a recipe; name it with --recipe",
        "--task-dir empty": ": empty has no task; name a task file",
        "--task-dir nowhere": f": nowhere {NO_TASKS}",
        "--task-dir embedded --option num_desktop=3": ": environment.num_desktop is not an option; did you mean "
        "environment.num_desktops?",
    },
    "install-osworld": {
        "--python nowhere": ": --python must name a Python that runs, got 'nowhere': [Errno 2]",
        "--python": " install-osworld: --python: expected one argument. See",
        "now": " install-osworld: this command does not take 'now'. See",
    },
    "fetch-vm": {
        "--os-type ubuntu": " fetch-vm: --os-type: there is no 'ubuntu'; did you mean Ubuntu? See",
        "--folder file/vm": ": file/vm is a file or leads through one, where a folder is needed; name another place",
    },
    "fetch-tasks": {
        "": " fetch-tasks: the following arguments are required: --folder. See",
        "--folder new --url ftp://x": ": --url must begin with https:// or http://, got 'ftp://x'",
        "--folder file": ": file is a file or leads through one, where a folder is needed; name another place",
        "--folder new --archive nowhere.tar.gz": ": there is no nowhere.tar.gz; check the path",
        "--folder new --archive file": ": file is not a complete .tar.gz archive: ",
    },
    "tasks": {
        "embeded": f": embeded {NO_TASKS}",
        "embedded --domain dialg": ": no task has the domain dialg",
        "embedded --count 0": ": --count must be from 1 to ",
        "embedded --count many": " tasks: --count: invalid int value: 'many'. See",
    },
    "vm": {
        "build file": ": file holds other files than an image; name a new or empty folder, or an image's",
        "check image.qcow2 --screen big": " vm check: --screen: a size must be WIDTHxHEIGHT such as 1920x1080, got 'big'. See",
        "template disk.qcow2 --screen 0x0 --vm folder=. --vm binary=no": ": environment.screen_size must be between [200, 150] and",
        "check nowhere.qcow2": ": environment.path_to_vm must be the machine's .qcow2 file: [Errno 2]",
        "template file --vm memory=1": ": environment.vm.memory is not an option; did you mean environment.vm.memory_mib?",
    },
    "recipes": {
        "copy dmeo": f": there is no recipe 'dmeo'; did you mean demo? {KNOWN}",
        "copy ../arpo new": f": there is no recipe '../arpo'; did you mean arpo? {KNOWN}",
        "copy demo file": ": the recipe's folder cannot be file: ",
        "copy demo mine": ": mine/demo.yaml exists, and we do not overwrite it; move it, or name another folder",
    },
    "train": {
        "dmeo": f": there is no recipe 'dmeo'; did you mean demo? {KNOWN}",
        "mine/dmeo.yaml": ": there is no recipe mine/dmeo.yaml; did you mean mine/demo.yaml?",
        "broken.yaml": ": broken.yaml is not YAML: while parsing a flow node expected the node content, but found",
        "demo run_dir=file": ": run_dir cannot be file: ",
        "demo trian_batch_size=3 data.seeed=1 +policy=qwen3 data.train_files environment.num_desktops=2": ": 5 problems:\n"
        "- there is no policy 'qwen3'; did you mean qwen3_vl? Known: qwen25_vl, qwen3_vl\n"
        "- 'data.train_files' must be KEY=VALUE; put quotes around a value with special characters: KEY=\"'VALUE'\"\n"
        "- the recipe has no option trian_batch_size; did you mean data.train_batch_size?\n"
        "- the recipe has no option data.seeed; did you mean data.seed?\n"
        "- the recipe does not name environment.num_desktops yet; write +environment.num_desktops=2\n",
    },
    "summary": {
        "nowhere": ": RUN must be a run's folder, got 'nowhere'; a run prints it when it starts",
        "file": ": RUN must be a run's folder, got 'file'; a run prints it when it starts",
        "empty": ": there is no empty/metrics.jsonl: the run has not begun, or its trainer.logger has no `file`; name a",
    },
    "report": {
        "nowhere": f": {NO_RUN.format('nowhere', 'not there')}",
        "file": f": {NO_RUN.format('file', 'a file')}",
        "empty": ": RUN must be a recipe's run_dir, with trajectories/ or metrics.jsonl in it, or a folder of step_NNNNNN",
        "run --out file/report.html": ": file is a file or leads through one, where a folder is needed; name another place",
    },
    "view": {
        "nowhere": f": {NO_RUN.format('nowhere', 'not there')}",
        "run --port 70000": ": --port must be in [0, 65535], got 70000",
        ". --export out": ": --export writes one run, but . has several; name one of them",
        "run --steps 3": ": --steps works only with --export; the page has its own filters, so leave it out",
        "run --steps 7 --export out": ": no episode in ",
        "run --steps - --export out": ": --steps must be a step or a range such as 7, 3-10, 50- or -10, got '-'",
        "run --host no.such.host.invalid": ": cannot listen on the port 8642 of no.such.host.invalid: ",
        "run --steps 3-x --export out": ": --steps must be a step or a range such as 7, 3-10, 50- or -10, got '3-x'",
        "run --host 192.0.2.77 --port 0": ": cannot listen on the port 0 of 192.0.2.77: ",
    },
    "try": {
        "dialog-confirm-yse": ": there is no task dialog-confirm-yse; did you mean dialog-confirm-yes?",
        "embedded": ": try plays one task, but embedded has 32; name the task's own file",
        "nowhere.json": f": nowhere.json {NO_TASKS}",
        "dialog-confirm-yes --model-family ui_tar": ": gui_agent.model_family must be one of ui_tars_15,",
        "dialog-confirm-yes --screen big": " try: --screen: a size must be WIDTHxHEIGHT such as 1920x1080, got 'big'. See",
        "dialog-confirm-yes --provider dokcer": ": environment.provider must be one of embedded, fake, docker, ",
        "dialog-confirm-yes --option wait=3": ": environment.wait is not an option; did you mean environment.wait_s?",
        "dialog-confirm-yes --option wait_s": ": --option must be KEY=VALUE, got 'wait_s'",
        "dialog-confirm-yes --option wait_s=soon": ": environment.wait_s must be",
        "dialog-confirm-yes --max-steps 0": ": gui_agent.max_steps must be",
        "dialog-confirm-yes --expert --screen 800x600": ": environment.screen_size must be [640, 480], the expert's own, got [800, 600]",
        "dialog-confirm-yes --replies nowhere": ": --replies must be a text file of replies, got nowhere: [Errno 2]",
        "dialog-confirm-yes --expert --out file/try": ": file/try is a file or leads through one, where a folder is needed",
    },
    "replay": {
        "inspect empty": ": a saved replay store must have a store.json, but empty has none",
        "export empty file": ": the output must be a new or empty folder, got file; remove it or choose another",
        "seed run --recipe dmeo --out new": f": there is no recipe 'dmeo'; did you mean demo? {KNOWN}",
    },
    "evaluate": {
        "--runs 0": f": 4 problems:\n- {NO_FOLDER}\n- {NO_POLICY}\n- --runs must be 1 or more, got 0\n- no tasks given; add",
        "--out new --tasks embeded --model m": f": embeded {NO_TASKS}",
        "--out new --tasks families:trianing:3 --model m": ": a split of the families must be one of training, ",
        "--out new --tasks embedded --model org/name-7B": ": --model must be a folder, got org/name-7B, which is not here; "
        "if it is a name on the model hub, run `hf download org/name-7B --local-dir FOLDER`, then name FOLDER",
        "--out new --tasks embedded --model a --endpoint b": ": two policies given; name one",
        f"--out new {FAKE} --temperature -1": ": temperature must be 0 or more",
        f"--out new {FAKE} --max-pixels 9": ": data.mm_processor_kwargs must be with both min_pixels and max_pixels or neither",
        f"--out new {FAKE} --agent prompt": ": --agent must be KEY=VALUE, got 'prompt'",
        "--out new --tasks embedded --endpoint http://a:b@c": ": --endpoint must be an URL",
        "--max-steps 15,-1": " evaluate: --max-steps: turn budgets must be numbers from 1",
        "--out new --tasks embedded --endpoint nowhere": ": --endpoint must be an URL such as http://127.0.0.1:8000/v1, got",
        "--out new --tasks embedded --model m --agent max_step=3": ": gui_agent.max_step is not an option; did you mean "
        "gui_agent.max_steps?",
        "--compare empty": " evaluate: --compare: expected 2 arguments. See",
        "--compare empty empty": ": empty must be an evaluation's folder, got one without an evaluation.json",
        "--max-steps none": " evaluate: --max-steps: turn budgets must be numbers from 1 such as 15,50,100, got 'none'. See",
    },
    "filter-tasks": {
        "--out new": f": 2 problems:\n- {NO_POLICY}\n- no tasks given; add --tasks embedded, task files or a folder of them",
        "--out new --tasks embedded --model m --keep all": ": --keep must be a range of successes or of their rate, such",
        "--out new --tasks embedded --model m --error 2 --group-size 1": ": 2 problems:\n- --error must be from 0 to below "
        "0.5, got 2.0\n- --group-size must be 2 or more, got 1",
        "--out new --tasks familes:training:3 --model m": ": 'familes' in NAME:ARGUMENT is not a source of tasks; there are cua_gym, families",
        "--out new --tasks embedded --model m --max-steps 3,5": ": --max-steps must be one turn budget, got '3,5'",
    },
}
HERE = ("convert",)
"""Commands whose wrong inputs other files have: tests/tools/migration/."""

MODEL = "actor_rollout_ref.model.path must be a folder with a config.json, got"
TASKS = "data.train_files=embedded data.val_files=embedded"
# Recipe -> words typed after `arpo-verl doctor --recipe NAME` -> how each problem begins that is reported. The checks
# themselves have their tests in tests/plugin/recipe.
WRONG_RECIPES = {
    "demo": {
        "data.train_files=families:trianing:64 data.val_files=families:long gui_agent.max_steps=0 +replay.on_bad_store=falback "
        "+gui_agent.max_reply_token=9 trainer.total_epochs=many run_dir=file/run": (
            "trainer.total_epochs must be a number of at least 0, got 'many'",
            "gui_agent.max_reply_token is not an option; did you mean gui_agent.max_reply_tokens?",
            "gui_agent.max_steps must be a whole number of at least 1, got 0",
            "replay.on_bad_store must be one of fallback, refuse, empty, got 'falback'; did you mean fallback?",
            "run_dir cannot be file/run: ",
            "trainer.default_local_dir cannot be file/run/checkpoints: ",
            "gui_agent.trajectory_dir cannot be file/run/trajectories: ",
            "environment.status_file cannot be file/run: ",
            f"{MODEL} '.cache/seeing'; make it: python -m arpo_verl.tools.policy seeing --out .cache/seeing",
            "a split of the families must be one of training, validation, held_out_seeds, ",
            "write families:SPLIT:COUNT or families:SPLIT:FIRST:COUNT, not families:long",
        )
    },
    "osworld_full": {
        "environment.provider=dokcer +environment.wait_s=soon +environment.action_pause_s=-1 +environment.num_desktop=3 "
        "+data.trian_files=tasks.json": (
            "data.trian_files is not an option of veRL's; did you mean data.train_files?",
            "No task files for training given. Add data.train_files=PATH.",
            "No task files for validation given. Add data.val_files=PATH.",
            "environment.num_desktop is not an option; did you mean environment.num_desktops?",
            "environment.action_pause_s must be 0 or more seconds, got -1",
            "environment.wait_s must be 0 or more seconds, got 'soon'",
        )
    },
    "osworld_full_async": {
        f"{TASKS} actor_rollout_ref.actor.fsdp_config.param_offload=true "
        "trainer.v1.sampler.custom_sampler.name=ReplaySampler algorithm.filter_groups.enable=true "
        "algorithm.filter_groups.metric=null environment.screen_size=[1280,720] +gui_agent.model_family=opencua": (
            "environment.screen_size must be [1920, 1080] with OSWorld's own machine, got [1280, 720]; set it so, or give",
            "gui_agent.model_family must be one of ui_tars_15,",
            "trainer.v1.sampler.custom_sampler.name must be ReplaySamplerAsync with trainer.v1.trainer_mode=separate_async",
            "actor_rollout_ref.actor.fsdp_config.param_offload must be false with separate_async and several",
            "algorithm.filter_groups.metric must be the name of a reward, such as `reward`, got None",
        )
    },
    "osworld_window": {
        f"{TASKS} actor_rollout_ref.model.path=./nowhere actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean "
        "data.mm_processor_kwargs.max_pixels=null actor_rollout_ref.actor.freeze_vision_tower=true "
        "+gui_agent.kept_screenshots=2 actor_rollout_ref.rollout.n=0": (
            "actor_rollout_ref.rollout.n must be a number of at least 1, got 0",
            "gui_agent.kept_screenshots must be less than gui_agent.max_screenshots (5), and null but with context=",
            "data.mm_processor_kwargs must be with both min_pixels and max_pixels or neither",
            "actor_rollout_ref.actor.freeze_vision_tower must be false: ",
            "actor_rollout_ref.actor.loss_agg_mode must be token-mean or token-sum with episodes of several rows",
            f"{MODEL} 'nowhere'",
        )
    },
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with what rows name, and recipes of which each is composed once."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "broken.yaml").write_text("a: [\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "demo.yaml").write_text("x: 1\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "disk.qcow2").write_bytes(b"QFI\xfb" + bytes(12))
    (tmp_path / "run" / "trajectories").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    compose = composing._compose

    def compose_once(recipe, words):
        is_ours = recipe.parent == recipes_folder()
        return composed.compose_recipe(recipe.stem, *words) if is_ours else compose(recipe, words)

    monkeypatch.setattr(composing, "_compose", compose_once)


def typed(*words):
    """The exit status."""
    try:
        return main(list(words))
    except SystemExit as exit_:
        return exit_.code


@pytest.mark.parametrize(("command", "words"), [(command, words) for command, rows in WRONG.items() for words in rows])
def test_a_wrong_input_is_told_in_plain_words(command, words, capsys):
    assert typed(command, *shlex.split(words)) == 2
    told = capsys.readouterr().err
    assert command == "fetch-tasks" or not Path("new").exists()
    assert told.startswith(f"arpo-verl{WRONG[command][words]}"), told
    assert " problems:" in told or told.count("\n") == 1


@pytest.mark.parametrize("name", WRONG_RECIPES)
def test_all_that_is_wrong_with_a_recipe_is_told_at_once(name, capsys, monkeypatch):
    from arpo_verl.plugin.recipe import checks, footprint

    monkeypatch.setattr(footprint, "estimate_recipe", lambda *_, **__: None)  # it imports Transformers
    monkeypatch.setattr(checks, "check_provider", lambda _: None)  # it asks for Docker
    for words, expected in WRONG_RECIPES[name].items():
        assert typed("doctor", "--recipe", name, *shlex.split(words)) == 1
        told = capsys.readouterr().out.replace("\n       -> ", "; ").splitlines()
        subjects = ("[FAIL] refused at its start: ", "[note] option: ")
        told = [line.removeprefix(subject) for line in told for subject in subjects if line.startswith(subject)]
        assert len(told) == len(expected), told
        for line, beginning in zip(told, expected, strict=True):
            assert line.startswith(beginning)


def test_each_command_has_some():
    assert {*WRONG, *HERE} == set(COMMANDS) and all(WRONG.values())
