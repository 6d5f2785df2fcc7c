"""The lessons' targets: what visual tokens must say, and where which head must look."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from arpo_verl.policy.seeing import captures as taken
from arpo_verl.policy.seeing.acting import ActingLesson, ideal_tokens
from arpo_verl.policy.seeing.beginnings import guarded, word_ids
from arpo_verl.policy.seeing.examples import LEXICON, examples_of
from arpo_verl.policy.seeing.layout import COLUMNS, HEAD, SAID, SCREEN, WORD, X, place_code, spread_codes
from arpo_verl.policy.seeing.reading import ReadingLesson, targets_of
from arpo_verl.policy.seeing.screens import Screen, Text, cells_of, draw_sheet, moved
from arpo_verl.policy.seeing.vision import encode, patches_of
from arpo_verl.tasks.families.kinds import Draw

CODES = spread_codes(len(LEXICON), WORD.stop - WORD.start)


def of_family(family, split="training"):
    return next(e for n in range(8) for e in examples_of(split, n) if e.family == family)


def test_words_are_far_from_one_another_and_near_places_alike():
    nearest = (CODES @ CODES.T - torch.eye(len(LEXICON))).abs().max()
    assert nearest < 0.2
    alike = place_code(torch.tensor([100.0, 103.0, 140.0])) @ place_code(torch.tensor(100.0))
    assert alike[0] == pytest.approx(1, abs=1e-5)
    assert alike[1] > 0.95 > 0.5 > alike[2]


def test_the_cells_of_a_text_are_those_in_its_middles_row_that_hold_enough_of_it():
    assert cells_of(Text("Apple", (50, 30, 100, 44))) == [COLUMNS + 2, COLUMNS + 3]
    assert cells_of(Text("Apple", (27, 5, 57, 19))) == [1]


def test_a_click_on_a_title_goes_to_the_button_that_closes_its_window():
    example = of_family("close")
    assert example.clicked.is_title
    assert example.clicked.target[0] > example.clicked.box[2]
    assert example.reply.startswith(f"Thought: Close {example.clicked.text}.\nAction: click(")


def test_a_moved_example_is_clicked_where_its_text_moved_to_or_is_none():
    example = of_family("press")
    x, y = example.clicked.target
    moved_by = example.moved(-1, 2)
    assert moved_by.clicked.target == (x - 1, y + 2)
    assert f"({x - 1},{y + 2})" in moved_by.reply
    assert example.moved(SCREEN.width, 0) is None


def test_what_is_left_of_a_texts_box_tells_the_reading_targets():
    text = Text("Apple", (50, 30, 100, 44), (55.0, 65.0, 75.0, 85.0, 95.0))
    targets = targets_of(Screen(np.zeros((336, 448, 3), np.uint8), (text,)), LEXICON)
    assert targets.words[COLUMNS + 2] == targets.words[COLUMNS + 3] == LEXICON.index("Apple")
    assert targets.words[COLUMNS + 1] == -2  # it touches the cell at its left
    assert (targets.words >= 0).sum() == 2
    assert targets.offsets[COLUMNS + 2].tolist() == [75 - 70, 37 - 42]
    assert (targets.letters < 52).sum() == 5


def test_tokens_that_say_the_targets_have_the_least_reading_loss():
    screen = draw_sheet(LEXICON, random.Random(0))
    lesson = ReadingLesson(SimpleNamespace(config=SimpleNamespace(hidden_size=8)), LEXICON, CODES)
    targets = targets_of(screen, LEXICON)
    ideal = ideal_tokens(screen.texts, LEXICON, CODES)
    loss, right = lesson.of_tokens(ideal, targets)
    wrong, missed = lesson.of_tokens(ideal.roll(1, 0), targets)
    assert right.float().mean() > 0.9 > 0.5 > missed.float().mean()
    assert loss < wrong


def test_a_mixture_shows_whole_windows_and_names_only_texts_that_are_seen():
    rng = random.Random(3)
    screens = [Screen(np.zeros((336, 448, 3), np.uint8), e.texts) for n in range(6) for e in examples_of("training", n)]
    mixed = taken.mixture([s for s in screens if s.texts], rng)
    assert mixed.pixels.shape == (336, 448, 3)
    assert all(moved(text, 0, 0) is not None for text in mixed.texts)


def test_a_picture_of_a_task_that_is_drawn_otherwise_by_now_is_no_capture(tmp_path, monkeypatch):
    for kind in ("training", "reading"):
        Image.new("RGB", SCREEN).save(taken._file(tmp_path, kind, 0, 0))
    assert len(taken.load_captures(tmp_path, 1, 1)) == 2
    monkeypatch.setattr(Draw, "whole", lambda draw, least, most: most)
    assert taken.load_captures(tmp_path, 1, 1) == []


@pytest.fixture(scope="module")
def schooling(tmp_path_factory):
    pytest.importorskip("verl")
    from arpo_verl.policy.seeing.training import LessonPlan, Schooling

    return Schooling(tmp_path_factory.mktemp("lessons"), LessonPlan())


def test_the_tower_of_many_screens_is_the_stock_one(schooling):
    sheets = [draw_sheet(LEXICON, random.Random(n)) for n in range(2)]
    patches, visual = patches_of([sheet.pixels for sheet in sheets]), schooling.model.model.visual
    with torch.no_grad():
        stock = visual(patches.flatten(0, 1), torch.tensor([[1, 24, 32]] * 2)).pooler_output
        tokens, early, hidden = encode(visual, patches, 1)
    torch.testing.assert_close(tokens.flatten(0, 1), stock, atol=1e-4, rtol=1e-4)
    assert early.shape == (2, 768, 96)
    assert hidden.shape == (2, 192, 384)


def test_heads_must_look_where_the_words_stand(schooling):
    row = schooling.rows.row(of_family("two"))
    texts = schooling.rows.tokenizer.convert_ids_to_tokens(row.input_ids.tolist())
    by_head = {(look.layer, look.head): look for look in row.looks if look.query >= row.reply_start - 1}
    copied = by_head[2, 0]
    assert texts[copied.keys[0]] == texts[copied.query + 1] == f" {row.example.named}"
    assert copied.keys[0] < row.visual_start < copied.query
    for head, mark in ((0, "("), (1, ",")):
        looked = next(k for k in row.looks if k[:2] == (3, head) and texts[k.query] == mark)
        assert set(looked.keys) == {row.visual_start + cell for cell in cells_of(row.example.clicked)}


def test_positions_are_the_stock_ones(schooling):
    row = schooling.rows.row(of_family("press"))
    from arpo_verl.plugin.chat import load_processor

    is_image = (row.input_ids == schooling.rows.image).int()[None]
    stock, _ = load_processor(schooling.folder / "beginning").get_rope_index(
        input_ids=row.input_ids[None], mm_token_type_ids=is_image, image_grid_thw=torch.tensor([[1, 24, 32]])
    )
    assert torch.equal(stock[:, 0], row.position_ids)


def test_the_first_weights_point_before_any_lesson(schooling):
    examples = [e for n in range(6) for e in examples_of("held_out_words", n) if e.clicked]
    rows = [schooling.rows.row(e) for e in examples]
    with torch.no_grad():
        score = schooling.acting.loss(rows, [ideal_tokens(e.texts, LEXICON, CODES) for e in examples])[2]
    assert sum(miss <= 8 for miss in score.misses) > 0.7 * len(score.misses)


def test_the_loss_of_looks_is_of_the_head_that_it_names(schooling):
    example = of_family("press")
    row, tokens = schooling.rows.row(example), ideal_tokens(example.texts, LEXICON, CODES)
    lesson = ActingLesson(schooling.model, schooling.rows, [])
    only = [look for look in row.looks if look[:2] == (3, 0)]
    import dataclasses

    loss = lesson.loss([dataclasses.replace(row, looks=tuple(only))], [tokens])[1]["looks"]
    projection = schooling.model.model.language_model.layers[3].self_attn.q_proj
    for head, changes in ((1, False), (0, True)):
        part = slice(head * HEAD, (head + 1) * HEAD)
        with torch.no_grad():
            kept = projection.weight[part].clone(), projection.bias[part].clone()
            projection.weight[part] = projection.bias[part] = 0
            other = lesson.loss([dataclasses.replace(row, looks=tuple(only))], [tokens])[1]["looks"]
            projection.weight[part], projection.bias[part] = kept
        assert (abs(other - loss) > 1e-3) == changes


def test_turned_codes_change_nothing_where_words_are_only_passed_on(schooling):
    example = of_family("press")
    row, tokens = schooling.rows.row(example), ideal_tokens(example.texts, LEXICON, CODES)
    turn = torch.linalg.qr(torch.randn(WORD.stop - WORD.start, WORD.stop - WORD.start))[0]
    with torch.no_grad():
        plain, turned = (schooling.acting.loss([row], [tokens], one)[2] for one in (None, turn))
    assert max(plain.misses + turned.misses) <= 12


def test_codes_of_words_and_what_was_made_by_hand_get_no_gradient(schooling):
    example = of_family("press")
    ids = word_ids(schooling.rows.tokenizer, LEXICON)
    language = schooling.model.model.language_model
    with guarded(schooling.model, ids):
        rows, tokens = [schooling.rows.row(example)], [ideal_tokens(example.texts, LEXICON, CODES)]
        schooling.acting.loss(rows, tokens)[0].backward()
        assert not language.embed_tokens.weight.grad[ids.flatten()].any()
        assert not schooling.model.lm_head.weight.grad[ids.flatten(), SAID].any()
        assert not language.layers[0].self_attn.q_proj.weight.grad[: 2 * HEAD].any()
        assert language.layers[3].self_attn.q_proj.weight.grad.any()
        assert language.layers[1].mlp.down_proj.weight.grad[X].any()
    schooling.model.zero_grad()


def test_held_out_words_are_no_answer_and_are_not_unlearned(schooling):
    from arpo_verl.tasks.families.lexicon import HELD_OUT_WORDS

    example = of_family("press")
    rows, tokens = [schooling.rows.row(example)], [ideal_tokens(example.texts, LEXICON, CODES)]
    schooling.model.zero_grad()
    schooling.acting.loss(rows, tokens)[0].backward()
    ids = word_ids(schooling.rows.tokenizer, HELD_OUT_WORDS).flatten()
    assert not schooling.model.lm_head.weight.grad[ids].any()
    schooling.model.zero_grad()
