"""Imitation: the same tokens as in the agent loop, replies alone in the loss, stopped at the target, repeatable."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from policies.demonstrations import collect_demonstrations, save_demonstrations
from policies.sequences import SequenceBuilder, reply_log_probs
from policies.warm_start import WarmStartConfig, estimate_success, imitate
from transformers import AutoModelForImageTextToText

from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.fake import FakeEnvironment
from arpo_verl.errors import ReplayError
from arpo_verl.records.recorded import read_episodes
from arpo_verl.rollout.blocking import play_blocking
from arpo_verl.rollout.chat import ChatTokenizer
from arpo_verl.rollout.config import GuiAgentConfig
from arpo_verl.rollout.conversation import Generated, TokenConversation, TokenLimits

pytestmark = pytest.mark.study

AGENT = GuiAgentConfig(model_family="small")


@pytest.fixture(scope="module")
def builder(small_processor):
    return SequenceBuilder(small_processor, AGENT)


@pytest.fixture
def model(small_policy_dir):
    return AutoModelForImageTextToText.from_pretrained(small_policy_dir, dtype=torch.float32)


@pytest.fixture
def demonstrations(tasks, expert, builder, tmp_path):
    environment = EnvironmentConfig(provider="fake", num_desktops=1)
    episodes = collect_demonstrations(tasks, expert, environment, builder.image_size)
    save_demonstrations(tmp_path / "demonstrations", episodes)
    return sorted(read_episodes(tmp_path / "demonstrations"), key=lambda episode: episode.task_id, reverse=True)


@pytest.fixture
def sequences(demonstrations, builder):
    return [builder.build(demonstration) for demonstration in demonstrations]


@pytest.fixture
def long_demonstration(demonstrations):
    """Three clicks before the end."""
    click, done = demonstrations[0].replies
    before, after = demonstrations[0].screenshots
    return replace(demonstrations[0], replies=(click,) * 3 + (done,), screenshots=(before,) * 3 + (after,))


def test_a_row_is_that_of_the_agent_loops_episode(small_processor, builder, tasks, long_demonstration):
    """The same replies played through the loop's own episode give the same ids, masks and images."""
    tokenizer, replies = small_processor.tokenizer, list(long_demonstration.replies)

    async def generate(token_ids, images, max_tokens):
        return Generated((*tokenizer.encode(replies.pop(0), add_special_tokens=False), tokenizer.eos_token_id), None)

    chat = ChatTokenizer.from_processor(tokenizer, small_processor, builder._chat.builder)
    conversation = TokenConversation(generate, chat, AGENT, TokenLimits(512, 2048))
    episode = play_blocking(tasks[0], FakeEnvironment(), conversation, AGENT)
    keys = [builder.images.add(image) for image in episode.images]
    sequence, (row,) = builder.build(replace(long_demonstration, screenshots=tuple(episode.screenshots))), episode.rows
    assert sequence.input_ids.tolist() == row.token_ids
    assert sequence.reply_mask.tolist() == [False] * len(row.prompt_ids) + [bool(m) for m in row.response_mask]
    assert sequence.images == tuple(keys[number] for number in row.screenshots)


def test_a_demonstration_without_a_screen_before_each_reply_is_refused(demonstrations, builder):
    with pytest.raises(ReplayError, match="has 1 screenshots and 2 replies"):
        builder.build(replace(demonstrations[0], screenshots=demonstrations[0].screenshots[:1]))


def test_the_mask_covers_replies_and_their_end_alone(small_processor, demonstrations, sequences):
    written = small_processor.tokenizer.decode(sequences[0].input_ids[sequences[0].reply_mask])
    assert written == "<|im_end|>".join([*demonstrations[0].replies, ""])


def test_log_probs_equal_the_models_own_forward_pass(model, small_processor, builder, sequences):
    """Shared screens, padding and selected positions change nothing: compare with a plain call, one row at a time."""
    log_probs, rows = reply_log_probs(model.eval(), builder.images, sequences)
    for row, sequence in enumerate(sequences):
        ids = sequence.input_ids[None]
        outputs = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=(ids == small_processor.image_token_id).int(),
            pixel_values=builder.images.pixel_values(sequence.images),
            image_grid_thw=builder.images.grids(sequence.images),
        )
        plain = outputs.logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        torch.testing.assert_close(log_probs[rows == row], plain[sequence.reply_mask[1:]], atol=1e-4, rtol=1e-4)


@pytest.mark.release
def test_imitation_reaches_its_target_and_is_repeatable(small_policy_dir, builder, sequences):
    config = WarmStartConfig(target_success=0.3, batch_size=2, warmup_updates=5, learning_rate=5e-3, seed=1)
    weights, results = [], []
    for _ in range(2):
        model = AutoModelForImageTextToText.from_pretrained(small_policy_dir, dtype=torch.float32)
        before = estimate_success(model, builder.images, sequences)
        results.append(imitate(model, builder.images, sequences, config))
        weights.append(model.state_dict())
    assert max(before.values()) < 1e-6
    assert results[0] == results[1] and results[0].mean_success >= 0.3
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.release
def test_the_floor_brings_up_a_task_that_lags_behind(small_policy_dir, builder, sequences):
    """`red` is shown thrice as often as `crimson`, and the mean is reached by it."""
    success = {}
    for floor in (0.0, 0.25):
        model = AutoModelForImageTextToText.from_pretrained(small_policy_dir, dtype=torch.float32)
        config = WarmStartConfig(0.3, floor, batch_size=2, warmup_updates=5, learning_rate=5e-3)
        result = imitate(model, builder.images, [sequences[0]] * 3 + [sequences[1]], config)
        success[floor] = result.success_by_task
    assert success[0.0]["crimson"] < 0.25 <= min(success[0.25].values())


def test_imitation_that_ends_below_its_target_says_so(model, builder, sequences, caplog):
    result = imitate(model, builder.images, sequences, WarmStartConfig(max_epochs=1))
    assert result.mean_success == 0
    assert "below target_success=0.36" in caplog.text


@pytest.mark.release
def test_estimate_is_the_product_of_the_reply_tokens_probabilities(model, builder, long_demonstration, demonstrations):
    sequences = [builder.build(long_demonstration), builder.build(demonstrations[1])]
    imitate(model, builder.images, sequences, WarmStartConfig(learning_rate=5e-3, warmup_updates=5, max_epochs=40))
    of_each = {one.task_id: reply_log_probs(model, builder.images, [one])[0].sum().item() for one in sequences}
    success = estimate_success(model, builder.images, sequences, batch_size=1)
    assert {task: math.log(value) for task, value in success.items()} == pytest.approx(of_each, rel=1e-3)
