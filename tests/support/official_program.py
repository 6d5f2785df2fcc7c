"""A harness as its user writes it: agents that are not ours, unmodified, on an episode's desktop.

    python official_program.py uitars15 | qwen3vl | agent_s

Each agent's own `predict` asks the endpoint, and its code goes to the desktop through OSWorld's own controller, as in
OSWorld's `run_single_example`.
"""

import logging
import os
import sys
import time
from urllib.parse import urlsplit

from desktop_env.controllers.python import PythonController

MAX_STEPS = 15
CANNOT_BE_DONE = 3
"""Exit status of an agent that says FAIL."""


def uitars15(controller):
    """OSWorld's UI-TARS-1.5 agent, as `run_multienv_uitars15_v1.py` makes it."""
    from mm_agents.uitars15_v1 import UITARSAgent

    settings = {
        "infer_mode": "qwen25vl_normal",
        "prompt_style": "qwen25vl_normal",
        "input_swap": False,
        "language": "English",
        "history_n": 5,
        "max_pixels": 16384 * 28 * 28,
        "min_pixels": 100 * 28 * 28,
        "callusr_tolerance": 3,
        "temperature": 0,
        "top_k": -1,
        "top_p": 0.9,
        "max_tokens": 1000,
    }
    return UITARSAgent(model="policy", runtime_conf=settings).predict


def qwen3vl(controller):
    """OSWorld's Qwen3-VL agent over OpenAI's API."""
    from mm_agents.qwen3vl_agent import Qwen3VLAgent

    agent = Qwen3VLAgent(model="policy", api_backend="openai")
    agent.reset(logging.getLogger("agent"))
    return agent.predict


def agent_s(controller):
    """Agent-S 3. Its grounder is the policy too, but untrained: a side request."""
    from types import SimpleNamespace

    from gui_agents.s3.agents.agent_s import AgentS3
    from gui_agents.s3.agents.grounding import OSWorldACI

    size = controller.get_vm_screen_size()
    server = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    policy = {"engine_type": "openai", "model": "policy", **server}
    grounder = {"engine_type": "openai", "model": "policy-untrained", **server}
    grounder |= {"grounding_width": size["width"], "grounding_height": size["height"]}
    environment = SimpleNamespace(controller=controller)
    hands = OSWorldACI(environment, "linux", policy, grounder, size["width"], size["height"])
    return AgentS3(policy, hands, platform="linux", enable_reflection=False).predict


def main(name):
    address = urlsplit(os.environ["DESKTOP_URL"])
    controller = PythonController(f"{address.username}:{address.password}@{address.hostname}", address.port)
    predict = {"uitars15": uitars15, "qwen3vl": qwen3vl, "agent_s": agent_s}[name](controller)
    for _ in range(MAX_STEPS):
        _, actions = predict(os.environ["INSTRUCTION"], {"screenshot": controller.get_screenshot()})
        for action in actions:
            if action in ("DONE", "FAIL"):
                return 0 if action == "DONE" else CANNOT_BE_DONE
            if action == "WAIT":
                time.sleep(1)
            else:
                controller.execute_python_command(action)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
