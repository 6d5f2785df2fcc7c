"""Tokens come from the masked and truncated distribution, log-probabilities from the full one."""

from __future__ import annotations

import math

import pytest
import torch

from arpo_verl.engines.cpu.generation.sampling import sample
from arpo_verl.engines.cpu.generation.types import SamplingParams

# Probabilities 0.5, 0.25, 0.15, 0.1.
LOGITS = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()
NONE_BANNED = torch.zeros(4, dtype=torch.bool)


def draw(uniforms: list[float], banned: torch.Tensor = NONE_BANNED, **params) -> tuple[list[int], list[float]]:
    rows = len(uniforms)
    return sample(LOGITS.expand(rows, -1), [SamplingParams(max_tokens=1, **params)] * rows, uniforms, banned)


def test_uniform_draws_fall_into_cumulated_probabilities():
    tokens, log_probs = draw([0.0, 0.49, 0.51, 0.74, 0.76, 0.89, 0.91, 0.999999])
    assert tokens == [0, 0, 1, 1, 2, 2, 3, 3]
    assert log_probs == pytest.approx([math.log(p) for p in (0.5, 0.5, 0.25, 0.25, 0.15, 0.15, 0.1, 0.1)])


def test_banned_token_is_never_drawn_and_the_log_prob_stays_that_of_the_full_vocabulary():
    banned = torch.tensor([True, False, False, False])
    # Without token 0 the rest are 0.5, 0.3 and 0.2.
    tokens, log_probs = draw([0.0, 0.49, 0.51, 0.79, 0.81, 1.0 - 1e-17], banned)
    assert tokens == [1, 1, 2, 2, 3, 3]
    assert log_probs[0] == pytest.approx(math.log(0.25))


def test_last_tokens_banned_are_not_reached_by_the_largest_draw():
    banned = torch.tensor([False, False, True, True])
    assert draw([math.nextafter(1.0, 0.0)], banned)[0] == [1]


def test_banned_token_is_not_the_greedy_one():
    assert draw([0.0], torch.tensor([True, False, False, False]), temperature=0)[0] == [1]


def test_greedy_log_prob_is_at_temperature_one():
    assert draw([0.9], temperature=0) == ([0], [pytest.approx(math.log(0.5))])


def test_temperature_sharpens():
    # Squared and normalised: 0.25, 0.0625, 0.0225, 0.01 over 0.345.
    tokens, log_probs = draw([0.72, 0.73], temperature=0.5)
    assert tokens == [0, 1]
    assert log_probs == pytest.approx([math.log(0.25 / 0.345), math.log(0.0625 / 0.345)])


def test_top_k_keeps_the_likeliest():
    assert draw([0.0, 0.66, 0.67, 0.9999], top_k=2)[0] == [0, 0, 1, 1]
    assert draw([0.9999], top_k=0)[0] == draw([0.9999], top_k=-1)[0] == draw([0.9999], top_k=99)[0] == [3]


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    # 0.5 + 0.25 reaches 0.7: two tokens stay, 2/3 and 1/3.
    assert draw([0.66, 0.67, 0.9999], top_p=0.7)[0] == [0, 1, 1]
    assert draw([0.9999], top_p=0.01)[0] == [0]


def test_rows_keep_their_own_parameters():
    params = [SamplingParams(max_tokens=1, temperature=0), SamplingParams(max_tokens=1), SamplingParams(1, top_k=1)]
    tokens, _ = sample(LOGITS.expand(3, -1), params, [0.99, 0.99, 0.99], NONE_BANNED)
    assert tokens == [0, 3, 0]
