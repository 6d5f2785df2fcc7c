"""The generator's log-probabilities are those of plain Transformers, however requests are batched and reused."""

from __future__ import annotations

import pytest
import torch
from support.generation_harness import request, run

TOLERANCE = 1e-4


def assert_honest(plain, one, result) -> None:
    torch.testing.assert_close(
        torch.tensor(result.log_probs), plain.log_probs(one, result), rtol=0, atol=TOLERANCE, check_dtype=False
    )


def test_the_plain_model_sees_the_screenshot_and_the_distant_text(plain, screenshots):
    """Else the comparisons below would show nothing."""
    logits = [plain.logits(plain.prompt("Open it.", [image]), [image])[-1] for image in screenshots[:2]]
    assert (logits[0] - logits[1]).abs().max() > 0.1
    texts = [plain.logits(plain.prompt(text))[-1] for text in ("Open it.", "Shut it.")]
    assert (texts[0] - texts[1]).abs().max() > 0.1


def test_batch_of_different_lengths_and_images(make_generator, plain, screenshots):
    requests = [
        request(
            str(i),
            plain.prompt("Task. " * (5 * i + 1), images),
            images,
            max_tokens=3 + 4 * i,
            temperature=0.6 + 0.2 * i,
        )
        for i, images in enumerate([[screenshots[0]], [], screenshots[1:3], [screenshots[3]]])
    ]
    results = run(make_generator(), *requests)
    for one in requests:
        assert len(results[one.request_id].token_ids) == one.sampling.max_tokens
        assert_honest(plain, one, results[one.request_id])


def test_request_joins_a_running_batch_at_its_next_token(make_generator, plain, screenshots):
    generator = make_generator()
    early = request("early", plain.prompt("First.", screenshots[:1]), screenshots[:1], max_tokens=10)
    late = request("late", plain.prompt("Second, and longer.", screenshots[1:2]), screenshots[1:2], max_tokens=3)
    generator.add(early)
    results = {}
    for _ in range(4):
        generator.decode()
    generator.add(late)
    for _ in range(3):
        results.update({r.request_id: r for r in generator.decode()})
    assert "late" in results
    results.update(run(generator))
    for one in (early, late):
        assert_honest(plain, one, results[one.request_id])


@pytest.mark.parametrize("prefix_reuse", [True, False])
def test_three_turns_of_several_episodes(make_generator, plain, screenshots, prefix_reuse):
    generator = make_generator(prefix_reuse=prefix_reuse)
    requests = [
        request(str(i), plain.prompt(f"Task {i}.", screenshots[i : i + 1]), screenshots[i : i + 1], max_tokens=4 + i)
        for i in range(3)
    ]
    previous: list = []
    for _ in range(3):
        results = run(generator, *requests)
        following = []
        for i, one in enumerate(requests):
            result = results[one.request_id]
            assert_honest(plain, one, result)
            if previous and prefix_reuse:
                # All of the last turn but the reply's last token, which no forward pass took in.
                assert result.num_cached_tokens >= len(previous[i].prompt_ids) + previous[i].sampling.max_tokens - 1
            if not prefix_reuse:
                assert result.num_cached_tokens == 0
            image = screenshots[(i + len(one.images)) % 4]
            prompt = plain.next_prompt(one, result, image)
            following.append(request(one.request_id, prompt, [*one.images, image], max_tokens=4 + i))
        previous, requests = requests, following


def test_rollouts_of_one_task_compute_their_common_prompt_once(make_generator, plain, screenshots):
    generator = make_generator()
    prompt = plain.prompt("Same task.", screenshots[:1])
    requests = [request(str(i), prompt, screenshots[:1]) for i in range(4)]
    results = run(generator, *requests)
    assert sorted(r.num_cached_tokens for r in results.values()) == [0] + [len(prompt) - 1] * 3
    assert len({r.token_ids for r in results.values()}) == 4, "each rollout draws its own random numbers"
    for one in requests:
        assert_honest(plain, one, results[one.request_id])


def test_same_text_with_another_screenshot_reuses_only_what_comes_before_it(make_generator, plain, screenshots):
    generator = make_generator()
    prompt = plain.prompt("Look.", screenshots[:1])
    run(generator, request("a", prompt, screenshots[:1]))
    other = request("b", prompt, screenshots[1:2])
    result = run(generator, other)["b"]
    assert result.num_cached_tokens <= prompt.index(plain.processor.image_token_id)
    assert_honest(plain, other, result)


def test_prompt_that_leaves_the_cached_sequence_within_an_image_reuses_part_of_it(make_generator, plain, screenshots):
    """A cached prefix may end between two visual tokens: the rest of the features is still put in place."""
    generator = make_generator()
    one = request("a", plain.prompt("Look.", screenshots[:1]), screenshots[:1])
    run(generator, one)
    (cache,) = generator._prefixes.caches()
    cut = one.prompt_ids.index(plain.processor.image_token_id) + 40
    cache.content, cache.length = cache.content[:cut], cut
    again = request("b", one.prompt_ids, one.images)
    result = run(generator, again)["b"]
    assert result.num_cached_tokens == cut
    assert_honest(plain, again, result)


def test_more_requests_than_places_wait_their_turn(make_generator, plain):
    generator = make_generator(max_batch_size=2, max_batch_tokens=64)
    requests = [request(str(i), plain.prompt(f"Task {i}."), max_tokens=2 + i) for i in range(5)]
    results = run(generator, *requests)
    for one in requests:
        assert_honest(plain, one, results[one.request_id])


def test_caches_of_finished_requests_stay_within_the_bound(make_generator, plain):
    generator = make_generator(kv_cache_tokens=150)
    for i in range(4):
        run(generator, request(str(i), plain.prompt(f"{i} " * 20)))
        assert generator._prefixes.num_tokens <= 150


def test_reply_longer_than_its_room_moves_the_cache_and_nothing_else(make_generator, plain):
    one = request("a", plain.prompt("Talk."), max_tokens=200)
    assert_honest(plain, one, run(make_generator(), one)["a"])


def test_temperature_zero_is_the_greedy_reply_of_transformers(make_generator, plain, screenshots):
    prompt = plain.prompt("What now?", screenshots[:1])
    banned = [plain.processor.image_token_id, plain.processor.video_token_id]
    one = request("a", prompt, screenshots[:1], temperature=0, max_tokens=20)
    result = run(make_generator(), one)["a"]
    input_ids = torch.tensor([prompt])
    greedy = plain.model.generate(
        input_ids=input_ids,
        attention_mask=torch.ones_like(input_ids),
        mm_token_type_ids=(input_ids == plain.processor.image_token_id).long(),
        **plain.inputs(screenshots[:1]),
        do_sample=False,
        max_new_tokens=20,
        min_new_tokens=20,
        suppress_tokens=[*banned, *{plain.processor.tokenizer.eos_token_id, plain.processor.tokenizer.pad_token_id}],
    )[0, len(prompt) :].tolist()
    ends = {plain.processor.tokenizer.eos_token_id, plain.processor.tokenizer.pad_token_id}
    assert not ends & set(result.token_ids), "the model's greedy reply holds an end token: choose another prompt"
    assert list(result.token_ids) == greedy
    assert_honest(plain, one, result)


def test_reply_ends_with_the_end_token(make_generator, plain, packed_model):
    eos = plain.processor.tokenizer.eos_token_id
    with torch.no_grad():
        packed_model.lm_head.weight.data = packed_model.lm_head.weight.data.clone()
        packed_model.lm_head.register_forward_hook(lambda _m, _i, logits: logits.index_fill(-1, torch.tensor(eos), 1e4))
    result = run(make_generator(), request("a", plain.prompt("Stop."), ignore_eos=False))["a"]
    assert result.token_ids == (eos,) and result.finish_reason == "stop"
    result = run(make_generator(), request("a", plain.prompt("Stop."), stop_token_ids=(eos,)))["a"]
    assert result.finish_reason == "stop"
    result = run(make_generator(), request("a", plain.prompt("Stop."), max_tokens=3))["a"]
    assert result.token_ids == (eos,) * 3 and result.finish_reason == "length"


def test_same_seed_gives_the_same_replies_in_whatever_order_requests_come(make_generator, plain):
    requests = [request(str(i), plain.prompt(f"Task {i // 2}.")) for i in range(6)]
    replies = run(make_generator(seed=3), *requests)
    one_by_one = make_generator(seed=3, prefix_reuse=False)
    again = [run(one_by_one, one)[one.request_id] for one in reversed(requests)]
    assert {r.token_ids for r in again} == {r.token_ids for r in replies.values()}
    assert {r.token_ids for r in run(make_generator(seed=4), *requests).values()} != {r.token_ids for r in again}


def test_abort_returns_what_is_there(make_generator, plain):
    generator = make_generator(max_batch_size=2, prefix_reuse=False)
    for name in "abc":
        generator.add(request(name, plain.prompt("Task."), max_tokens=20))
    for _ in range(3):
        generator.decode()
    (aborted,) = generator.abort({"a"})
    assert aborted.request_id == "a" and aborted.finish_reason == "abort" and len(aborted.token_ids) == 3
    rest = {r.request_id: r for r in generator.abort()}
    assert (len(rest["b"].token_ids), len(rest["c"].token_ids)) == (3, 0)
    assert generator.num_unfinished == 0 and generator.decode() == []


def test_new_weights_drop_keys_values_and_image_features(make_generator, plain, packed_model, screenshots):
    generator = make_generator()
    one = request("a", plain.prompt("Look.", screenshots[:1]), screenshots[:1], seed=1)
    before = run(generator, one)["a"]
    with torch.no_grad():
        for parameter in packed_model.model.visual.parameters():
            parameter.mul_(1.5)
    generator.weights_changed()
    after = run(generator, one)["a"]
    assert after.num_cached_tokens == 0
    assert max(abs(x - y) for x, y in zip(before.log_probs, after.log_probs, strict=True)) > 1e-3


def test_new_weights_under_running_requests_are_refused(make_generator, plain):
    generator = make_generator()
    generator.add(request("a", plain.prompt("Task.")))
    generator.decode()
    with pytest.raises(RuntimeError, match="abort them first"):
        generator.weights_changed()


def test_images_that_do_not_fit_the_prompt_are_named(make_generator, plain, screenshots):
    generator = make_generator()
    with pytest.raises(ValueError, match="2 images make 234 visual tokens, but it has 117"):
        generator.add(request("a", plain.prompt("Look.", screenshots[:1]), screenshots[:2]))
    with pytest.raises(ValueError, match="video"):
        generator.add(request("b", [plain.processor.video_token_id]))
    assert generator.num_unfinished == 0
