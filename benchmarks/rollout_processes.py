"""A setting of `rollout_schedule.py` in real processes, on Ray.

The pool's workers, veRL's agent-loop workers and TransferQueue are as in training. The desktops and the policy sleep
what was drawn, times a scale. Everything else takes the time that it takes.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import ray
from omegaconf import OmegaConf
from rollout_desktop import SimulatedPolicy
from rollout_draws import HANG_S, Session

POLL_S = 0.02
PATIENCE_S = 1800.0
DESKTOPS_PER_WORKER = 32
"""A worker process stands for a host."""


def environment(setting: Any, folder: Path, scale: float) -> dict[str, Any]:
    """The recipe's section, whose times are scaled too."""
    options = {**asdict(setting.world), "folder": str(folder), "bears": setting.bears, "scale": scale}
    patience = dict.fromkeys(("reset_timeout_s", "step_timeout_s", "evaluate_timeout_s"), HANG_S * scale)
    return {
        **{"provider": "rollout_desktop:make_desktop", "provider_options": options},
        **{"desktops_per_worker": DESKTOPS_PER_WORKER, "boot_timeout_s": 300 * scale, "retry_backoff_s": scale},
        **{"health_interval_s": 30 * scale, "action_pause_s": 0, "wait_s": 0, **patience},
    }


def play(
    stage: Any, setting: Any, row: Callable[[Session], dict[str, Any]], scale: float, train_s: float
) -> dict[str, Any]:
    """Play all steps in `sync`; seconds are by the drawn clock. `cpu_share` is of all cores, this machine's over it all
    while rollouts ran: near 1, the processors set the pace and not the schedule."""
    import transfer_queue as tq
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ

    from arpo_verl.plugin.settings import connect_pool

    os.environ["VERL_PLATFORM"] = "cpu"
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    env_vars = {"PYTHONPATH": paths, "VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1"}
    options = {"num_cpus": 16, "include_dashboard": False, "log_to_driver": False}
    with tempfile.TemporaryDirectory(dir=stage.folder) as folder:
        config = stage.config(setting, environment(setting, Path(folder), scale))
        ray.init(address="local", runtime_env={"env_vars": env_vars}, **options)
        try:
            backend = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}
            tq.init(OmegaConf.create({"enable": True, "backend": backend}))
            pool = connect_pool(config)
            policy = SimulatedPolicy(setting.world, stage.tokenizer, scale)
            manager = AgentLoopManagerTQ.create(config=config, llm_client=policy)
            wait_until(lambda: pool.status()["desktops_idle"] == setting.desktops)
            spent, shares, lost = [], [], 0
            for step in range(1, setting.measured.stop):
                cpu, began = cpu_of_all_s(), time.monotonic()
                lost += roll_out(tq, manager, row, setting.sessions(step))
                seconds = time.monotonic() - began
                spent.append(seconds / scale)
                shares.append((cpu_of_all_s() - cpu) / seconds / len(os.sched_getaffinity(0)))
                time.sleep(train_s * scale)
            pool.close()
            tq.close()
        finally:
            ray.shutdown()
    return {"step_s": spent[1:], "lost": lost, "cpu_share": max(shares[1:])}


def roll_out(tq: Any, manager: Any, row: Callable[[Session], dict[str, Any]], sessions: Sequence[Session]) -> int:
    """One batch of prompts, as veRL's trainer submits it and waits for it; returns how many sessions were lost."""
    from verl.utils import tensordict_utils as tu

    firsts = [row(session) for session in sessions if session[2] == 0]
    columns = {
        name: [first[name] for first in firsts] for name in firsts[0] if name not in ("session_id", "global_steps")
    }
    columns["index"] = [first["extra_info"]["index"] for first in firsts]
    batch = tu.get_tensordict(columns, {"global_steps": sessions[0][0]})
    uids = columns["uid"]
    tq.kv_batch_put(keys=uids, partition_id="train", tags=[{"is_prompt": True, "status": "pending"} for _ in uids])
    manager.generate_sequences(batch)

    def rows() -> dict[str, Any]:
        return (tq.kv_list(partition_id="train") or {}).get("train", {})

    wait_until(lambda: all(rows().get(uid, {}).get("status") in ("finished", "failure") for uid in uids))
    held = rows()
    sessions_held = {key.rsplit("_", 1)[0] for key in held if key not in uids}
    tq.kv_clear(keys=list(held), partition_id="train")
    return len(sessions) - len(sessions_held)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE_S:g} s")
        time.sleep(POLL_S)


def cpu_of_all_s() -> float:
    """Of the whole machine's processors, whoever uses them."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)
