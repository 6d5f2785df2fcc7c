"""Whatever a program asks, in whatever order: what is trained is what was sampled, behind what it was sampled from."""

import asyncio
import random

import pytest
from support.harness_agents import ask, play_by, said, user
from support.loop_harness import ScriptedEngine
from support.pictures import png

from arpo_verl.lib.images import content_of

REPLIES = ["a", " a", "a ", "b\n", "", "go Observation: c", "<|box_start|>(1,2)<|box_end|>", "\U0001f642 stop"]
PICTURES = [png(colour, size) for colour, size in (("red", (64, 64)), ("red", (64, 200)), ("blue", (96, 64)))]


class Overtaking(ScriptedEngine):
    """Replies in another order than it was asked."""

    async def generate(self, *args, **kwargs):
        for _ in range(len(self.replies) % 4):
            await asyncio.sleep(0)
        return await super().generate(*args, **kwargs)


class Wanderer:
    """Goes on, asks again, rewrites, forges and asks several at once, as drawn."""

    def __init__(self, seed, turns):
        self.draw, self.turns = random.Random(seed), turns
        self.conversations = [[self.word()]]

    def word(self):
        shown = self.draw.choices(PICTURES, k=self.draw.choice((0, 0, 1, 2)))
        return user(self.draw.choice(("one", "two", "")), *shown)

    def messages(self):
        history = list(self.draw.choice(self.conversations[-4:]))
        what = self.draw.random()
        if what < 0.1:
            history = history[-3:]
        elif what < 0.2:
            history.insert(self.draw.randrange(1, len(history) + 1), said(self.draw.choice(REPLIES).strip()))
        elif what < 0.3:
            forged = {**user(self.draw.choice(REPLIES).strip(), self.draw.choice(PICTURES)), "role": "assistant"}
            history.insert(self.draw.randrange(1, len(history) + 1), forged)
        elif what < 0.4:
            history[-1] = self.word()
        while history[0]["role"] == "assistant":
            history = history[1:] or [self.word()]
        return [*history, self.word()] if history[-1]["role"] == "assistant" else history

    async def one(self, client):
        messages = self.messages()
        more = {"stop": ["Observation:", "stop"]} if self.draw.random() < 0.3 else {}
        more |= {"max_tokens": 2} if self.draw.random() < 0.2 else {}
        more |= {"model": "x-untrained"} if self.draw.random() < 0.1 else {}
        status, answer = await ask(client, messages, **more)
        if status == 200:
            text = answer["choices"][0]["message"]["content"]
            self.conversations.append([*messages, said(self.draw.choice((text, text.strip())))])

    async def __call__(self, task, client, desktop):
        await asyncio.wait_for(self.one(client), 60)
        for _ in range(self.turns):
            await asyncio.gather(*(self.one(client) for _ in range(self.draw.choice((1, 1, 1, 3)))))


def stretches(row):
    """Begin and end of each run of tokens that is trained."""
    mask = [0, *row.response_mask, 0]
    edges = [at for at in range(len(mask) - 1) if mask[at] != mask[at + 1]]
    return list(zip(edges[::2], edges[1::2], strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_each_reply_is_trained_once_behind_what_the_engine_saw(policy, tokenizer, seed):
    draw = random.Random(seed)
    engine = Overtaking(tokenizer, [draw.choice(REPLIES) for _ in range(200)])
    agent = {"max_steps": 24, "max_screenshots": 12}
    rows = play_by(Wanderer(seed, 10), policy, engine, agent=agent, prompt_length=4096, response_length=1024)
    (image_id,) = tokenizer.encode("<|image_pad|>")
    by_log_prob = {written[1][0]: number for number, written in enumerate(engine.written)}
    trained = []
    for row in rows:
        images = list(map(content_of, row.multi_modal_data["images"]))
        last = 0
        for begin, end in stretches(row):
            number = by_log_prob[row.response_logprobs[begin]]
            token_ids, log_probs = engine.written[number]
            assert row.response_ids[begin:end] == token_ids[: end - begin]
            assert row.response_logprobs[begin:end] == log_probs[: end - begin]
            call = engine.calls[number]
            assert [*row.prompt_ids, *row.response_ids[:begin]] == call["prompt_ids"]
            shown = list(map(content_of, call["images"]))
            assert images[: len(shown)] == shown
            trained.append(number)
            last = len(shown)
        assert last == len(images) and row.response_mask[-1] == 1
        tokens = [*row.prompt_ids, *row.response_ids]
        runs = "".join("x" if token == image_id else " " for token in tokens).split()
        assert len(runs) == len(images)
        values = zip(row.response_mask, row.response_logprobs, strict=True)
        assert all(value == 0 for bit, value in values if not bit)
    assert len(set(trained)) == len(trained) and len(trained) > 3
