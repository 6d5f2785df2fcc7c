"""Changes of upstream's code: in place wherever a module has the function, and missed where they are not."""

import functools
import re
import sys
from types import ModuleType

import pytest
from support import ROOT

from arpo_verl.engines import upstream_patches
from arpo_verl.engines.upstream_patches import Patch
from arpo_verl.errors import PatchLostError
from arpo_verl.lib import post_import

PATCHES = [value for value in vars(upstream_patches).values() if isinstance(value, Patch)]


@pytest.fixture
def modules(monkeypatch):
    """Imported modules: upstream's, one of upstream's that has taken the function by name, and another plugin's."""

    class Manager:
        def update(self):
            return "upstream's"

    made = {name: ModuleType(name) for name in ("upstream.base", "upstream.worker", "another_plugin")}
    base, worker, plugin = made.values()
    base.fix, base.Manager, base._flag = lambda: "upstream's", Manager, True
    worker.fix, plugin.renamed, plugin.flag = base.fix, base.fix, True
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    return base, worker, plugin


def replace(name, upstream):
    if name == "_flag":
        return False

    @functools.wraps(upstream)
    def ours(*_):
        return f"ours of {upstream()}" if name == "fix" else "ours"

    return ours


def make_patch(*names):
    return Patch("upstream.base", names, "It fails.")


def test_a_function_is_replaced_once_wherever_a_module_has_taken_it(modules):
    base, worker, plugin = modules
    patch = make_patch("fix")
    for _ in range(2):
        patch.apply(base, replace)
    patch.check()
    assert {base.fix(), worker.fix(), plugin.renamed()} == {"ours of upstream's"}


def test_a_method_and_a_flag_are_replaced_in_their_places_alone(modules):
    base, _, plugin = modules
    patch = make_patch("Manager.update", "_flag")
    patch.apply(base, replace)
    patch.check()
    assert base.Manager().update() == "ours" and base._flag is False and plugin.flag is True


def test_a_patch_that_was_never_applied_is_missed_with_one_sentence_of_what_happens_without_it(modules):
    with pytest.raises(PatchLostError, match=r"runs upstream\.base\.fix, upstream\.worker\.fix without .* It fails\."):
        make_patch("fix").check()


@pytest.mark.parametrize("number, name", [(0, "fix"), (1, "fix"), (0, "_flag")])
def test_what_another_plugin_puts_there_later_is_missed(modules, number, name):
    patch = make_patch("fix", "_flag")
    patch.apply(modules[0], replace)
    setattr(modules[number], name, lambda: "another's")
    with pytest.raises(PatchLostError, match=rf"runs {modules[number].__name__}\.{name} without"):
        patch.check()


def test_what_another_plugin_wraps_is_in_place(modules):
    base, worker, _ = modules
    patch = make_patch("fix")
    patch.apply(base, replace)
    base.fix = worker.fix = functools.wraps(base.fix)(lambda: "around")
    patch.check()


def test_a_process_without_upstreams_module_misses_nothing():
    make_patch("fix").check()


def refuse(name, upstream):
    raise KeyError(name)


class Fixed(ModuleType):
    constant = property(lambda module: module.fix)


@pytest.mark.parametrize(
    ("names", "put", "place"),
    [
        (("fix", "gone"), replace, r"gone \(which is not there\)"),
        (("fix", "Gone.update"), replace, r"Gone\.update \(which is not there\)"),
        (("Manager.update", "constant"), replace, "constant"),
        (("fix",), refuse, "fix"),
    ],
)
def test_what_cannot_be_replaced_harms_no_import_and_no_other_patch(names, put, place, modules, monkeypatch, caplog):
    base, worker, _ = modules
    base.__class__ = Fixed
    monkeypatch.setattr(post_import, "_failures", [])
    broken, whole = make_patch(*names), make_patch("_flag")
    broken.when_imported(put)
    whole.when_imported(replace)
    assert {base.fix(), worker.fix(), base.Manager().update(), base.constant()} == {"upstream's"}, "replaced by half"
    whole.check()
    assert caplog.text.count("arpo_verl could not register with upstream.base: ") == 1
    with pytest.raises(PatchLostError, match=rf"upstream\.base\.{place}.* without .* It fails\. "):
        broken.check()
    with pytest.raises(PatchLostError, match=r"could not register with upstream\.base: \w+Error"):
        post_import.require_registered("upstream.")


def test_a_process_that_is_not_of_a_run_of_ours_is_told_what_its_environment_lacks(modules, monkeypatch):
    monkeypatch.delenv("ARPO_VERL_RUN")
    with pytest.raises(PatchLostError, match=r"It lacks ARPO_VERL_RUN=1"):
        make_patch("fix").check()


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.module)
def test_the_table_of_patches_has_each(patch):
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `engines/upstream_patches\.py: (\w+)` \| `([\w.]+)`: (.+?) \|", text, re.MULTILINE)
    (name,) = (name for name, value in vars(upstream_patches).items() if value is patch)
    assert (name, patch.module) in {row[:2] for row in rows}
    names = {name: listed for name, _, listed in rows}[name]
    assert set(re.findall(r"`(\w+)`", names)) >= {name.rpartition(".")[2] for name in patch.names}
