"""The environment of agents that are not ours, which `official_program.py` runs in: `make harness-agents` makes it, or
ARPO_HARNESS_AGENTS names its Python.

OSWorld's package lacks a module that its Qwen3-VL agent imports: OSWORLD_HOME names a checkout of OSWorld, with it.
"""

import functools
import os
import subprocess
from pathlib import Path

from support import ROOT

PYTHON = os.environ.get("ARPO_HARNESS_AGENTS") or str(ROOT / ".cache" / "harness-agents" / "bin" / "python")
PROGRAM = str(Path(__file__).parent / "official_program.py")
OSWORLD = os.environ.get("OSWORLD_HOME", "")
VARIABLES = {
    **dict.fromkeys(("OPENAI_BASE_URL", "DOUBAO_API_URL"), "{endpoint}"),
    **dict.fromkeys(("OPENAI_API_KEY", "DOUBAO_API_KEY"), "{token}"),
    "DESKTOP_URL": "{desktop}",
    "INSTRUCTION": "{instruction}",
    "PYTHONPATH": OSWORLD,
}
"""Of `gui_agent.harness_env`."""
MODULES = {
    "uitars15": "mm_agents.uitars15_v1",
    "qwen3vl": "mm_agents.qwen3vl_agent",
    "agent_s": "gui_agents.s3.agents.grounding",
}
"""Of each agent of `official_program.py`."""


@functools.cache
def why_not(agent):
    """Why an agent does not run here; "" where it does."""
    if not os.path.exists(PYTHON):
        return f"{PYTHON} is not there; run: make harness-agents"
    done = subprocess.run(
        [PYTHON, "-c", f"import desktop_env.controllers.python, {MODULES[agent]}"],
        env={**os.environ, "PYTHONPATH": OSWORLD},
        capture_output=True,
        text=True,
    )
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""
