"""The shipped policy as EasyR1 reads it, and screenshots to show it."""

import io

import pytest
from PIL import Image


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory):
    from easyr1.policy import write_policy

    folder = tmp_path_factory.mktemp("policy") / "embedded"
    write_policy("embedded", folder)
    return folder


@pytest.fixture(scope="session")
def loaded(policy_folder):
    """EasyR1's tokenizer and processor of it."""
    from verl.utils.tokenizer import get_processor, get_tokenizer

    return get_tokenizer(str(policy_folder)), get_processor(str(policy_folder))


@pytest.fixture(scope="session")
def chat(loaded):
    from arpo_verl.agent.rollout.chat import ChatTokenizer
    from arpo_verl.agent.rollout.template_builder import TemplateBuilder

    return ChatTokenizer.from_processor(*loaded, TemplateBuilder(loaded[1]))


@pytest.fixture(scope="session")
def screenshot():
    """(colour, size) -> a desktop's PNG."""

    def make(colour="navy", size=(640, 480)):
        file = io.BytesIO()
        Image.new("RGB", size, colour).save(file, "PNG")
        return file.getvalue()

    return make
