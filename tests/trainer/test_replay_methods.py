"""Each replay method in the stock trainer, in each of its modes: three steps in which it acts."""

import pytest
from trainer_run import MODES, read_steps

from arpo_verl.records.run import open_run

pytestmark = [pytest.mark.trainer, pytest.mark.desktop, pytest.mark.release]
METHODS = ("fresh", "rlep", "spear", "exgrpo")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_acts_in_the_stock_trainer(start, method, mode):
    run = start(f"{method}-{mode}", 3, f"replay.method={method}", "actor_rollout_ref.rollout.n=4", *MODES[mode])
    run.wait(timeout_s=3600)
    steps = read_steps(run.run_dir)
    assert sorted(steps) == [1, 2, 3] and all(step["actor/grad_norm"] > 0 for step in steps.values())
    injected = sum(step["replay/injected"] for step in steps.values())
    added = sum(step["replay/added"] for step in steps.values())
    assert injected >= 1 and added == (injected if method in ("rlep", "spear") else 0)
    assert any("replay/token_weight_mean" in step for step in steps.values()) == (method == "exgrpo")
    rows = [row for group in open_run(run.run_dir).groups() for row in group.rows]
    assert sum(row.replay is not None for row in rows) == injected
    assert sum(row.session >= 1000 for row in rows) == added
