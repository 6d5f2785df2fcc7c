"""The policies that come with the package: they load as any model."""

from hashlib import sha256

import pytest
import torch

from arpo_verl.engines.optimizer import UpperLayersAdamW
from arpo_verl.tools.policy.__main__ import main
from arpo_verl.tools.policy.shipped import FOLDER, SHIPPED, WEIGHTS, write_shipped


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    out = tmp_path_factory.mktemp("shipped") / "model"
    assert main(["seeing", "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize("name", SHIPPED)
def test_the_weights_are_the_declared_ones(name):
    assert sha256((FOLDER / name / WEIGHTS).read_bytes()).hexdigest() == SHIPPED[name]


@pytest.mark.parametrize(
    "name, words, tokens",
    [("seeing", "Press Amber.", [" Amber", "."]), ("embedded", "<|box_start|>(", ["<|box_start|>", "("])],
)
def test_a_shipped_policy_loads_as_any_model_and_in_float32(tmp_path, name, words, tokens):
    from transformers import AutoModelForImageTextToText, AutoProcessor

    write_shipped(name, tmp_path / "model")
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "model")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert sum(p.numel() for p in model.parameters()) < 3e6
    processor = AutoProcessor.from_pretrained(tmp_path / "model")
    assert processor.tokenizer.tokenize(words)[-2:] == tokens


def test_rl_trains_the_upper_layers_alone(shipped):
    from transformers import AutoModelForImageTextToText
    from verl.workers.config.optimizer import FSDPOptimizerConfig, build_optimizer

    model = AutoModelForImageTextToText.from_pretrained(shipped)
    options = {"optimizer_impl": "arpo_verl.engines.optimizer", "optimizer": "UpperLayersAdamW", "lr": 2e-4}
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


@pytest.mark.parametrize("out", ["notes", "file", "link"])
def test_nothing_else_is_replaced_by_a_policy(tmp_path, out, capsys):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("precious")
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to("notes")
    assert main(["seeing", "--out", str(tmp_path / out)]) == 2
    assert "--out must be a new folder" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "notes"]
    assert (tmp_path / "notes" / "thesis.txt").read_text() == "precious"


def test_what_the_disk_refuses_is_told_in_a_line(capsys):
    assert main(["seeing", "--out", "/proc/none/policy"]) == 2
    assert capsys.readouterr().err.startswith("arpo_verl.tools.policy: ")


def test_a_policy_that_was_written_may_be_written_again_and_others_may_read_it(shipped):
    assert main(["seeing", "--out", str(shipped)]) == 0
    assert len({path.stat().st_mode for path in shipped.iterdir()}) == 1
