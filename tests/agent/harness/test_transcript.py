"""Rows of the replies of an episode, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo_verl.agent.harness.transcript import TokenReply, chains, lay_out, sequences, trained
from arpo_verl.agent.rollout.conversation import TokenLimits
from arpo_verl.agent.rollout.sequence import Generated
from arpo_verl.errors import GenerationError

LIMITS = TokenLimits(prompt=10, response=8)


def reply(request, prompt, written, earlier=None, images=(), log_probs=True):
    values = tuple(-token / 100 for token in written) if log_probs else None
    return TokenReply(request, prompt, images, Generated(tuple(written), values), earlier)


def test_a_reply_that_goes_on_from_another_extends_its_row():
    first = reply(b"1", [1, 2], [3], images=(b"a",))
    second = reply(b"2", [1, 2, 3, 4], [5, 6], first, images=(b"a", b"b"))
    rows = chains(trained([first, second]), LIMITS)
    (row,) = sequences(rows, [range(2)])
    assert (row.prompt_ids, row.response_ids, row.response_mask) == ([1, 2], [3, 4, 5, 6], [1, 0, 1, 1])
    assert row.response_log_probs == [-0.03, 0.0, -0.05, -0.06] and row.screenshots == range(2)


def test_a_reply_that_was_asked_for_again_is_trained_only_where_the_program_went_on_with_it():
    first, again = reply(b"1", [1], [2]), reply(b"1", [1], [3])
    assert trained([first, again]) == [again]
    behind = reply(b"2", [1, 2, 7], [4], first)
    assert trained([first, again, behind]) == [first, behind]
    other = reply(b"3", [1, 3, 8], [4], again)
    assert trained([first, again, behind, other]) == [first, again, behind, other]


def test_a_row_that_is_full_goes_on_in_another():
    first = reply(b"1", [1], [2] * 4)
    second = reply(b"2", [1, *[2] * 4, 3], [4] * 4, first)
    assert chains([first, second], LIMITS) == [[first], [second]]
    assert chains([first, second], TokenLimits(10, 9)) == [[first, second]]
    assert chains([first, second], TokenLimits(10, 9, total=9)) == [[first], [second]]


def test_rows_with_log_probs_and_rows_without_are_no_episode():
    rows = [[reply(b"1", [1], [2])], [reply(b"2", [1], [2], log_probs=False)]]
    with pytest.raises(GenerationError, match="of every row's replies, or of none"):
        sequences(rows, [range(0), range(0)])


@pytest.mark.parametrize(
    ("shown", "order", "stretches"),
    [
        (["ab", "bc", "cd"], "abcd", [range(2), range(1, 3), range(2, 4)]),  # a window
        (["ab", "b", "bc"], "abc", [range(2), range(1, 2), range(1, 3)]),  # a grounder between two turns
        (["abc", "a"], "abca", [range(3), range(3, 4)]),  # from farther back: once more
    ],
)
def test_images_are_laid_out_once_where_rows_go_on(shown, order, stretches):
    assert lay_out(shown) == (list(order), stretches)


@given(st.lists(st.text("ab", max_size=4), max_size=6))
def test_each_row_shows_its_images_in_a_stretch_that_a_store_takes(shown):
    order, stretches = lay_out(shown)
    seen = 0
    for images, stretch in zip(shown, stretches, strict=True):
        assert [order[number] for number in stretch] == list(images)
        assert stretch.start <= seen <= stretch.stop
        seen = stretch.stop
    assert seen == len(order)
