"""`import arpo_verl`: which names it gives, and what it costs, since `import verl` loads it in every process."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import arpo_verl

EXPORTED = """
Action ActionError ActionParseError ArpoError Click ConfigError DesktopBootError DesktopEndedError DesktopEnvironment
DesktopError DesktopLostError DesktopSetupError DesktopUnclearError Drag EndpointError
EnvironmentConfig Episode EpisodeId Evaluation EvaluatorError Fail FetchError Finish GenerationError GuestAddress
GuiAgentConfig HarnessError HostLostError Hotkey ImageError ImageLimits MachineProvider MetricCall
MissingDependencyError ModelFamily Move Observation PatchLostError Point ReplayConfig ReplayError Reply
RequestError Run Scroll SeveralErrors Size StopReason Task TaskError
TaskSelection Turn TypeText Wait load_tasks make_desktop open_run play
"""


def test_the_exported_names_are_these_and_each_is_there():
    assert sorted(arpo_verl.__all__) == EXPORTED.split()
    assert set(arpo_verl.__all__) <= set(dir(arpo_verl)) and arpo_verl.gym.DesktopEnv
    for name in arpo_verl.__all__:
        assert getattr(arpo_verl, name) is not None


def test_every_error_of_the_tree_is_exported():
    import arpo_verl.errors as errors

    assert {name for name, value in vars(errors).items() if isinstance(value, type)} <= set(arpo_verl.__all__)


def test_type_checkers_are_told_the_same_names_from_the_same_modules():
    stub = Path(arpo_verl.__file__).with_suffix(".pyi").read_text()
    told = {name: module for module, name in re.findall(r"^from (\S+) import (\w+) as \2$", stub, re.MULTILINE)}
    assert told == {**arpo_verl._MODULES, "gym": "arpo_verl"}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="arpo_verl.*no_such_name"):
        arpo_verl.no_such_name  # noqa: B018


def test_importing_the_package_imports_only_what_finds_old_names():
    probe = "import sys, arpo_verl; print([name for name in sys.modules if name.startswith('arpo_verl.')])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['arpo_verl.lib', 'arpo_verl.lib.old_names']"
