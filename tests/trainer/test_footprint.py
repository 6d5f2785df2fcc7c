"""What is estimated before a run against what the stock trainer really used: two steps on embedded desktops."""

import json

import pytest
from trainer_run import ROOT

from arpo_verl.engines.footprint import checkpoint_bytes, longest_sequence, sequence_tokens
from arpo_verl.plugin.recipe.footprint import model_shape, read_run
from arpo_verl.tools.cli.composing import compose_recipe

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]

WITHIN = 0.2


@pytest.fixture(scope="session")
def estimated(policy):
    return read_run(
        compose_recipe(ROOT / "recipes" / "embedded.yaml", [f"actor_rollout_ref.model.path={policy}"]),
        model_shape(str(policy)),
    )


def test_the_log_tells_what_the_run_will_take_before_its_first_step(run):
    before, told, _ = run.stdout.partition("desktops, computed:")
    assert told and "host memory of a node that trains" in run.stdout
    assert "step:1 " not in before


def test_sequences_are_as_long_as_estimated(estimated, run):
    for step, logged in run.metrics.items():
        lengths, built = [], []
        for path in (run.folder / "trajectories" / f"step_{step:06d}").glob("[!.]*/tokens.json"):
            replies = json.loads(path.read_text())
            for row in json.loads((path.parent / "episode.json").read_text())["rows"]:
                # It shows some of the screenshots, and has all replies up to its last one.
                shown = row["num_screenshots"]
                written = replies[: row["first_screenshot"] + shown]
                tokens = sum(len(reply["token_ids"]) for reply in written)
                lengths.append(sequence_tokens(estimated, shown, tokens))
                built.append(row["prompt_tokens"] + row["response_tokens"])
        mean = logged["prompt_length/mean"] + logged["response_length/mean"]
        assert sum(lengths) / len(lengths) == pytest.approx(mean, rel=WITHIN)
        assert max(lengths) == pytest.approx(max(built), rel=WITHIN)
        assert max(built) <= longest_sequence(estimated)


def test_a_checkpoint_takes_what_was_estimated(estimated, run):
    actor = run.folder / "checkpoints" / "global_step_1" / "actor"
    held = sum(path.stat().st_size for path in actor.rglob("*") if path.is_file())
    assert held == pytest.approx(checkpoint_bytes(estimated), rel=WITHIN)
