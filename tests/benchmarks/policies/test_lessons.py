"""The lessons of the policy that sees: what they rest on is stock, and an interrupted one goes on."""

import random

import pytest
import torch
from PIL import Image
from policies.seeing.acting import ideal_tokens
from policies.seeing.examples import LEXICON, examples_of
from policies.seeing.layout import WORD, spread_codes
from policies.seeing.screens import draw_sheet
from policies.seeing.vision import encode, patches_of

from arpo_verl.errors import ConfigError

pytestmark = pytest.mark.study


@pytest.fixture(scope="module")
def schooling(tmp_path_factory):
    pytest.importorskip("verl")
    from policies.seeing.training import LessonPlan, Schooling

    return Schooling(tmp_path_factory.mktemp("lessons"), LessonPlan())


def test_what_the_towers_layers_hand_on_is_in_the_order_of_screens_and_patches(schooling):
    sheets = [draw_sheet(LEXICON, random.Random(n)) for n in range(2)]
    patches, visual = patches_of([sheet.pixels for sheet in sheets]), schooling.model.model.visual
    stock = schooling.processor.image_processor(
        images=[Image.fromarray(sheet.pixels) for sheet in sheets], return_tensors="pt"
    )
    torch.testing.assert_close(patches.flatten(0, 1), stock["pixel_values"], atol=1e-3, rtol=1e-3)
    with torch.no_grad():
        tokens, last, hidden = encode(visual, patches, early=3)
        torch.testing.assert_close(visual.merger(last.flatten(0, 1)).view_as(tokens), tokens)
        torch.testing.assert_close(visual.merger.mlp[2](hidden), tokens)
        torch.testing.assert_close(encode(visual, patches[1:])[0], tokens[1:], atol=1e-4, rtol=1e-4)


def test_positions_are_the_stock_ones(schooling):
    from arpo_verl.plugin.settings import load_processor

    row = schooling.rows.row(next(iter(examples_of("training", 0))))
    is_image = (row.input_ids == schooling.rows.image).int()[None]
    stock, _ = load_processor(schooling.folder / "beginning").get_rope_index(
        input_ids=row.input_ids[None], mm_token_type_ids=is_image, image_grid_thw=torch.tensor([[1, 24, 32]])
    )
    assert torch.equal(stock[:, 0], row.position_ids)


def test_the_first_weights_point_before_any_lesson(schooling):
    codes = spread_codes(len(LEXICON), WORD.stop - WORD.start)
    examples = [e for n in range(6) for e in examples_of("held_out_words", n) if e.clicked]
    rows = [schooling.rows.row(e) for e in examples]
    with torch.no_grad():
        score = schooling.acting.loss(rows, [ideal_tokens(e.texts, LEXICON, codes) for e in examples])[2]
    assert sum(miss <= 8 for miss in score.misses) > 0.7 * len(score.misses)


def run_stage(folder, until, every=5, updates=20):
    """Train a line towards zero; stop with an error at the update `until`."""
    from policies.seeing.training import _Stage

    torch.manual_seed(0)
    line = torch.nn.Linear(3, 1)
    stage = _Stage("line", folder, [line], list(line.parameters()), 1e-2, updates, warmup=3)
    seen = []

    def loss_of(update):
        seen.append(update)
        if update == until:
            raise KeyboardInterrupt
        return line(torch.ones(3) * update).square().sum()

    try:
        stage.run(loss_of, lambda: "measured", every)
    except KeyboardInterrupt:
        pass
    return line.weight.detach().clone(), seen


def test_an_interrupted_stage_goes_on_and_ends_as_an_uninterrupted_one(tmp_path):
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    whole, _ = run_stage(tmp_path / "whole", until=None)
    run_stage(tmp_path / "cut", until=13)
    resumed, seen = run_stage(tmp_path / "cut", until=None)
    assert seen == list(range(10, 20))
    assert torch.equal(whole, resumed)


def test_a_finished_stage_is_not_trained_again(tmp_path):
    first, _ = run_stage(tmp_path, until=None)
    again, seen = run_stage(tmp_path, until=None)
    assert seen == []
    assert torch.equal(first, again)


def test_a_checkpoint_of_something_else_is_named(tmp_path):
    (tmp_path / "line.pt").write_bytes(b"")
    with pytest.raises(ConfigError, match="line.pt must be this stage's checkpoint"):
        run_stage(tmp_path, until=None)
