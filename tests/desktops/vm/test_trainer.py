"""Two steps of the stock trainer on virtual machines."""

import json

import pytest
from support.desktop_harness import eventually
from support.machines import SCREEN, patient, sandboxes

pytest.importorskip("verl")

from trainer_run import Workplace, read_steps  # noqa: E402

from arpo_verl.tasks import load_tasks  # noqa: E402

pytestmark = pytest.mark.vm
TIMEOUT_S = 3600.0


def test_the_stock_trainer_makes_two_steps_on_clones(config, image, folder, tmp_path):
    before = sandboxes()
    workplace = Workplace.make(tmp_path)
    for path in workplace.tasks.iterdir():
        path.write_text(json.dumps(patient(load_tasks(path)[0]).spec))
    shape = f"memory_mib:{config.memory_mib},cpus:{config.cpus},accelerator:{config.accelerator}"
    overrides = [
        "environment.provider=qemu",
        f"environment.path_to_vm={image.disk}",
        f"+environment.vm={{{shape},binary:{config.binary},folder:{config.folder}}}",
        f"environment.screen_size=[{SCREEN.width},{SCREEN.height}]",
        "+environment.num_desktops=2",
        "+environment.action_pause_s=2",
        "+environment.boot_timeout_s=1200",
        "+environment.reset_timeout_s=1800",
        "actor_rollout_ref.rollout.n=2",
    ]
    trainer = workplace.start("machines", 2, *overrides, groups=4)
    trainer.wait(TIMEOUT_S)
    assert sorted(read_steps(trainer.run_dir)) == [1, 2]
    episodes = [json.loads(path.read_text()) for path in trainer.run_dir.glob("trajectories/step_*/*/episode.json")]
    assert len(episodes) == 2 * 4 * 2
    assert {episode["success"] for episode in episodes} <= {0.0, 1.0}
    eventually(lambda: sandboxes() <= before, timeout_s=60)
