"""`arpo-verl tasks`: what it shows and the lists that it writes, which `data.train_files` takes."""

import pytest
from support.task_files import GOOD, spec, write

from arpo_verl.tasks.loader import load_tasks
from arpo_verl.tools.cli.main import main


@pytest.fixture
def osworld(tmp_path):
    """Six tasks in OSWorld's layout: one asks for a program that is not here, one is malformed."""
    index = {"os": ["a", "b", "c"], "gimp": ["d", "e", "torn"]}
    for domain, ids in index.items():
        for one in ids:
            launch = [{"type": "launch", "parameters": {"command": ["no-such-program"]}}] if one == "b" else []
            write(tmp_path / "examples" / domain / f"{one}.json", "{" if one == "torn" else spec(id=one, config=launch))
    write(tmp_path / "test_all.json", index)
    return tmp_path


def show(capsys, *words):
    status = main(["tasks", *map(str, words)])
    said = capsys.readouterr()
    return said.out.splitlines() if status == 0 else said.err


def test_every_usable_task_is_shown_in_a_line_then_how_many_of_each_domain(osworld, capsys):
    *shown, total, left_out = show(capsys, osworld)
    assert [line.split()[0] for line in shown] == ["os/a", "os/b", "os/c", "gimp/d", "gimp/e"]
    assert all(GOOD["instruction"] in line for line in shown) and total == "5 tasks: os 3, gimp 2"
    assert left_out == f"1 more cannot run here; `arpo-verl doctor --task-dir {osworld}` says why"


def test_of_some_domains_and_of_what_runs_here(osworld, capsys):
    assert show(capsys, osworld, "--domain", "gimp")[-2] == "2 tasks: gimp 2"
    assert show(capsys, osworld, "--runs-here")[-2:-1] == ["4 tasks: os 2, gimp 2"]
    assert show(capsys, osworld, "--runs-here", "--provider", "docker")[-2] == "5 tasks: os 3, gimp 2"
    assert "no task has the domain gmp; did you mean gimp? There are: gimp, os" in show(
        capsys, osworld, "--domain", "gmp"
    )


def test_a_subset_is_that_of_its_seed_and_a_larger_one_has_it_too(osworld, capsys):
    def drawn(*words):
        return {line.split()[0] for line in show(capsys, osworld, *words)[:-2]}

    assert drawn("--count", "3") == drawn("--count", "3", "--seed", "0") == {"os/a", "os/c", "gimp/d"}
    assert drawn("--count", "2") < drawn("--count", "3") < drawn("--count", "4")
    assert len({frozenset(drawn("--count", "2", "--seed", str(seed))) for seed in range(8)}) > 1
    assert "--count must be from 1 to 5" in show(capsys, osworld, "--count", "6")


def test_a_list_is_what_the_loader_takes_and_is_never_overwritten(osworld, capsys):
    out = osworld / "mine.json"
    for _ in range(2):
        assert show(capsys, osworld, "--count", "3", "--out", out)[-1] == f"data.train_files={out}"
    assert [task.task_id for task in load_tasks(out)] == ["a", "c", "d"]
    assert "exists and has other tasks" in show(capsys, osworld, "--out", out)
    assert [line.split()[0] for line in show(capsys, out)[:-1]] == ["os/a", "os/c", "gimp/d"]


def test_a_list_elsewhere_or_of_tasks_without_files_is_refused(osworld, tmp_path_factory, capsys):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "mine.json"
    assert "--out must be in the folder that has" in show(capsys, osworld, "--out", elsewhere)
    assert "--out must be in the folder that has" in show(capsys, "embedded", "--out", elsewhere)
    assert not elsewhere.exists()
