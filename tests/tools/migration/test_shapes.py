"""Scripts as forks publish them: what they come to as recipes, what is left for the user, and that nothing hangs."""

import os
import re
from pathlib import Path

import pytest
from tools.migration.reference_run import CONFIG, ENV
from tools.migration.scripts import SHAPES

from arpo_verl.errors import ConfigError
from arpo_verl.tools.cli.composing import compose_recipe
from arpo_verl.tools.cli.main import main
from arpo_verl.tools.migration.recipe import convert, write_recipe
from arpo_verl.tools.migration.rules import MISSING
from arpo_verl.tools.migration.settings import read_settings

PATH, N = "actor_rollout_ref.model.path", "actor_rollout_ref.rollout.n"
NODES, GPUS, SEED = "trainer.nnodes", "trainer.n_gpus_per_node", "data.seed"
ACTOR = "actor_rollout_ref.actor"
TP = "actor_rollout_ref.rollout.tensor_model_parallel_size"
# Shape -> of each recipe that it comes to, some options; or what the refusal says.
EXPECTED = {
    "slurm with srun": [{PATH: "org/policy", NODES: MISSING, GPUS: MISSING}],
    "slurm that starts ray by hand": 'line 26: the training command within `srun --overlap -w "$head" /bin/bash -c',
    "ray job in a container": [{PATH: "org/policy"}],
    "placeholders": [{PATH: MISSING, GPUS: MISSING, "data.train_files": MISSING, "trainer.project_name": MISSING}],
    "defaults and a date": [
        {PATH: MISSING, GPUS: 8, SEED: MISSING, "data.train_batch_size": MISSING, "trainer.total_epochs": MISSING}
    ],
    "a guard and a resumed run": [{PATH: MISSING}],
    "arrays of options": [{PATH: "org/policy", NODES: 2, SEED: 1}],
    "a function and a loop": [{PATH: MISSING, f"{ACTOR}.optim.lr": MISSING}],
    "a case for each size": [{PATH: MISSING, TP: MISSING, N: MISSING}],
    "two stages": [{PATH: "org/policy", "trainer.total_training_steps": 100}, {PATH: "checkpoints/stages", N: 8}],
    "a job that it writes": "line 2: the training command within `cat` is not read",
    "a comment in the command": [{PATH: "org/policy", "data.shuffle": True, "trainer.save_freq": 5}],
}
READ = [shape for shape, expected in EXPECTED.items() if isinstance(expected, list)]


@pytest.fixture
def repository(tmp_path):
    """Of EasyR1's layout, without a script."""
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "config.yaml").write_text(CONFIG.replace("ENV\n", ""))
    return tmp_path


def write_script(repository, text, name="run.sh"):
    script = repository / "examples" / name
    script.write_text(text)
    return script


@pytest.mark.parametrize("shape", READ)
def test_a_script_of_any_shape_comes_to_its_recipes(shape, repository):
    made = [convert(settings) for settings in read_settings(write_script(repository, SHAPES[shape]), {})]
    assert len(made) == len(EXPECTED[shape])
    for recipe, expected in zip(made, EXPECTED[shape], strict=True):
        assert recipe.options[N] == expected.get(N, 4)
        assert {option: recipe.options[option] for option in expected} == expected
        assert {option for option, value in recipe.options.items() if value == MISSING} == set(recipe.to_fill)


@pytest.mark.parametrize("shape", sorted(set(SHAPES) - set(READ)))
def test_a_training_within_quotes_or_a_document_is_refused_with_its_line(shape, repository):
    with pytest.raises(ConfigError) as refusal:
        read_settings(write_script(repository, SHAPES[shape]), {})
    assert EXPECTED[shape] in str(refusal.value)


@pytest.mark.release
@pytest.mark.parametrize("shape", READ)
def test_each_of_its_recipes_composes(shape, repository):
    out = repository / "made.yaml"
    assert main(["convert", str(write_script(repository, SHAPES[shape])), "--out", str(out)]) == 0
    for number, expected in enumerate(EXPECTED[shape], 1):
        path = out if number == 1 else out.with_name(f"made_{number}.yaml")
        n = 4 if expected.get(N, MISSING) == MISSING else expected[N]
        overrides = [f"{N}={n}"] if expected.get(N) == MISSING else []
        assert compose_recipe(path, overrides).actor_rollout_ref.rollout.n == n


@pytest.mark.skipif("EASYR1_HOME" not in os.environ, reason="needs EASYR1_HOME, a checkout of EasyR1")
def test_each_of_easyr1s_examples_converts_whole():
    scripts = sorted(Path(os.environ["EASYR1_HOME"], "examples").rglob("*.sh"))
    assert len(scripts) >= 20
    for script in scripts:
        [settings] = read_settings(script, {})
        recipe = convert(settings)
        options = re.findall(r"^ +(\w+\.[\w.]+)=", script.read_text(), re.M)
        assert options and set(options) <= set(settings.given)
        assert set(recipe.to_fill) <= {"data.train_files", "data.val_files"}
        assert all(note.startswith("trainer.experiment_name is ${EXPERIMENT_NAME}") for note in recipe.notes)


def test_what_the_user_must_fill_in_is_one_list_and_the_recipe_composes(repository, capsys):
    out = repository / "made.yaml"
    assert main(["convert", str(write_script(repository, SHAPES["placeholders"])), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    begin = printed.index("Fill in before you train (??? in the recipe):\n")
    lines = printed[begin : printed.index("\nNot taken over", begin)].splitlines()[1:]
    to_fill = {PATH, GPUS, "data.train_files", "data.val_files", "trainer.project_name"}
    assert {line.split(":")[0].strip() for line in lines} == to_fill
    assert f"  {PATH}: the original has worker.actor.model.model_path=/path/to/your/model; it is a placeholder" in lines
    told = "the original has trainer.n_gpus_per_node=$N_GPUS; line 5: only running the script shows `$N_GPUS`"
    assert any(told in line for line in lines)
    recipe = compose_recipe(out, [f"{PATH}=p", f"{GPUS}=2", "data.train_files=t", "data.val_files=t"])
    assert (recipe.actor_rollout_ref.model.path, recipe.trainer.n_gpus_per_node) == ("p", 2)
    assert "# Fill in before you train" in out.read_text()


def test_a_name_that_only_a_shell_knows_is_the_scripts(repository):
    [settings] = read_settings(write_script(repository, SHAPES["defaults and a date"], "my run.sh"), {})
    recipe = convert(settings)
    assert recipe.name == "my_run" and "trainer.experiment_name is $NAME" in recipe.notes[0]


@pytest.mark.parametrize(
    ("words", "why"),
    [('"$@"', "`$@` after"), ("--data.seed 1", "`--data.seed` after"), ("", "the training command has none")],
)
def test_a_conversion_without_an_option_is_refused(repository, words, why, capsys):
    script = write_script(repository, f"python -m verl.trainer.main {words}")
    assert main(["convert", str(script), "--out", str(repository / "x.yaml")]) != 0
    assert f"sets no option that can be converted: {why}" in capsys.readouterr().err


def test_no_recipe_gets_the_name_of_a_shipped_one(repository):
    for name, options, expected in (
        ("run.sh", "", "run"),
        ("osworld_full.sh", "", "osworld_full_converted"),
        ("run.sh", "trainer.experiment_name=demo", "demo_converted"),
    ):
        script = write_script(repository, f"python -m verl.trainer.main data.seed=1 {options}", name)
        [recipe] = [convert(settings) for settings in read_settings(script, {})]
        assert recipe.name == expected and recipe.options["trainer.experiment_name"].startswith(f"{expected}$")


def test_what_could_not_be_followed_is_told(repository):
    [guarded] = read_settings(write_script(repository, SHAPES["a guard and a resumed run"]), {})
    assert guarded.notes[0] == (
        "`${RESUME}` after the training command was left out: line 7 of the script decides RESUME"
    )
    assert guarded.placeholders["worker.actor.model.model_path"] == "line 3: only running the script shows `$1`"
    [listed] = read_settings(write_script(repository, SHAPES["arrays of options"]), {})
    assert len(listed.notes) == 1 and "`${COMMON[@]}` after the training command was left out" in listed.notes[0]
    [cut] = read_settings(write_script(repository, SHAPES["a comment in the command"]), {})
    assert len(cut.notes) == 2 and "`data.shuffle=false` comes after the end of the command" in cut.notes[0]
    text = "source paths.sh\npython -m verl.trainer.main worker.actor.model.model_path=$POLICY"
    [sourced] = read_settings(write_script(repository, text), {})
    assert sourced.notes == ("line 1: what `source paths.sh` sets is not known",)


def test_trainings_of_one_name_get_a_file_each(repository, capsys, monkeypatch):
    monkeypatch.chdir(repository)
    assert main(["convert", str(write_script(repository, SHAPES["two stages"]))]) == 0
    assert sorted(path.name for path in (repository / "recipes").iterdir()) == ["stages.yaml", "stages_2.yaml"]
    assert main(["convert", "examples/run.sh", "--out", "-"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("\n---\n") == 1 and "Read examples/run.sh" in printed.err


# --- The configuration that a script means ---------------------------------------------------------------------------


def test_the_scripts_own_configuration_counts_before_the_current_folders(repository, monkeypatch, capsys):
    """U8: a run was converted with the configuration of whatever project the user stood in."""
    elsewhere = repository / "elsewhere"
    (elsewhere / "examples").mkdir(parents=True)
    (elsewhere / "examples" / "config.yaml").write_text("data: {seed: 99}")
    (elsewhere / "config.yaml").write_text("data: {seed: 99}")
    monkeypatch.chdir(elsewhere)
    script = write_script(repository, "python -m verl.trainer.main config=examples/config.yaml")
    assert main(["convert", str(script), "--out", "made.yaml"]) == 0
    printed = capsys.readouterr().out
    assert f"Read {script}\nRead {repository / 'examples' / 'config.yaml'}\n" in printed
    assert read_settings(script, {})[0][SEED] == 1


@pytest.mark.parametrize(
    ("named", "where"),
    [
        ("config.yaml", "scripts/config.yaml"),
        ("examples/config.yaml", "examples/config.yaml"),
        ("examples/config.yaml", "scripts/config.yaml"),
        ("/mnt/theirs/EasyR1/config.yaml", "scripts/config.yaml"),
        ("$(cd .. && pwd)/examples/config.yaml", "examples/config.yaml"),
        ('"${ROOT}/examples/config.yaml"', "examples/config.yaml"),
        ("$ROOT/examples/config.yaml", "examples/config.yaml"),
        ("here.yaml", "current/here.yaml"),
    ],
)
def test_a_configuration_is_found(named, where, tmp_path, monkeypatch):
    for folder in ("scripts", "examples", "current"):
        (tmp_path / folder).mkdir()
    (tmp_path / "current" / "config.yaml").write_text("data: {seed: 99}")
    (tmp_path / where).write_text("data: {seed: 7}")
    monkeypatch.chdir(tmp_path / "current")
    script = tmp_path / "scripts" / "run.sh"
    script.write_text(f"python -m verl.trainer.main config={named}")
    [settings] = read_settings(script, {})
    assert settings[SEED] == 7 and settings.files == (script, tmp_path / where)


# --- A fork's own options --------------------------------------------------------------------------------------------

FORK = (
    "python -m verl.trainer.main config=examples/config.yaml worker.actor.model.model_path=p data.nframes=8 "
    "data.rolout_batch_size=4 data.shuffle=maybe tools.web.depth=2 tools.web.retries=3"
)


def test_all_unknown_options_are_told_at_once_with_the_remedy(repository, capsys):
    script = write_script(repository, FORK)
    assert main(["convert", str(script)]) == 2
    message = capsys.readouterr().err
    assert "data.shuffle must be bool, got 'maybe'" in message
    assert "\n  data.rolout_batch_size; did you mean data.rollout_batch_size?" in message
    remedy = message[message.index("--ignore") :].splitlines()[0]
    assert remedy == "--ignore data.nframes --ignore data.rolout_batch_size --ignore tools"
    arguments = ["convert", str(script), "data.shuffle=true", *remedy.split(), "--out", str(repository / "a.yaml")]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert all(f"{name}: left out by --ignore" in printed for name in ("data.nframes=8", "tools.web.depth=2"))


def test_an_unknown_name_of_somebody_elses_file_neither_moves_the_cursor_nor_is_run_when_pasted(repository, capsys):
    (repository / "run.yaml").write_text('"a\\e[2J; rm -rf ~ #": 1\n')
    assert main(["convert", str(repository / "run.yaml")]) == 2
    message = capsys.readouterr().err
    assert "\x1b" not in message and "--ignore 'a?[2J; rm -rf ~ #'" in message


def test_a_newer_name_with_a_value_fills_an_older_one_without(repository):
    text = "python -m verl.trainer.main trainer.total_episodes='???' trainer.total_epochs=4 data.seed=$S data.seed=3"
    [settings] = read_settings(write_script(repository, text), {})
    assert settings["trainer.total_epochs"] == 4 and "trainer.total_epochs" not in settings.placeholders


def test_a_known_option_can_be_ignored_and_a_needless_ignore_is_told(repository):
    script = write_script(repository, "python -m verl.trainer.main algorithm.adv_estimator=own env.max_steps=9")
    with pytest.raises(ConfigError, match=r"add algorithm\.adv_estimator=grpo"):
        convert(read_settings(script, {})[0])
    [settings] = read_settings(script, {}, ignore=["algorithm.adv_estimator", "tols"])
    recipe = convert(settings)
    assert recipe.options["algorithm.adv_estimator"] == "replay_grpo"
    assert recipe.notes == ("--ignore tols is not needed: the run does not set it",)


def test_a_missing_configuration_and_unknown_options_are_told_together(repository):
    script = write_script(repository, "python -m verl.trainer.main config=gone.yaml data.nframes=8")
    with pytest.raises(ConfigError) as refusal:
        read_settings(script, {})
    assert "pass its path: --config YAML" in str(refusal.value) and "--ignore data.nframes" in str(refusal.value)


def test_a_baseline_beside_the_reference_is_told_that_its_prompts_are_no_episodes(repository):
    (repository / "examples" / "config.yaml").write_text(CONFIG.replace("ENV", ENV))
    [settings] = read_settings(write_script(repository, SHAPES["ray job in a container"]), {})
    text = write_recipe(convert(settings), "run.sh")
    assert settings.is_arpo and "# Not taken over, and the run will differ:\n#   data.max_prompt_length=2048" in text


# --- Files of others -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["script", "config"])
def hostile(request, repository):
    """Where to put something, and the arguments with which the command reads it."""
    path = repository / "named"
    if request.param == "script":
        return path, [str(path)]
    script = write_script(repository, "python -m verl.trainer.main config=examples/config.yaml")
    return path, [str(script), "--config", str(path)]


def test_a_pipe_a_device_a_huge_file_and_a_folder_are_refused_at_once(hostile, capsys):
    """S6: a FIFO hung the command."""
    path, arguments = hostile
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), _make_huge, os.mkdir, _make_loop):
        make(path)
        assert main(["convert", *arguments]) == 2
        assert str(path) in capsys.readouterr().err
        path.rmdir() if path.is_dir() else path.unlink()


def _make_huge(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _make_loop(path):
    path.symlink_to(path.name)


@pytest.mark.parametrize("named", ["{}/secret.yaml", "../../../{}/secret.yaml", "linked.yaml", "circle.yaml"])
def test_no_name_in_a_script_leads_out_of_its_repository(named, repository, tmp_path_factory, monkeypatch, capsys):
    """It could have named any file of the user's, which the recipe would then quote."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "secret.yaml").write_text("data: {seed: 4711}")
    (repository / "linked.yaml").symlink_to(elsewhere / "secret.yaml")
    (repository / "circle.yaml").symlink_to("circle.yaml")
    monkeypatch.chdir(repository)
    (repository / "examples" / "deep").mkdir()
    name = named.format(elsewhere if named.startswith("{") else elsewhere.name)
    script = write_script(repository, f"python -m verl.trainer.main config={name}", "deep/run.sh")
    assert main(["convert", str(script), "--out", "-"]) == 2
    said = capsys.readouterr()
    assert "was not found" in said.err and "--config YAML" in said.err and "4711" not in said.out + said.err


def test_a_link_to_a_file_is_followed(repository):
    write_script(repository, SHAPES["two stages"])
    (repository / "link.sh").symlink_to(repository / "examples" / "run.sh")
    assert len(read_settings(repository / "link.sh", {}, repository / "examples" / "config.yaml")) == 2
