"""What binds stored trajectories to a policy: content, not paths; and nothing that use changes."""

from pathlib import Path

import pytest
from verl.utils import hf_processor, hf_tokenizer
from verl.workers.config import HFModelConfig

from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.plugin.model_inputs import ModelInputs
from arpo_verl.plugin.settings import PolicyFiles
from arpo_verl.replay.fingerprint import model_fingerprint

COMPACT = GuiAgentConfig(model_family="small")


@pytest.fixture
def loaded(model_path):
    return hf_tokenizer(model_path), hf_processor(model_path)


def fingerprint(loaded, kwargs=None, agent=COMPACT):
    return model_fingerprint(*loaded, kwargs, agent)


def test_tokenizer_and_template_are_loaded_as_verls_workers_load_them(model_path, tmp_path):
    (tmp_path / "config.json").write_text((Path(model_path) / "config.json").read_text())
    template = "{% for message in messages %}{{ message['role'] }}{% endfor %}"
    policy = PolicyFiles(str(tmp_path), tokenizer_path=model_path, custom_chat_template=template)
    own = ModelInputs.load(policy, {})
    theirs = HFModelConfig(**vars(policy), hf_config_path=model_path)
    assert own.processor.chat_template == theirs.processor.chat_template == template
    messages = [{"role": "user", "content": "x"}]
    for templated in (own.tokenizer, own.processor):
        assert templated.apply_chat_template(messages, tokenize=False) == "user"
    assert own.tokenizer.get_vocab() == theirs.tokenizer.get_vocab()
    plain = ModelInputs.load(PolicyFiles(model_path), {})
    prints = [model_fingerprint(inputs.tokenizer, inputs.processor, {}, COMPACT) for inputs in (own, plain)]
    assert prints[0].differences(prints[1]) == ["tokenizer", "prompt"]


def test_loading_again_and_using_the_tokenizer_change_nothing(loaded, model_path):
    before = fingerprint(loaded)
    loaded[0](["a", "longer one"], padding=True, truncation=True, max_length=3)
    again = hf_tokenizer(model_path), hf_processor(model_path)
    assert fingerprint(loaded, {}) == before == fingerprint(again)


def test_each_part_answers_for_its_own(loaded):
    tokenizer, processor = loaded
    before = fingerprint(loaded)

    def changed():
        return before.differences(fingerprint(loaded))

    assert before.differences(fingerprint(loaded, {"max_pixels": 3136})) == ["processor"]
    for agent in (
        GuiAgentConfig(model_family="ui_tars_15"),
        GuiAgentConfig(model_family="qwen25_vl"),
    ):
        assert before.differences(fingerprint(loaded, agent=agent)) == ["prompt"]
    chinese = GuiAgentConfig(model_family="ui_tars_15", language="Chinese")
    english = fingerprint(loaded, agent=GuiAgentConfig(model_family="ui_tars_15"))
    assert english.differences(fingerprint(loaded, agent=chinese)) == ["prompt"]
    processor.image_processor.size = {"longest_edge": 3136 * 4, "shortest_edge": 3136}
    assert changed() == ["processor"]
    tokenizer.add_tokens(["<new>"])
    assert changed() == ["tokenizer", "processor"]
