"""A run of theirs in a recipe's terms: nothing unaccounted for, its meaning kept, and veRL takes it."""

import json
from itertools import groupby

import pytest
import yaml
from omegaconf import OmegaConf
from support import ROOT
from tools.migration.reference_run import CONFIG, ENV, RUNS, write_easyr1_run, write_run

from arpo_verl.errors import ConfigError
from arpo_verl.tools.cli.composing import compose_recipe
from arpo_verl.tools.cli.main import main
from arpo_verl.tools.cli.recipes import recipes_folder
from arpo_verl.tools.migration.keys import KEYS, RENAMED, find_key
from arpo_verl.tools.migration.recipe import UNSAID, convert, write_recipe
from arpo_verl.tools.migration.rules import apply_rules
from arpo_verl.tools.migration.settings import read_settings


def converted(path, **overrides):
    [settings] = read_settings(path, overrides)
    return convert(settings)


def easyr1(tmp_path, *overrides):
    return converted(write_easyr1_run(tmp_path, *overrides))


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    """Both of the reference's scripts as the command converts them; composed as the trainer does."""
    folder = tmp_path_factory.mktemp("converted")
    for name in RUNS:
        assert main(["convert", str(write_run(folder, name)), "--out", str(folder / f"{name}.yaml")]) == 0
    return {name: compose_recipe(folder / f"{name}.yaml", []) for name in RUNS}


@pytest.mark.parametrize("name", RUNS)
def test_no_key_of_the_references_scripts_is_unaccounted_for(name, tmp_path):
    script = write_run(tmp_path, name)
    [settings] = read_settings(script, {})
    recipe = convert(settings)
    made = {source for sources in recipe.sources.values() for source in sources}
    named = {line.split("=")[0] for line in (*recipe.dropped, *recipe.lost)}
    assert made | named == set(settings.given) and len(settings.given) > 60 and not recipe.lost
    assert all(line.partition(": ")[2] for line in recipe.dropped), "each with its reason"


@pytest.mark.parametrize("name", RUNS)
def test_a_converted_run_composes_and_passes_verls_validation(name, recipes):
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    recipe = recipes[name]
    assert not need_reference_policy(recipe) and not need_critic(recipe)
    validate_config(recipe, False, False)
    omega_conf_to_dataclass(recipe.actor_rollout_ref.rollout)


def test_the_references_meaning_is_kept(recipes):
    """`docs/paper-differences.md` has where the values come from."""
    recipe = recipes["full"]
    actor, rollout = recipe.actor_rollout_ref.actor, recipe.actor_rollout_ref.rollout
    assert recipe.replay.enable and recipe.replay.std == "sample"
    assert recipe.reward.custom_reward_function.reward_kwargs.format_weight == 0.5
    # Both trainers count prompts: 16 x 8 rollouts a step, 8 x 8 an update.
    assert (recipe.data.train_batch_size, actor.ppo_mini_batch_size, rollout.n) == (16, 8, 8)
    assert recipe.environment.num_desktops == 128 == recipe.data.train_batch_size * rollout.n
    # Mean of micro batches of one rollout.
    assert actor.ppo_micro_batch_size_per_gpu == 1 and actor.loss_agg_mode == "seq-mean-token-mean"
    assert (actor.clip_ratio_low, actor.clip_ratio_high, actor.clip_ratio_c) == (0.2, 0.3, 3.0)
    assert not actor.use_kl_loss and not recipe.algorithm.use_kl_in_reward
    # 64,000 tokens are the whole episode's, 8,192 one reply's.
    assert recipe.data.max_prompt_length + recipe.data.max_response_length == rollout.max_model_len == 64000
    assert recipe.gui_agent.max_reply_tokens == 8192
    assert (recipe.gui_agent.max_steps, recipe.gui_agent.max_screenshots) == (15, 15)
    assert (rollout.val_kwargs.temperature, rollout.val_kwargs.n, rollout.val_kwargs.do_sample) == (0.5, 1, True)
    assert recipe.data.train_files == "lists/tasks.json" and recipe.trainer.logger == ["console", "wandb", "file"]
    subset = recipes["subset"]
    assert subset.actor_rollout_ref.actor.optim.lr_warmup_steps_ratio == 0.05
    assert (subset.data.train_batch_size, subset.actor_rollout_ref.actor.ppo_mini_batch_size) == (2, 1)
    assert (subset.trainer.nnodes, subset.environment.num_desktops, subset.run_dir) == (1, 16, "runs/subset")


def test_a_plain_choice_behind_a_converted_recipe_has_a_folder_of_its_own(tmp_path):
    out = tmp_path / "full.yaml"
    main(["convert", str(write_run(tmp_path, "full")), "--out", str(out)])
    recipe = compose_recipe(out, ["+baseline=grpo"])
    assert recipe.run_dir == "runs/full_grpo" and not recipe.replay.enable


def test_a_default_that_is_not_said_is_the_recipes_own(tmp_path):
    """Else what neither script nor YAML says would change silently: `Key.differs` must name it."""
    base = compose_recipe(recipes_folder() / "osworld_full.yaml", ["data.train_files=t", "data.val_files=t"])
    # Absent means bf16 with fp32 sums in veRL; and code from a model's folder is only run where someone asks for it.
    exempt = {"worker.actor.model.trust_remote_code"}
    for key in KEYS:
        if key.by_rule or key.name in exempt:
            continue
        values = [OmegaConf.select(base, option, default=None) for option in key.to if "mixed_precision" not in option]
        same = all(value == key.convert(key.default) for value in values)
        assert same is not key.differs, key.name


def test_every_option_of_the_table_is_made_by_some_run(tmp_path):
    """And no rule makes one that the table does not show."""
    runs = [read_settings(write_run(tmp_path / name, name), {})[0] for name in RUNS]
    for more in (
        ["algorithm.use_kl_loss=false", "trainer.save_model_only=true", "trainer.save_checkpoint_path=c"],
        ["worker.actor.clip_ratio=0.1"],
    ):
        runs += read_settings(write_easyr1_run(tmp_path / more[0], *more), {})
    made = {option for settings in runs for option in apply_rules(settings)[0]}
    shown = {option for key in KEYS if key.by_rule for option in key.to}
    unsaid = {"replay.enable", "replay.std", "reward.custom_reward_function.reward_kwargs.format_weight"}
    assert made == shown | unsaid and set(RENAMED.values()) <= {key.name for key in KEYS}


def test_easyr1_trains_without_replay_and_names_what_it_cannot_bring(tmp_path):
    recipe = easyr1(tmp_path)
    assert recipe.options["replay.enable"] is False and recipe.options["algorithm.adv_estimator"] == "replay_grpo"
    assert recipe.options["data.train_files"] == "???" and "org/questions@train" in recipe.to_fill["data.train_files"]
    assert recipe.options["actor_rollout_ref.actor.loss_agg_mode"] == "token-mean"
    assert recipe.options["actor_rollout_ref.actor.use_kl_loss"] is True
    assert recipe.options["actor_rollout_ref.actor.kl_loss_coef"] == 0.01
    assert "environment.num_desktops" not in recipe.options


def test_of_a_run_of_easyr1_the_command_offers_both_trainers(tmp_path, capsys):
    theirs, arpo = write_easyr1_run(tmp_path / "theirs"), write_run(tmp_path / "arpo", "full")
    for script, easyr1_too in ((theirs, True), (arpo, False)):
        assert main(["convert", str(script), "--out", str(tmp_path / f"{script.stem}.yaml")]) == 0
        said = capsys.readouterr().out
        assert "python -m verl.trainer.main_ppo --config-dir" in said
        assert ("python -m arpo_verl.easyr1 config=THEIR.yaml data.train_files=TASKS" in said) is easyr1_too


def test_easyr1s_choices_are_verls(tmp_path):
    def made(*overrides):
        return easyr1(tmp_path, *overrides).options

    actor = "actor_rollout_ref.actor."
    assert made("worker.actor.loss_type=gspo_token", "worker.actor.loss_avg_mode=seq")[f"{actor}loss_agg_mode"] == (
        "seq-mean-token-mean"
    )
    in_reward = made("algorithm.use_kl_loss=false", "algorithm.kl_penalty=kl", "algorithm.kl_coef=1e-3")
    assert in_reward["algorithm.use_kl_in_reward"] is True and in_reward["algorithm.kl_ctrl.kl_coef"] == 0.001
    assert (
        made("worker.rollout.val_override_config='{temperature: 0}'")["actor_rollout_ref.rollout.val_kwargs.do_sample"]
        is False
    )
    older = made("worker.actor.use_kl_loss=true", "trainer.test_freq=7", "worker.actor.clip_ratio=0.1")
    assert older["trainer.test_freq"] == 7 and older[f"{actor}clip_ratio_high"] == 0.1
    assert made("worker='{actor: {optim: {lr: 3e-6}}}'")[f"{actor}optim.lr"] == 3e-6
    assert easyr1(tmp_path, "algorithm.online_filtering=true").options["algorithm.filter_groups.enable"] is True


def test_what_will_differ_is_told_apart(tmp_path):
    frozen = easyr1(tmp_path, "worker.actor.model.freeze_vision_tower=true", "algorithm.filter_low=0.2")
    assert any("freeze_vision_tower=True" in line for line in frozen.lost)
    assert any("filter_low" in line for line in frozen.lost)
    larger = converted(write_run(tmp_path, "full"), **{"worker.actor.micro_batch_size_per_device_for_update": "2"})
    assert larger.options["actor_rollout_ref.actor.loss_agg_mode"] == "token-mean" and len(larger.lost) == 1


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.rolout_batch_size=4", "did you mean data.rollout_batch_size?"),
        ("worker.actor.kl=1", "Neither the ARPO reference nor EasyR1 has these"),
        ("data.rollout_batch_size=many", "data.rollout_batch_size must be int, got 'many'"),
        ("data.rollout_batch_size=true", "must be int"),
        (f"trainer.nnodes=0x{'f' * 5000}", "trainer.nnodes must be int, got '0xff"),
        ("data.shuffle=1", "must be bool"),
        ("algorithm.adv_estimator=gae", "no recipe has a critic"),
        ("worker.actor.loss_type=other", "one of default"),
        ("worker.rollout.val_override_config='{stop: x}'", "got 'stop'"),
        ("trainer.experiment_name=../../up", "names a folder"),
        ("data.max_pixels=null", "both given or both null"),
        ("data='{shuffle: {deep: 1}}'", "data.shuffle must be bool"),
    ],
)
def test_what_no_recipe_can_say_is_refused(override, message, tmp_path):
    with pytest.raises(ConfigError) as refusal:
        easyr1(tmp_path, override)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    "override",
    [
        "trainer.project_name='${oc.env:HOME}'",
        "worker.rollout.val_override_config='{n: \"${oc.env:HOME}\"}'",
        "trainer.logger='[console, \"${hydra:run.dir}\"]'",
        "trainer.n_gpus_per_node='<how many>'",
    ],
)
def test_what_only_their_trainer_or_the_user_could_resolve_is_left_open(override, tmp_path):
    recipe = easyr1(tmp_path, override)
    open_options = [option for option in recipe.to_fill if not option.startswith("data.")]
    assert open_options and all(recipe.options[option] == "???" for option in open_options)
    assert "${" not in write_recipe(recipe, "a.sh").partition("\ndefaults:")[2].replace("${variant.", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!!python/object/apply:os.system [touch x]", "plain YAML"),
        ("a: &a [1]\nb: *a", "alias"),
        ("data: {seed: 1, seed: 2}", "plain keys, each once"),
        ("data: {? [a, b] : 1}", "plain keys, each once"),
        ("[" * 5000, "plain YAML"),
        ("{a: " * 60 + "1" + "}" * 60, "50 nested levels"),
        ("- data", "sections of options"),
        ("data: 3", "--ignore data"),
        ("x" * 300_000, "larger than 262144 bytes"),
        ("trainer: {total_epochs: 99999999999999999999999999999e9999}", "must be int"),
        (f"trainer: {{total_epochs: {'9' * 30}}}", "more than 64 bits"),
        ("\x00", "plain YAML"),
    ],
)
def test_hostile_yaml_is_refused(text, message, tmp_path):
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(ConfigError) as refusal:
        converted(tmp_path / "run.yaml")
    assert message in str(refusal.value)


def test_values_of_a_script_stay_values_in_the_recipe(tmp_path):
    """Neither a comment's end nor a terminal's escape gets out of where it stands."""
    hostile = 'a"\n# x\nhydra: {run: {dir: /}}\x1b[2J'
    recipe = easyr1(tmp_path, f"data.format_prompt='{hostile}'", f"trainer.project_name='{hostile}'")
    text = write_recipe(recipe, "a\nb.sh")
    tree = yaml.safe_load(text)
    assert tree["trainer"]["project_name"] == hostile and set(tree) & {"hydra", "x"} == set()
    assert "\x1b" not in text and all(line.startswith("#") for line in text[: text.index("\n\n")].splitlines())


def test_a_yaml_file_alone_is_converted_and_a_file_is_not_overwritten(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(CONFIG.replace("ENV", ENV))
    model = "worker.actor.model.model_path=org/policy"
    arguments = ["convert", "run.yaml", "data.train_files=t.json", "data.val_files=t.json", model]
    arguments += ["data.max_prompt_length=64000"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "doctor --recipe recipes/questions.yaml" in printed and "--config-name questions" in printed
    assert compose_recipe(tmp_path / "recipes" / "questions.yaml", []).replay.enable, "`env:` is the reference's"
    assert main(arguments) == 2 and "do not overwrite" in capsys.readouterr().err
    assert main([*arguments, "--out", "-"]) == 0
    assert UNSAID in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["convert"])
    assert "arguments are required: SCRIPT|YAML. See" in capsys.readouterr().err
    assert main(["convert", "run.yaml", "second.sh"]) == 2
    assert "must be KEY=VALUE, got 'second.sh'; convert one file at a time" in capsys.readouterr().err
    assert main(["convert", "absent.sh"]) == 2 and "absent.sh" in capsys.readouterr().err


HEAD = "| theirs | here | |\n|---|---|---|\n"


def key_table():
    """Every option of theirs as Markdown; neighbours that are dropped for the same reason share a row."""
    rows = groupby(KEYS, key=lambda key: (key.note, key.name if key.to else key.name.split(".")[:2]))
    return HEAD + "\n".join(_row(list(keys)) for _, keys in rows)


def _row(keys):
    first = keys[0]
    here = ", ".join(f"`{option.replace('actor_rollout_ref.', '….')}`" for option in first.to) or "–"
    return f"| {', '.join(_names(key.name for key in keys))} | {here} | {first.note} |"


def _names(names):
    section = ""
    for name in names:
        parent, _, last = name.rpartition(".")
        yield f"`{name}`" if parent != section else f"`{last}`"
        section = parent


def test_the_document_shows_the_table():
    assert key_table() in (ROOT / "docs" / "reference" / "migration.md").read_text()
    assert find_key("trainer.total_episodes") is find_key("trainer.total_epochs")
    assert json.dumps([key.default for key in KEYS])
