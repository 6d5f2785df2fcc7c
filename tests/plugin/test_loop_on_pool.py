"""The loop on the job's real desktop pool, over Ray, with the fake desktop behind it."""

import asyncio

from omegaconf import OmegaConf
from support.desktop_harness import eventually
from support.loop_harness import DONE, HIT, ROW, ScriptedEngine, make_loop, recipe

from arpo_verl.plugin.settings import connect_pool


def test_sessions_share_the_jobs_desktops_through_faults_and_drops(policy, tokenizer, local_ray):
    # One desktop: two sessions take three steps each on it, the third session's first step is its seventh and kills it.
    # On the next, whoever comes second finds at its first step that the policy has ended it.
    script = {"fail": {"step": [7]}, "desktops": {"desktop-0.2": {"end": {"step": [4]}}}}
    environment = {
        "provider": "fake",
        "num_desktops": 1,
        "max_attempts": 2,
        "retry_backoff_s": 0.1,
        "provider_options": script,
    }
    config = OmegaConf.merge(recipe(), {"environment": environment})
    assert connect_pool(config) is connect_pool(config)

    async def session(number):
        engine = ScriptedEngine(tokenizer, [HIT, HIT, DONE])
        return await make_loop(policy, engine, None, config).run({}, **{**ROW, "session_id": number})

    async def sessions():
        return await asyncio.gather(*(session(number) for number in range(4)), return_exceptions=True)

    outputs = asyncio.run(sessions())
    assert not [output for output in outputs if isinstance(output, BaseException)]
    assert sorted(output.reward_score for output in outputs) == [0.0, 1.0, 1.0, 1.0]
    metrics = connect_pool(config).metrics()
    assert metrics["environment/faults/lost"] == 1
    assert metrics["environment/leases"] == 5
    ended = metrics["environment/ended_desktops"]  # nobody awaits a release
    assert eventually(lambda: ended or connect_pool(config).metrics()["environment/ended_desktops"]) == 1
    connect_pool(config).close()
