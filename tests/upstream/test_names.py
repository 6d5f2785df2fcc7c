"""The table of upstream names is what the package uses: nothing more, nothing less."""

import pytest
from upstream.names import RELIED_ON
from upstream.table import listed
from upstream.uses import modules, uses

pytest.importorskip("verl")
pytest.importorskip("desktop_env")


def test_every_upstream_name_that_the_package_uses_is_listed():
    missing = {name: by for name, by in uses().items() if name not in listed()}
    assert not missing, "add them to tests/upstream/names.py, with the parameters that are passed"


@pytest.mark.release
def test_every_listed_name_is_used():
    modules_of_names = {name.partition(":")[0] for name in uses()}
    assert not listed().keys() - uses().keys() - modules_of_names, "take them out of tests/upstream/names.py"


def test_what_is_relied_on_belongs_to_a_module_that_is_there():
    assert not {ours for ours, _, _ in RELIED_ON if f"arpo_verl.{ours}" not in modules()}
