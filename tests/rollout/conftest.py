import pytest


@pytest.fixture(scope="session")
def policy(tmp_path_factory):
    """Tokenizer and processor of a small Qwen2.5-VL, loaded as veRL loads them."""
    from verl.utils import hf_processor, hf_tokenizer

    from arpo_verl.policy.architecture import PolicySize
    from arpo_verl.policy.build import build_policy

    path = str(build_policy(tmp_path_factory.mktemp("policy") / "qwen", size=PolicySize(num_layers=1, vision_depth=1)))
    return hf_tokenizer(path), hf_processor(path)


@pytest.fixture
def tokenizer(policy):
    return policy[0]
