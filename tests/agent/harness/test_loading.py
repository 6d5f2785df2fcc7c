"""The options of a harness: what is no harness is refused before anything runs."""

import pytest

from arpo_verl.agent.harness.loading import load_program
from arpo_verl.agent.rollout.config import GuiAgentConfig
from arpo_verl.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"harness": []}, "gui_agent.harness must be null, package.module:function, or a command"),
        ({"harness": ["python", 3]}, "gui_agent.harness must be null"),
        ({"harness_env": {"A": "{secret}"}}, r"harness_env.A must be text with no braces but {endpoint}, {token}"),
        ({"harness_env": {"A": 3}}, "harness_env.A must be text"),
        ({"harness_memory_mb": 1}, "harness_memory_mb must be a whole number of megabytes from 64"),
        ({"harness_timeout_s": 0}, "harness_timeout_s must be more than 0"),
    ],
)
def test_options_that_name_no_harness_are_refused(options, why):
    with pytest.raises(ConfigError, match=why):
        GuiAgentConfig(model_family="small", **options)


@pytest.mark.parametrize(
    ("harness", "why"),
    [
        ("no_such_module:play", "importable package.module:function"),
        ("arpo_verl.types", "importable package.module:function"),
        ("arpo_verl.agent.harness.loading:load_program", "async function"),
        ("arpo_verl.types:Task", "async function"),
    ],
)
def test_what_is_no_async_function_is_refused(harness, why):
    with pytest.raises(ConfigError, match=why):
        load_program(GuiAgentConfig(model_family="small", harness=harness))


def test_a_harness_may_begin_a_row_with_each_turn_and_show_as_many_images_as_it_says():
    config = GuiAgentConfig(model_family="small", max_steps=7, max_screenshots=20, harness="python agent.py")
    assert (config.max_rows, config.max_turns, config.row_screenshots) == (7, 7, 20)
    assert GuiAgentConfig(model_family="small", max_steps=7, harness="python agent.py").row_screenshots == 7
