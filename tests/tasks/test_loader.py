"""Task files: what is read, and what is refused before anything starts."""

import gzip
import json

import pytest
from support.task_files import GOOD, ids, spec, write

from arpo_verl.errors import TaskError
from arpo_verl.tasks import load_tasks
from arpo_verl.tasks.selection import TaskSelection, load_selected_tasks
from arpo_verl.types import Task


@pytest.fixture
def osworld(tmp_path):
    """OSWorld's layout with two tasks, and an index that names a third."""
    write(tmp_path / "examples/os/one.json", spec(id="one"))
    write(tmp_path / "examples/gimp/two.json", spec(id="two"))
    write(tmp_path / "test_all.json", {"os": ["one"], "gimp": ["two"]})
    write(tmp_path / "more.json", {"os": ["one", "gone"], "gimp": ["two"]})
    return tmp_path


def test_a_file_gives_its_spec_unchanged(tmp_path):
    (task,) = load_tasks(write(tmp_path / "t.json", GOOD))
    assert task == Task("touch-file", "Make the file a.txt.", GOOD)


def test_folders_indexes_lists_and_commas_are_read(osworld, tmp_path):
    assert ids(load_tasks(osworld)) == ["one", "two"]
    assert ids(load_tasks(osworld / "test_all.json")) == ["one", "two"]
    assert ids(load_tasks(osworld / "examples")) == ["two", "one"]
    assert ids(load_tasks(write(osworld / "ids.json", ["two", "one"]))) == ["two", "one"]
    one, two = osworld / "examples/os/one.json", osworld / "examples/gimp/two.json"
    assert ids(load_tasks([two, one])) == ids(load_tasks(f"{two}, {one}")) == ["two", "one"]
    assert ids(load_tasks(write(tmp_path / "many.json", [spec(id="a"), spec(id="b")]))) == ["a", "b"]


def test_osworlds_indexes_and_a_list_of_ones_own_are_read(osworld):
    assert ids(load_tasks(write(osworld / "test_small.json", {"gimp": ["two"]}))) == ["two"]
    text = "# easy ones\ntwo   # by mouse\n\none\n"
    assert ids(load_tasks(write(osworld / "mine.txt", text))) == ["two", "one"]
    with pytest.raises(TaskError, match=r"1 of 2 tasks.*\n.*mine.txt names three: there is no file"):
        load_tasks(write(osworld / "mine.txt", "one\nthree\n"))
    with pytest.raises(TaskError, match="one.json; put the list beside the folder `examples`"):
        load_tasks(write(osworld / "lists/mine.txt", "one\n"))


LINES = "\n".join(json.dumps(spec(id=name)) for name in ("a", "b"))
SPLITS = {"train": ["one"], "test": ["two"]}


@pytest.mark.parametrize(
    ("name", "content", "outcome"),
    [
        ("list.txt", "\ufeffos/one\r\n\r\nexamples/gimp/two.json\r\n", ["one", "two"]),
        ("list.txt", "evaluation_examples/examples/os/one.json\none.json", "has the id one too"),
        ("list.json", [{"domain": "os", "example_id": "one"}, {"task_id": "two", "x": 1}], ["one", "two"]),
        ("list.json", [{"domain": "gimp", "id": "one"}], "list.json names gimp/one: there is no file .*gimp/one.json"),
        ("list.json", [{"id": "one", "instruction": "x"}], r"list.json\[0\] .task one.: .*evaluator missing"),
        ("list.json", ["gimp/../secret"], "there is no file"),
        ("list.json", {"gimp": ["gimp/two.json"], "os": ["one.json"]}, ["two", "one"]),
        ("tasks.jsonl", f"\ufeff{LINES}\n\n", ["a", "b"]),
        ("tasks.ndjson", f"{LINES}\n[1", r"ndjson\[2\]: not JSON: Expecting ',' delimiter"),
        ("tasks.json", LINES, "Extra data at line 2.*a file with a task a line needs the ending .jsonl"),
        (
            "list.json",
            SPLITS,
            "has the splits train, test; write the list of each into a file",
        ),
        ("list.json", '["one"]'.encode("utf-16"), "not UTF-8 text: it looks like UTF-16"),
        ("list.parquet", b"PAR1\x15\x04\xff\xfe", "looks like a Parquet file; export its tasks in OSWorld's format"),
        ("list.json.gz", gzip.compress(b"[]", mtime=0), "looks like an archive; export"),
        (
            "list.csv",
            "domain,id\nos,one\n",
            "looks like a table; export its tasks in OSWorld's format as JSON, or",
        ),
        ("list.json", "\ufeff \n", "list.json: is empty"),
        ("data/dataset_info.json", {"features": {}}, "data: looks like a data set of Hugging Face's; export"),
        ("data/tasks.jsonl", LINES, "has no task; name a task file, folder or index"),
        ("bad.json", '{\n  "id": oops\n}', "bad.json: not JSON: Expecting value at line 2, column 9"),
    ],
)
def test_lists_of_other_shapes_are_read_or_say_what_they_look_like(osworld, name, content, outcome):
    path = osworld / name
    write(path, "" if isinstance(content, bytes) else content)
    if isinstance(content, bytes):
        path.write_bytes(content)
    given = path.parent if name.startswith("data/") else path
    if isinstance(outcome, list):
        assert ids(load_tasks(given)) == outcome
    else:
        with pytest.raises(TaskError, match=outcome):
            load_tasks(given, skip_missing="no file" not in outcome)


def test_everything_that_is_wrong_is_in_one_message(osworld):
    write(osworld / "examples/os/bad.json", "{")
    write(osworld / "examples/os/worse.json", {"id": "worse"})
    index = write(osworld / "many.json", {"os": ["one", "bad", "gone", "worse"]})
    broken = write(osworld / "broken.json", '{"os": [')
    with pytest.raises(TaskError) as caught:
        load_tasks([index, broken])
    for reason in ("bad.json: not JSON", "there is no file", "instruction, evaluator missing", "broken.json: not JSON"):
        assert reason in str(caught.value)
    assert str(caught.value).startswith("4 of 5 tasks cannot be used")


def test_a_list_that_cannot_be_read_is_never_left_out(osworld):
    for name, content in (("broken.json", "{"), ("number.json", "3")):
        paths = [osworld / "test_all.json", write(osworld / name, content)]
        with pytest.raises(TaskError, match=name):
            load_tasks(paths, skip_missing=True, skip_unusable=True)


def test_an_index_that_names_missing_files_lists_them_all_or_skips_them(osworld):
    with pytest.raises(TaskError, match=r"1 of 3 tasks.*\n.*more.json names os/gone: there is no file .*gone.json"):
        load_tasks(osworld / "more.json")
    assert ids(load_tasks(osworld / "more.json", skip_missing=True)) == ["one", "two"]


def test_a_path_that_does_not_exist_is_named():
    with pytest.raises(TaskError, match="nowhere.json, no/such/folder must be a task file"):
        load_tasks("nowhere.json, no/such/folder")


EVALUATOR = GOOD["evaluator"]
FILE = {"type": "vm_file", "path": "/a", "dest": "a"}


def setup(kind, **parameters):
    return spec(config=[{"type": kind, "parameters": parameters}])


def compared(expected, func="exact_match"):
    return spec(evaluator=EVALUATOR | {"func": func, "expected": expected})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([1], "must be a JSON object, got int"),
        (spec(id="../up"), "id must be letters"),
        (spec(instruction=" "), "instruction must be text"),
        (spec(config={}), "config must be a list of steps"),
        (spec(config=[{"type": "launch"}]), r"config\[0\] must be an object with type and parameters"),
        (spec(evaluator={"func": "exact_match"}), "evaluator.result is missing: it must say what the metric reads"),
        (spec(evaluator=EVALUATOR | {"func": ["exact_match"]}), "evaluator.result must be a list of 1"),
        (spec(evaluator=EVALUATOR | {"conj": "xor"}), "evaluator.conj must be 'and' or 'or'"),
        (spec(evaluator=EVALUATOR | {"optons": {}}), "evaluator.optons is no field of a task; did you mean options"),
    ],
)
def test_a_task_that_is_none_is_refused(tmp_path, bad, message):
    write(tmp_path / "bad.json", bad)
    with pytest.raises(TaskError, match=message):
        load_tasks(tmp_path / "bad.json")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (spec(config=[{"type": "lunch", "parameters": {}}]), "set-up step 'lunch'.*did you mean launch"),
        (spec(evaluator=EVALUATOR | {"func": "exact_mach"}), "metric 'exact_mach'.*did you mean exact_match"),
        (spec(evaluator=EVALUATOR | {"result": {"type": "vm_fil"}}), "getter 'vm_fil'.*did you mean vm_file"),
        (spec(evaluator=EVALUATOR | {"postconfig": [{"type": "x", "parameters": {}}]}), "postconfig.*set-up step 'x'"),
        (
            setup("download", url="https://a.com/x", path="/x"),
            "must have files, got url, path; .*path is no",
        ),
        (setup("execute", cmd=["ls"]), "must have command, got cmd; .*cmd is no argument of the client's; did you"),
        (setup("download", files=[{"url": ["a"], "path": "b"}]), r"files\[0\].url must be text, got \['a'\]"),
        (compared({"type": "rule", "rules": {"expect": "a"}}), "expected.rules must have expected, got expect"),
        (
            compared({"type": "rule", "rules": {"expected": []}}, "check_list"),
            "must have expect or unexpect, got",
        ),
        (compared({}), "evaluator.expected is missing: it must say what the metric exact_match compares"),
        (compared(FILE | {"path": ["/a"]}), "path must be a list if `multi` is true, and only then"),
        (compared(FILE, "is_first_line_centered"), "expected must be left out.* takes no second value"),
        (compared({}, "reward_program"), "evaluator.result must have program"),
        (compared(5, "infeasible"), "evaluator.expected must be an object with a getter's type, got 5"),
        ('{"id": "a", "id": "b"}', "it has the key 'id' twice in one object; remove one of them"),
        ('{"id": NaN}', "NaN must be a finite number"),
        ('{"id": [1e999, -Infinity]}', "1e999 must be a finite number"),
    ],
)
def test_a_task_that_the_client_could_not_run_is_refused(tmp_path, bad, message):
    """Each names the part by its place, and what the client's own functions take there."""
    pytest.importorskip("desktop_env")
    write(tmp_path / "bad.json", bad)
    with pytest.raises(TaskError, match=message):
        load_tasks(tmp_path / "bad.json")


@pytest.mark.parametrize(
    "good",
    [
        spec(evaluator={"func": "infeasible"}),
        setup("execute_with_verification", command=["ls"], verification=None),
        compared({}) | {"evaluator": compared({})["evaluator"] | {"options": {"rules": {"expected": "hello"}}}},
    ],
)
def test_a_task_that_the_client_runs_is_read(tmp_path, good):
    (task,) = load_tasks(write(tmp_path / "t.json", good))
    assert task.spec["evaluator"] == good["evaluator"]


def test_a_selection_keeps_the_named_tasks_and_refuses_unknown_ones(osworld):
    assert ids(load_selected_tasks(osworld, TaskSelection(ids=["two"]))) == ["two"]
    with pytest.raises(TaskError, match="data.tasks.ids names three, which .* lacks"):
        load_selected_tasks(osworld, TaskSelection(ids=["three"]))
