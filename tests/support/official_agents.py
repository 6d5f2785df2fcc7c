"""OSWorld's own agents from the installed package, over a scripted model: what they send to it, and what they make of
its replies. What they import and is not here (clients of model services, a module that the package lacks) stands in.
"""

from __future__ import annotations

import base64
import importlib
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import fidelity
import pytest
from PIL import Image

SCREEN = (640, 480)
QUIET = SimpleNamespace(**dict.fromkeys(("info", "warning", "error", "exception"), lambda *_: None))
QWEN = {"qwen25_vl": ("qwen25vl_agent", "Qwen25VLAgent"), "qwen3_vl": ("qwen3vl_agent", "Qwen3VLAgent")}


def png(number: int = 0) -> bytes:
    """A screenshot of one colour, by which `number_of` knows it."""
    buffer = io.BytesIO()
    Image.new("RGB", SCREEN, (number, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def number_of(part: dict[str, Any]) -> int:
    """Which screenshot a part of a message shows."""
    data = base64.b64decode(part["image_url"]["url"].removeprefix("data:image/png;base64,"))
    return Image.open(io.BytesIO(data)).convert("RGB").getpixel((0, 0))[0]


@contextmanager
def stand_ins() -> Iterator[None]:
    """Within the block the agents' modules can be imported; none of them, and no stand-in, stays behind."""

    def no_retries(*_: Any, **__: Any) -> Any:
        return lambda function: function

    names = ("InvalidArgument", "ResourceExhausted", "InternalServerError", "BadRequest", "RateLimitError")
    errors = dict.fromkeys([*names, "BadRequestError"], OSError)
    modules = {
        "backoff": SimpleNamespace(on_exception=no_retries, constant=None),
        "dashscope": SimpleNamespace(MultiModalConversation=None),
        "google.api_core.exceptions": SimpleNamespace(**errors),
        "httpx": SimpleNamespace(),
        "loguru": SimpleNamespace(logger=QUIET),
        "mm_agents.utils": ModuleType("mm_agents.utils"),
        # The screen is taken for its own resized image: what becomes of coordinates is then plain to see.
        "mm_agents.utils.qwen_vl_utils": SimpleNamespace(smart_resize=lambda height, width, **_: (height, width)),
        "oss2": SimpleNamespace(),
        "openai": SimpleNamespace(OpenAI=lambda **_: None, **errors),
    }
    before = {name: sys.modules[name] for name in modules if name in sys.modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        sys.modules.update(before)
        for name in [name for name in list(sys.modules) if name.partition(".")[0] == "mm_agents" or name in modules]:
            if name not in before:
                del sys.modules[name]


def official_module(name: str) -> ModuleType:
    """`mm_agents.NAME`, which prints nothing."""
    with stand_ins():
        module = importlib.import_module(f"mm_agents.{name}")
    module.print = lambda *_, **__: None
    return module


@contextmanager
def doubao() -> Iterator[None]:
    """What UI-TARS' agents ask for. `patch.dict` would empty the environment for a moment, for all threads."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DOUBAO_API_URL", "DOUBAO_API_KEY"):
            patch.setenv(name, "unused")
        yield


def ui_tars_agent(replies: list[str]) -> Any:
    """UI-TARS-1.5's agent as OSWorld's runner configures it, but that it types instead of pasting."""
    with doubao():
        return fidelity.reference_agent(official_module("uitars15_v1"), replies, paste=False)


def _answering(replies: list[str], sent: list[Any]) -> Any:
    """A client of a model service that gives these replies and keeps the messages of each request."""
    remaining = list(replies)

    def create(**request: Any) -> Any:
        sent.append(request["messages"])
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=remaining.pop(0)))])

    return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))


def _ui_tars_10_agent(replies: list[str], sent: list[Any]) -> Any:
    """UI-TARS's agent as its runner configures it, in English."""
    module = official_module("uitars_agent")
    module.OpenAI = lambda **_: _answering(replies, sent)
    with doubao():
        agent = module.UITARSAgent("model", observation_type="screenshot")
    agent.language = "English"
    return agent


def _ui_tars_2_agent(replies: list[str], sent: list[Any]) -> Any:
    """UI-TARS-2's agent that thinks, in English."""
    module, remaining = official_module("uitars15_v2"), list(replies)
    options = {"max_tokens": 1, "top_p": None, "temperature": 0.0, "max_trajectory_length": None}
    agent = module.UITarsAgent("model", "doubao", **options, max_image_history_length=5, language="English")
    agent.reset(QUIET)

    def infer(messages: Any) -> str:
        sent.append(messages)
        return remaining.pop(0)

    agent.inference_func = infer
    return agent


def owl_agent(replies: list[str], sent: list[Any]) -> Any:
    """GUI-Owl's agent as it is by default, with images in the request."""
    module = official_module("owl_agent")
    module.OpenAI = lambda **_: _answering(replies, sent)
    agent = module.OwlAgent()
    agent.image_format = "data"
    return agent


def qwen_agent(kind: str) -> Any:
    """Qwen's agent as it is by default, which has been reset as its runner does."""
    module_name, class_name = QWEN[kind]
    agent = getattr(official_module(module_name), class_name)()
    agent.reset(QUIET)
    return agent


_BY_CLIENT = {
    "gui_owl": owl_agent,
    "ui_tars_10": _ui_tars_10_agent,
    "ui_tars_2": _ui_tars_2_agent,
}


def sent_messages(
    kind: str, instruction: str, replies: list[str], shown: int | None = None
) -> list[list[dict[str, Any]]]:
    """What the agent of a `gui_agent.model_family` sends before each reply.

    Args:
        shown: screenshots that it shows, the newest included; None: as it is configured.
    """
    sent: list[Any] = []
    if kind == "ui_tars_15":
        agent = ui_tars_agent(replies)
        answer = agent.vlm.chat.completions.create

        def create(**request: Any) -> Any:
            sent.append(request["messages"])
            return answer(**request)

        agent.vlm.chat.completions.create = create
    elif kind in _BY_CLIENT:
        agent = _BY_CLIENT[kind](replies, sent)
    else:
        agent, remaining = qwen_agent(kind), list(replies)

        def call_llm(payload: dict[str, Any], model: str) -> str:
            sent.append(payload["messages"])
            return remaining.pop(0)

        agent.call_llm = call_llm
    if shown is not None:
        agent.history_n = shown - 1 if kind in QWEN else shown  # Qwen's counts those before the newest
    for number in range(len(replies)):
        agent.predict(instruction, {"screenshot": png(number)})
    return sent
