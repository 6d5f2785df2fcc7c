"""Loaded into the stock trainer by VERL_USE_EXTERNAL_MODULES: four sessions of step 1 get only desktops that die.

Which four: the first that are session 1 of their group. Each leaves a file named for its episode.
"""

import os
from pathlib import Path

import wrapt

from arpo_verl.errors import DesktopLostError

FOLDER = Path(os.environ["ARPO_VERL_LOST"])
NUM_LOST = 4


def _is_lost(row) -> bool:
    if int(row["session_id"]) != 1 or int(row["global_steps"]) != 1:
        return False
    mark = FOLDER / f"{row['uid']}_1"
    if not mark.exists() and len(list(FOLDER.iterdir())) < NUM_LOST:
        mark.touch()
    return mark.exists()


def _lose(agent_loop) -> None:
    attempt = agent_loop.GuiAgentLoop._attempt

    async def losing(self, task, row, engine, session, *others):
        if _is_lost(row):
            async with session.lease() as desktop:
                await desktop.reset(task)  # what a host fails before the set-up may be the host's, and costs no try
                raise DesktopLostError("injected: this session's desktop died")
        return await attempt(self, task, row, engine, session, *others)

    agent_loop.GuiAgentLoop._attempt = losing


wrapt.register_post_import_hook(_lose, "arpo_verl.plugin.agent_loop")
