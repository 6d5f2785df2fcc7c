import pytest
from policies.architecture import PolicySize
from policies.build import build_policy

from arpo_verl.actions.ui_tars import Reply
from arpo_verl.types import Click, Finish, Point, Task

SMALL = PolicySize(
    hidden_size=64, num_layers=2, intermediate_size=128, vision_hidden_size=32, vision_depth=1, vision_num_heads=2
)


@pytest.fixture(scope="session")
def small_size():
    return SMALL


@pytest.fixture(scope="session")
def small_policy_dir(tmp_path_factory):
    return build_policy(tmp_path_factory.mktemp("small") / "model", size=SMALL)


@pytest.fixture(scope="session")
def small_processor(small_policy_dir):
    from verl.utils.tokenizer import hf_processor

    return hf_processor(str(small_policy_dir))


@pytest.fixture
def tasks():
    return [Task(name, f"Click the {name} square.", {"id": name}) for name in ("red", "crimson")]


@pytest.fixture
def expert():
    """Solves the fake desktop, whose square lies at the top left; the thought tells the tasks apart."""

    def replies(task_id):
        click = Reply(f"Click {task_id}.", (Click(Point(35, 38)),))
        return [click, Reply("Done.", (Finish(),))]

    return replies
