"""The training of the policy that sees: it goes on where it was, and what it writes is an ordinary model's folder."""

import shutil

import pytest
import torch

from arpo_verl.errors import ConfigError
from arpo_verl.policy.seeing.__main__ import main
from arpo_verl.policy.seeing.acting import ideal_tokens
from arpo_verl.policy.seeing.beginnings import FLAG, IS_VISUAL, WORD_NORM
from arpo_verl.policy.seeing.examples import LEXICON
from arpo_verl.policy.seeing.layout import WORD, spread_codes
from arpo_verl.policy.seeing.optimizer import UpperLayersAdamW
from arpo_verl.policy.seeing.screens import Text, draw_sheet
from arpo_verl.policy.seeing.shipped import FOLDER, check_shipped, ship, write_shipped
from arpo_verl.policy.seeing.training import _Stage


def run_stage(folder, until, every=5, updates=20):
    """Train a line towards zero; stop with an error at the update `until`."""
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


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    out = tmp_path_factory.mktemp("shipped") / "model"
    assert main(["--shipped", "--out", str(out)]) == 0
    return out


def test_the_shipped_policy_loads_as_any_model_and_in_float32(shipped):
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained(shipped)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert sum(p.numel() for p in model.parameters()) < 3e6
    processor = AutoProcessor.from_pretrained(shipped)
    assert processor.tokenizer.tokenize("Press Amber.")[-2:] == [" Amber", "."]


def test_the_shipped_policy_reads_most_of_a_sheet_that_it_never_saw(shipped):
    """Its codes are those that `spread_codes` gives here: another torch might give others."""
    from random import Random

    from transformers import AutoModelForImageTextToText, AutoProcessor

    model, processor = AutoModelForImageTextToText.from_pretrained(shipped), AutoProcessor.from_pretrained(shipped)
    ids = processor.tokenizer.convert_tokens_to_ids([f" {word}" for word in LEXICON])
    codes = torch.nn.functional.normalize(model.get_input_embeddings().weight[ids, WORD].detach(), dim=-1)
    from PIL import Image

    from arpo_verl.policy.seeing.reading import targets_of

    sheet = draw_sheet(LEXICON, Random("never seen"))
    inputs = processor.image_processor(images=[Image.fromarray(sheet.pixels)], return_tensors="pt")
    with torch.no_grad():
        tokens = model.model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"]).pooler_output[0]
    targets = targets_of(sheet, LEXICON)
    word = targets.words >= 0
    read = (torch.nn.functional.normalize(tokens[word][:, WORD], dim=-1) @ codes.T).argmax(-1)
    assert (read == targets.words[word]).float().mean() > 0.4
    assert tokens[:, IS_VISUAL].allclose(torch.tensor(FLAG), atol=0.1)


def test_rl_trains_the_upper_layers_alone(shipped):
    from transformers import AutoModelForImageTextToText
    from verl.workers.config.optimizer import FSDPOptimizerConfig, build_optimizer

    model = AutoModelForImageTextToText.from_pretrained(shipped)
    options = {"optimizer_impl": "arpo_verl.policy.seeing.optimizer", "optimizer": "UpperLayersAdamW", "lr": 2e-4}
    optimizer = build_optimizer(model.parameters(), FSDPOptimizerConfig(**options))
    language = model.model.language_model
    upper = {id(p) for part in (*language.layers[2:], language.norm) for p in part.parameters()}
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == upper
    assert {id(p) for p in model.parameters() if p.requires_grad} == upper


def test_another_models_parameters_are_refused():
    def parameters(*shapes):
        return [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]

    layer, norm, head = ((2, 2), (3,)) * 6, (2,), (4, 2)
    UpperLayersAdamW(parameters(*layer, *layer, norm, head))
    for other in ((*layer, *layer, norm), (*layer, norm, head), (*layer, head, *layer, norm, head)):
        with pytest.raises(ValueError, match="two layers of 12 tensors"):
            UpperLayersAdamW(parameters(*other))


def test_changed_or_missing_files_are_refused(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(FOLDER, copy)
    check_shipped(copy)
    weights = copy / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ConfigError, match="model.safetensors: other bytes"):
        write_shipped(tmp_path / "out", copy)
    assert not (tmp_path / "out").exists()
    weights.unlink()
    with pytest.raises(ConfigError, match="model.safetensors: missing"):
        check_shipped(copy)


@pytest.mark.parametrize("out", ["notes", "file", "link"])
def test_nothing_else_is_replaced_by_a_policy(tmp_path, out, capsys):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("precious")
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to("notes")
    assert main(["--shipped", "--out", str(tmp_path / out)]) == 2
    assert "--out must be a new folder" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "notes"]
    assert (tmp_path / "notes" / "thesis.txt").read_text() == "precious"


def test_what_the_disk_refuses_is_told_in_a_line(capsys):
    assert main(["--shipped", "--out", "/proc/none/policy"]) == 2
    assert capsys.readouterr().err.startswith("arpo_verl.policy.seeing: ")


def test_a_policy_that_was_written_may_be_written_again_and_others_may_read_it(shipped):
    assert main(["--shipped", "--out", str(shipped)]) == 0
    assert len({path.stat().st_mode for path in shipped.iterdir()}) == 1


def test_a_checkpoint_of_something_else_is_named(tmp_path):
    (tmp_path / "line.pt").write_bytes(b"")
    with pytest.raises(ConfigError, match="line.pt must be this stage's checkpoint"):
        run_stage(tmp_path, until=None)


def test_a_model_is_shipped_in_half_precision_and_comes_back(shipped, tmp_path):
    from safetensors.torch import load_file

    sums = ship(shipped, tmp_path / "shipped")
    write_shipped(tmp_path / "again", tmp_path / "shipped", sums)
    first, again = (load_file(folder / "model.safetensors") for folder in (shipped, tmp_path / "again"))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_ideal_tokens_show_the_words_code_where_it_stands():
    codes = spread_codes(len(LEXICON), WORD.stop - WORD.start)
    tokens = ideal_tokens([Text(LEXICON[0], (50, 30, 100, 44))], LEXICON, codes)
    shown = tokens[:, WORD].norm(dim=-1) > 0
    assert shown.nonzero()[:, 0].tolist() == [18, 19]
    assert tokens[18, WORD].norm().item() == pytest.approx(WORD_NORM, abs=1e-4)
