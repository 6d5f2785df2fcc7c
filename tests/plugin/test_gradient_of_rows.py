"""In veRL's own loss the gradient of an episode is the sum over its replies, each in its own context."""

import pytest
import torch
from support.loop_harness import DONE, MISS, FakePool, ScriptedEngine, play, recipe
from support.made_pixels import made
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
from verl.workers.config import ActorConfig

from arpo_verl.plugin.model_inputs import ModelInputs

REPLIES = [f"Thought: {word}.\n{MISS}" for word in ("one", "two", "three", "four")] + [DONE]
ADVANTAGE = 1.5


@pytest.fixture(scope="module")
def model(model_path):
    from transformers import Qwen2_5_VLForConditionalGeneration

    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(model_path, dtype=torch.float64)
    return model.eval()


def log_probs_of(model, inputs, prompt_ids, response_ids, screenshots):
    """Of the response's tokens, (T,)."""
    ids = torch.tensor(prompt_ids + response_ids)
    multi_modal, positions = inputs.compute(screenshots, ids)
    multi_modal = made(multi_modal)
    logits = model(
        input_ids=ids[None],
        position_ids=positions[1:, None],
        pixel_values=multi_modal["pixel_values"].double(),
        image_grid_thw=multi_modal["image_grid_thw"],
    ).logits[0]
    behind = torch.arange(len(prompt_ids), len(ids))
    return logits[behind - 1].log_softmax(-1).gather(-1, ids[behind, None])[:, 0]


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def test_the_gradient_of_an_episode_is_the_sum_over_its_replies(policy, tokenizer, model):
    engine = ScriptedEngine(tokenizer, REPLIES)
    agent = {"max_steps": 8, "max_screenshots": 2, "context": "window"}
    rows = play(policy, engine, FakePool(), recipe(agent, prompt_length=2048, response_length=4096))
    assert len(rows) == 4
    inputs = ModelInputs(*policy, {})

    # As the trainer sees it: rows, padded, with one advantage, under token-mean.
    per_row = [
        log_probs_of(model, inputs, row.prompt_ids, row.response_ids, row.multi_modal_data["screenshots"])
        for row in rows
    ]
    masks = [torch.tensor(row.response_mask) for row in rows]
    log_prob, mask = (torch.nn.utils.rnn.pad_sequence(part, batch_first=True) for part in (per_row, masks))
    config = ActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio=0.2)
    loss, _ = compute_policy_loss_vanilla(
        log_prob.detach(), log_prob, ADVANTAGE * mask, mask, loss_agg_mode="token-mean", config=config
    )
    in_rows = gradients(model, loss)

    # By hand: each reply behind the very tokens and images that the engine was given for it.
    by_hand = {name: torch.zeros_like(gradient) for name, gradient in in_rows.items()}
    num_tokens = sum(len(token_ids) for token_ids, _ in engine.written)
    shots = [shot for row in rows for shot in row.screenshots]
    for number, (call, (token_ids, _)) in enumerate(zip(engine.calls, engine.written, strict=True)):
        shown = shots[number + 1 - len(call["images"]) : number + 1]
        written = log_probs_of(model, inputs, call["prompt_ids"], list(token_ids), shown)
        for name, gradient in gradients(model, -ADVANTAGE * written.sum() / num_tokens).items():
            by_hand[name] += gradient

    assert sum(mask.sum() for mask in masks) == num_tokens
    largest = max(gradient.abs().max() for gradient in in_rows.values())
    for name, gradient in in_rows.items():
        assert torch.allclose(gradient, by_hand[name], rtol=1e-6, atol=1e-9 * largest), name
