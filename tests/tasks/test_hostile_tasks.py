"""Task files, lists and bundles that somebody else made: read within bounds, and from their own folder alone."""

import json

import pytest
from support.hostile_files import KINDS
from support.task_files import GOOD, ids, spec, write

from arpo_verl.errors import TaskError
from arpo_verl.tasks.loader import load_tasks
from arpo_verl.tasks.schema import problems_of
from arpo_verl.tools.cli.main import main


@pytest.mark.parametrize("suffix", ["json", "txt"])
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"folder"}))
def test_a_task_or_list_that_is_no_regular_file_is_refused_at_once(tmp_path, kind, suffix):
    path = tmp_path / f"tasks.{suffix}"
    KINDS[kind](path)
    with pytest.raises(TaskError, match="not readable|a path that does not exist"):
        load_tasks(path)
    if suffix == "json":
        with pytest.raises(TaskError, match="there is no file|not readable|leads out"):
            load_tasks(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 400, '{"id": ' * 200 + "1" + "}" * 200, "\xff", ""])
def test_json_beyond_all_bounds_is_told(tmp_path, text):
    (tmp_path / "task.json").write_text(text, encoding="latin-1")
    for path in (tmp_path, tmp_path / "task.json"):
        with pytest.raises(TaskError, match="not JSON|not UTF-8|is empty"):
            load_tasks(path)


@pytest.fixture
def osworld(tmp_path):
    """OSWorld's layout with one task, and another task outside of it."""
    write(tmp_path / "secret" / "outside.json", spec(id="outside"))
    write(tmp_path / "osworld" / "examples" / "os" / "one.json", spec(id="one"))
    return tmp_path / "osworld"


@pytest.mark.parametrize(
    "index",
    [
        {"../../secret": ["outside"]},
        {"os": ["../../../secret/outside"]},
        {"{}/secret": ["outside"]},
        {"os": ["{}/secret/outside"]},
        {"os": ["linked"]},
        {"link": ["outside"]},
        ["linked"],
    ],
    ids=str,
)
def test_neither_an_index_nor_a_link_leads_out_of_the_folder(osworld, index):
    (osworld / "examples" / "os" / "linked.json").symlink_to(osworld.parent / "secret" / "outside.json")
    (osworld / "examples" / "link").symlink_to(osworld.parent / "secret")
    text = json.dumps(index).replace("{}", str(osworld.parent))
    with pytest.raises(TaskError, match=r"leads out of .*examples; copy the task itself into the folder"):
        load_tasks(write(osworld / "list.json", text))


@pytest.mark.parametrize("name", ["a\0b", "n" * 5000, "", "..", "/", "linked"])
def test_an_index_that_names_nothing_is_told(osworld, name):
    (osworld / "examples" / "os" / "linked.json").symlink_to("linked.json")
    for index in ({"os": [name]}, {name: ["one"]}):
        with pytest.raises(TaskError, match="there is no file|leads out"):
            load_tasks(write(osworld / "list.json", index))


def test_a_folder_of_tasks_that_is_a_link_of_the_users_is_followed(osworld, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "examples").symlink_to(osworld / "examples")
    assert ids(load_tasks(write(mine / "list.json", {"os": ["one"]}))) == ["one"]
    (tmp_path / "link.json").symlink_to(osworld / "examples" / "os" / "one.json")
    assert ids(load_tasks(tmp_path / "link.json")) == ["one"]


@pytest.mark.parametrize(
    "changes",
    [
        {"id": ["a"]},
        {"id": "\x1b[2J" * 999},
        {"instruction": {"a": 1}},
        {"config": [{"type": ["launch"], "parameters": {}}]},
        {"config": [{"type": {}, "parameters": {}}]},
        {"evaluator": {"func": [["exact_match"]], "result": [{"type": "x"}]}},
        {"evaluator": {"func": 3, "result": {"type": "x"}}},
        {"evaluator": {"func": {"a": 1}, "result": {"type": "x"}}},
        {"evaluator": {"func": "exact_match", "result": {"type": [1]}}},
        {"evaluator": {"func": "exact_match", "result": {"type": "rule"}, "conj": ["and"]}},
        {"evaluator": {"func": "exact_match", "result": "rule"}},
        {"evaluator": []},
    ],
    ids=range(12),
)
def test_a_value_of_another_type_is_a_problem_and_no_crash(changes):
    problems = problems_of(spec(**changes), None)
    assert problems and all(len(problem) < 300 for problem in problems)


def test_nothing_of_a_task_moves_the_cursor(tmp_path, capsys):
    evil = "\x1b[2J\x9b31m\r\u202e"
    write(tmp_path / f"dom{evil}ain" / "one.json", spec(instruction=f"Do {evil} it."))
    assert main(["tasks", str(tmp_path)]) == 0
    write(tmp_path / "bad.json", spec(id=evil, evaluator={"func": evil, "result": {"type": evil}}))
    assert main(["try", str(tmp_path / "bad.json")]) == 2
    said = capsys.readouterr()
    assert "touch-file" in said.out and "id must be letters" in said.err
    assert all(line.isprintable() for line in (said.out + said.err).split("\n"))


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"folder"}))
def test_a_bundle_with_no_regular_file_is_told(tmp_path, kind):
    bundle = tmp_path / "bundle"
    write(bundle / "task.json", {**GOOD, "evaluator": {"type": "python", "url": "./reward.py"}})
    KINDS[kind](bundle / "reward.py")
    with pytest.raises(TaskError, match="the bundle .* cannot be read"):
        load_tasks(f"cua_gym:{tmp_path}")
    (bundle / "task.json").write_text("[" * 100_000)
    with pytest.raises(TaskError, match="nested too deeply"):
        load_tasks(f"cua_gym:{tmp_path}")
