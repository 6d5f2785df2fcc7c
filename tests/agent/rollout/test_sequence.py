import pytest

from arpo_verl.agent.rollout.sequence import EpisodeSequence, Generated
from arpo_verl.errors import GenerationError


def test_replies_and_context_in_turn_with_a_mask_and_log_probs_on_replies_alone():
    sequence = EpisodeSequence([1, 2])
    sequence.add_reply([3, 4], [-0.5, -0.25])
    sequence.add_context([5, 6, 7], 1)
    sequence.add_reply([8], [-1.0])
    assert sequence.prompt_ids == [1, 2]
    assert sequence.token_ids == [1, 2, 3, 4, 5, 6, 7, 8]
    assert sequence.response_ids == [3, 4, 5, 6, 7, 8]
    assert sequence.response_mask == [1, 1, 0, 0, 0, 1]
    assert sequence.response_log_probs == [-0.5, -0.25, 0.0, 0.0, 0.0, -1.0]
    assert sequence.replies == [Generated((3, 4), (-0.5, -0.25)), Generated((8,), (-1.0,))]


@pytest.mark.parametrize(
    ("replies", "got"),
    [
        ([([2], [-0.5]), ([3, 4], None)], "each of the 2 tokens of every reply, or none at all, got none"),
        ([([2], None), ([3, 4], [-0.5, -0.5])], "each of the 2 tokens of every reply, or none at all, got 2"),
        ([([2, 3], [-0.5])], "each of the 2 tokens of every reply, or none at all, got 1"),
    ],
)
def test_log_probs_must_be_there_for_every_token_or_for_none(replies, got):
    sequence = EpisodeSequence([1])
    with pytest.raises(GenerationError, match=got):
        for tokens, log_probs in replies:
            sequence.add_reply(tokens, log_probs)
    # What was refused is not half there.
    assert len(sequence.response_ids) == len(sequence.response_mask) == len(replies) - 1
