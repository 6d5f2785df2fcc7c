"""Harnesses for tests: our own loop as a program that asks the endpoint, and some that misbehave."""

import base64
import json

import aiohttp

from arpo_verl.agent.harness.chat_completions import write_content
from arpo_verl.agent.models.family import load_family
from arpo_verl.types import Fail, Finish, Size


def data_url(screenshot):
    kind = "png" if screenshot.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(screenshot).decode()}"


def as_openai(messages, screenshots):
    """Our messages as OpenAI's, each image's place filled."""
    urls = map(data_url, screenshots)
    return [{**message, "content": write_content(message["content"], urls)} for message in messages]


async def post(client, body, *, token=None, **headers):
    """One request of these bytes over the network; returns the status and what was answered."""
    headers = {"Authorization": f"Bearer {token or client.token}", **headers}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{client.url}/chat/completions", data=body) as got,
    ):
        return got.status, await got.text()


async def ask(client, messages, *, token=None, **more):
    status, answer = await post(client, json.dumps({"model": "policy", "messages": messages, **more}), token=token)
    return status, json.loads(answer)


async def reply_to(client, messages, **more):
    status, answer = await ask(client, messages, **more)
    assert status == 200, answer
    return answer["choices"][0]["message"]["content"]


class OwnLoop:
    """What `rollout.episode.play` does, from outside: it asks the endpoint, and strips each reply as programs do.

    Args:
        kept: with how many screenshots another history begins where one has `most`; None: none does.
    """

    def __init__(self, most=None, kept=None):
        self.most, self.kept = most, kept

    async def __call__(self, task, client, desktop):
        family = load_family("small")
        screenshots, replies, first = [desktop.observation.screenshot], [], 0
        while True:
            if self.most is not None and len(screenshots) - first > self.most:
                first = len(screenshots) - self.kept
            messages = family.messages(task.instruction, "English", replies, first)
            replies.append((await reply_to(client, as_openai(messages, screenshots[first:]), temperature=0.3)).strip())
            for action in family.read(replies[-1], Size(364, 252), desktop.screen).actions:
                observation = await desktop.step(action)
                if isinstance(action, (Finish, Fail)):
                    return
            screenshots.append(observation.screenshot)


own_loop = OwnLoop()
window_of_two = OwnLoop(2, 2)
segments_of_three = OwnLoop(3, 2)

CURRENT = []


async def current(task, client, desktop):
    """The program that a test plays by `play_by`."""
    return await CURRENT[-1](task, client, desktop)


def play_by(program, policy, engine, pool=None, agent=None, **lengths):
    """One episode through the agent loop, played by `program`; returns its rows."""
    from support.loop_harness import play, recipe

    agent = {"harness": "support.harness_agents:current", **(agent or {})}
    CURRENT.append(program)
    try:
        output = play(
            policy, engine, pool, recipe(agent, **{"prompt_length": 2048, "response_length": 4096, **lengths})
        )
    finally:
        CURRENT.pop()
    return output if isinstance(output, list) else [output]


def user(text, *screenshots):
    """A message of OpenAI's."""
    images = [{"type": "image_url", "image_url": {"url": data_url(screenshot)}} for screenshot in screenshots]
    return {"role": "user", "content": [*images, {"type": "text", "text": text}]}


def said(text):
    return {"role": "assistant", "content": text}
