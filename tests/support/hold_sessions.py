"""Loaded into the stock trainer by VERL_USE_EXTERNAL_MODULES: session 1 of each of step 1's groups waits for a file.

It waits before it has a desktop. So a group cannot end before the file is there, and is half finished soon.
"""

import asyncio
import os
from pathlib import Path

import wrapt

FILE = Path(os.environ["ARPO_VERL_HOLD"])


def _hold(agent_loop) -> None:
    run = agent_loop.GuiAgentLoop.run

    async def holding(self, sampling_params, **row):
        if int(row["session_id"]) == 1 and int(row["global_steps"]) == 1 and not FILE.exists():
            await asyncio.Event().wait()  # this process will be killed
        return await run(self, sampling_params, **row)

    agent_loop.GuiAgentLoop.run = holding


wrapt.register_post_import_hook(_hold, "arpo_verl.plugin.agent_loop")
