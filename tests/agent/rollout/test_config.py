"""The section `gui_agent:` and the limits that go with it."""

import pytest

from arpo_verl.agent.harness.loading import load_program
from arpo_verl.agent.models.family import SHIPPED
from arpo_verl.agent.rollout.config import GuiAgentConfig, check_lengths
from arpo_verl.errors import ConfigError
from arpo_verl.lib.config import build_config


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"max_steps": 0}, "gui_agent.max_steps must be a whole number of at least 1, got 0"),
        ({"max_steps": True}, "gui_agent.max_steps"),
        ({"max_steps": 1.5}, "gui_agent.max_steps"),
        ({"max_screenshots": 0}, "gui_agent.max_screenshots must be from 1, got 0"),
        ({"max_steps": 3, "max_screenshots": 4}, "set it to null to take max_steps"),
        ({"max_reply_tokens": -1}, "gui_agent.max_reply_tokens"),
        ({"model_family": "long"}, f"one of {', '.join(SHIPPED)} or package.module:NAME, got 'long'"),
        ({"model_family": "qwen3vl"}, "did you mean qwen3_vl?"),
        ({"model_family": "no.such:FAMILY"}, "got 'no.such:FAMILY', which cannot be imported: No module"),
        ({"model_family": "arpo_verl.types:Size"}, "must name a ModelFamily, got 'arpo_verl.types:Size', of type"),
        ({"language": ""}, "gui_agent.language"),
        (
            {"model_family": "small", "language": "German"},
            "must be English with gui_agent.model_family=small, whose words ask",
        ),
        ({"trajectory_dir": ""}, "gui_agent.trajectory_dir"),
        ({"record": "some"}, "gui_agent.record must be one of all, failures_and_replays, none, got 'some'"),
        ({"record_share": 1.5}, "gui_agent.record_share must be in [0, 1], got 1.5"),
        ({"record_share": True}, "gui_agent.record_share"),
        ({"between_actions_s": -1}, "gui_agent.between_actions_s must be 0 or more seconds, got -1"),
        ({"trajectory_budget_bytes": 0}, "gui_agent.trajectory_budget_bytes must be a whole number of bytes from 1"),
        ({"max_step": 3}, "did you mean gui_agent.max_steps?"),
        ({"harness": []}, "gui_agent.harness must be null, package.module:function, or a command"),
        ({"harness": ["python", 3]}, "gui_agent.harness must be null"),
        ({"harness_env": {"A": "{secret}"}}, "harness_env.A must be text with no braces but {endpoint}, {token}"),
        ({"harness_env": {"A": 3}}, "harness_env.A must be text"),
        ({"harness_memory_mb": 1}, "harness_memory_mb must be a whole number of megabytes from 64"),
        ({"harness_timeout_s": 0}, "harness_timeout_s must be more than 0"),
    ],
)
def test_a_bad_value_is_refused_with_what_to_do(values, reason):
    with pytest.raises(ConfigError) as caught:
        build_config(GuiAgentConfig, "gui_agent", values)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("harness", "why"),
    [
        ("no_such_module:play", "package.module:function, got 'no_such_module:play', which cannot be imported"),
        ("arpo_verl.types", "async function"),
        ("arpo_verl.agent.harness.loading:load_program", "async function"),
        ("arpo_verl.types:Task", "async function"),
    ],
)
def test_a_harness_that_is_no_async_function_is_refused(harness, why):
    with pytest.raises(ConfigError, match=why):
        load_program(GuiAgentConfig(harness=harness))


def test_a_turn_needs_a_step_and_a_screenshot_and_a_harness_may_show_more_and_begin_a_row_with_each():
    for screenshots, turns in ((None, 5), (5, 5), (2, 2)):
        assert GuiAgentConfig(max_steps=5, max_screenshots=screenshots).max_turns == turns
    config = GuiAgentConfig(max_steps=7, max_screenshots=20, harness="python agent.py")
    assert (config.max_rows, config.max_turns, config.row_screenshots) == (7, 7, 20)
    assert GuiAgentConfig(max_steps=7, harness="python agent.py").row_screenshots == 7


def test_the_response_must_hold_a_reply_and_a_screenshot():
    config = GuiAgentConfig(max_steps=5, max_screenshots=5, max_reply_tokens=100)
    check_lengths(config, 217, 117)
    with pytest.raises(
        ConfigError, match="at least 217: gui_agent.max_reply_tokens .100. and a screenshot's 117 tokens"
    ):
        check_lengths(config, 216, 117)
    with pytest.raises(ConfigError, match="actor_rollout_ref.rollout.response_length must be at least 217.*got 216"):
        check_lengths(GuiAgentConfig(max_steps=2, max_screenshots=2, max_reply_tokens=100), 216, 117)
    # A single step needs no second screenshot.
    check_lengths(GuiAgentConfig(max_steps=1, max_screenshots=1, max_reply_tokens=100), 100, 117)
