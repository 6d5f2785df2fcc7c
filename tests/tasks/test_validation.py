"""Which tasks this machine's desktops cannot run, and the reasons, read from the tasks' JSON."""

import re

import pytest

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.embedded import chrome, packages, programs
from arpo_verl.desktops.osworld.task_files import DownloadStore, downloads_of
from arpo_verl.errors import TaskError
from arpo_verl.tasks import load_tasks, validation
from arpo_verl.tasks.programs import programs_of
from arpo_verl.tasks.validation import check_tasks_run_here, explain_task
from arpo_verl.types import Task

URL = "https://files.example.com/a/report.docx"
QEMU = {"provider": "qemu", "path_to_vm": "/x.qcow2"}


def make_task(instruction="Do it.", *, config=(), task_id="t", **spec):
    evaluator = {"func": "exact_match", "result": {"type": "vm_file", "path": "/a", "dest": "a"}}
    spec = {"config": list(config), "evaluator": evaluator} | spec
    return Task(task_id, instruction, {"id": task_id, "instruction": instruction, **spec})


def run(command, shell=False, kind="execute"):
    return {"type": kind, "parameters": {"command": command, "shell": shell}}


def asks_for(kind, expected=None, **parameters):
    return {
        "func": "exact_match",
        "result": {"type": kind, **parameters},
        "expected": {"type": "rule", "rules": expected},
    }


def reasons(task, **options):
    return explain_task(task, EnvironmentConfig(**options))


@pytest.fixture(autouse=True)
def unreachable(monkeypatch):
    """No test asks the network."""
    monkeypatch.setattr(validation, "_is_reachable", lambda origin: False)


@pytest.fixture
def chrome_installed(monkeypatch):
    monkeypatch.setattr(chrome, "is_installed", lambda: True)


# --- Programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "shell", "programs"),
    [
        ("xterm -e vi", False, ["xterm"]),
        ("cd /tmp && LANG=C gimp 'a; b' | tee x; test -f y || exit 1", True, ["gimp", "tee"]),
        ("if which vlc; then env A=1 nohup vlc & fi", True, ["which", "vlc"]),
        (["/bin/bash", "-c", "history -c && code ."], False, ["bash", "code"]),
        (["/usr/bin/thunderbird"], False, ["thunderbird"]),
        ("echo x | sudo -S apt-get install jq", True, ["apt-get"]),
        (["/home/user/run.sh"], False, []),
        ("cat > a.py <<'EOF'\nimport os; os.system('nothing')\nEOF", True, ["cat"]),
        ("$HOME/x 'open", True, []),
    ],
)
def test_programs_are_read_from_commands(command, shell, programs):
    assert programs_of({"config": [run(command, shell)]}) == programs


def test_programs_are_read_from_the_evaluator_and_the_apps():
    evaluator = asks_for("vm_command_line", command="xsel --output", shell=True)
    evaluator["postconfig"] = [run("sh -c 'code .'", True)]
    apps = ["Chrome", "libreoffice_calc", "libreoffice calc", "os", "pdf"]
    assert programs_of({"evaluator": evaluator, "related_apps": apps}) == [
        *("sh", "code", "xsel", "google-chrome", "localc")
    ]


def test_missing_programs_are_named_with_their_packages():
    task = make_task(
        config=[run(["no-such-program"], kind="launch"), run(["python3", "x.py"])], related_apps=["vs_code"]
    )
    assert reasons(task) == [
        "the program no-such-program (apt-get install no-such-program) is not installed",
        "the program code (not in Debian) is not installed",
    ]


def test_every_reason_is_raised_with_the_tasks_that_it_stops():
    tasks = [make_task(config=[run(["no-such-program"])], task_id=f"t{n}") for n in range(5)] + [make_task()]
    with pytest.raises(TaskError, match=r"(?s)5 of 6 tasks.*no-such-program\) is not installed: t0, t1, t2 and 2 more"):
        check_tasks_run_here(tasks, EnvironmentConfig())
    check_tasks_run_here(tasks, EnvironmentConfig(provider="docker", screen_size=(1920, 1080)))


def test_an_unexpected_error_is_the_reason_of_its_task_and_ends_no_other_check(monkeypatch):
    odd, good = (Task(name, "Do it.", make_task().spec, where=f"/tasks/{name}.json") for name in ("odd", "good"))
    monkeypatch.setattr(validation, "programs_of", lambda spec: [] if next(calls) else 1 / 0)
    calls = iter([False, True])
    with pytest.raises(TaskError, match=r"1 of 2 .*\n  /tasks/odd.json cannot be checked, ZeroDivisionError: .*: odd$"):
        check_tasks_run_here([odd, good], EnvironmentConfig())


def test_chrome_is_there_where_chromium_is(monkeypatch, tmp_path):
    monkeypatch.setattr(chrome, "CHROME", tmp_path / "google-chrome")
    monkeypatch.setattr(chrome, "CHROMIUM", tmp_path)
    assert not programs.has_program("google-chrome")
    assert chrome.mounts("/chrome") == []
    (tmp_path / "chromium").write_bytes(b"")
    (tmp_path / "chromium").chmod(0o755)
    (tmp_path / "icudtl.dat").write_bytes(b"")
    assert programs.has_program("google-chrome")
    assert chrome.mounts("/chrome")[-3:] == ["--symlink", f"{tmp_path}/icudtl.dat", "/chrome/icudtl.dat"]


def test_a_program_of_the_desktops_own_is_there_and_one_of_a_group_is_in_its_package():
    assert programs.has_program("python") and programs.has_program("sudo")
    for package, program in [*packages.BASE.items(), *packages.TASKS.items(), *packages.OSWORLD.items()]:
        assert packages.package_of(program) == package


def test_files_that_nothing_opens_are_named(monkeypatch):
    monkeypatch.setattr(programs, "_handled_types", lambda: frozenset({"application/pdf"}))
    paths = [f"/home/user/a.{ending}" for ending in ("pdf", "txt", "docx", "q")]
    task = make_task(config=[{"type": "open", "parameters": {"path": path}} for path in paths])
    assert reasons(task) == ["no program that opens .docx files is installed"]


APT = run("echo p | sudo -S apt-get install -y no-such-package bash", True)


@pytest.mark.parametrize(
    ("task", "lacks", "reason"),
    [
        (make_task(config=[run("timedatectl set-timezone UTC", True)]), "", "timedatectl needs a booted system"),
        (make_task(config=[APT]), "", "its set-up installs the package no-such-package (apt-get install no-such-pack"),
        (
            make_task(evaluator=asks_for("accessibility_tree")),
            "python3-gi",
            "the accessibility tree (apt-get install -y --no-install-recommends python3-gi)",
        ),
        (make_task(evaluator=asks_for("vm_terminal_output")), "gnome-terminal", "GNOME's terminal (apt-get install -y"),
    ],
    ids=["system", "package", "tree", "terminal"],
)
def test_what_else_a_desktop_may_lack_is_named(task, lacks, reason, monkeypatch):
    lacking = {lacks}
    monkeypatch.setattr(validation, "has_program", lambda name: name not in lacking)
    monkeypatch.setattr(validation, "missing_packages", lambda packages: sorted(lacking & {"python3-gi"}))
    (found,) = reasons(task)
    assert reason in found
    lacking.clear()
    assert bool(reasons(task)) == (not lacks)


# --- The internet -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (
            make_task(config=[{"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["https://shop.com/a"]}}]),
            "opens the website shop.com",
        ),
        (make_task(config=[{"type": "login", "parameters": {"platform": "googledrive"}}]), "an account on the web"),
        (make_task(config=[run("cd x && pip install pygame", True)]), "runs `pip install pygame`"),
        (make_task(config=[run(["git", "clone", "https://github.com/a/b"])]), "fetches from github.com"),
        (make_task(evaluator=asks_for("active_tab_info", goto_prefix="https://")), "reads the website in the browser"),
        (make_task(evaluator=asks_for("info_from_website", url="https://a.com/x")), "fetches a page of a.com"),
        (make_task(evaluator=asks_for("googledrive_file")), "an account on the web"),
        (make_task("Get the theme from gnome-look.org."), "names the website gnome-look.org"),
        (make_task('Clone "https://github.com/a/b".'), "names the website github.com"),
        (make_task(proxy=True), "asks for a proxy"),
    ],
)
@pytest.mark.parametrize("options", [{}, QEMU], ids=["embedded", "qemu"])
@pytest.mark.usefixtures("chrome_installed")
def test_a_task_that_goes_into_the_internet_says_where(task, reason, options):
    found = [one for one in reasons(task, **options) if "sandbox" not in one]
    assert len(found) == 1 and reason in found[0]


def test_a_machine_without_a_network_installs_nothing_but_may_have_any_program():
    task = make_task(config=[run("sudo apt-get install -y jq", True), run(["no-such-program"])])
    assert reasons(task, **QEMU) == ["its set-up fetches the package jq"]
    with pytest.raises(TaskError, match="cannot run on the provider qemu, whose machines reach no network"):
        check_tasks_run_here([task], EnvironmentConfig(**QEMU))


@pytest.mark.parametrize(
    "task",
    [
        make_task("Forward mail of jane@example.com to joe.doe@mail.example.org."),
        make_task("Rename a.b.com.txt and readme.io_notes to summary.pdf."),
        make_task("Remove funbrain.com.", config=[run("echo http://funbrain.com/ > page", True)]),
        make_task(config=[{"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["http://localhost:80/"]}}]),
        make_task(config=[run("git init && curl http://127.0.0.1:1/", True)]),
        make_task(evaluator=asks_for("open_tabs_info", {"urls": ["chrome://settings/fonts"]})),
        make_task(proxy=False),
    ],
)
@pytest.mark.usefixtures("chrome_installed")
def test_a_task_that_stays_on_its_desktop_is_not_refused(task, monkeypatch):
    monkeypatch.setattr(validation, "has_program", lambda name: True)
    assert reasons(task) == []


# --- Downloads: the host's matter -------------------------------------------------------------------------------------


def test_downloads_must_be_kept_or_within_reach(tmp_path, monkeypatch):
    file = {"type": "download", "parameters": {"files": [{"url": URL, "path": "/home/user/report.docx"}]}}
    gold = {"type": "cloud_file", "path": "https://files.example.com/gold.docx", "dest": "gold.docx"}
    evaluator = asks_for("vm_file", path="/a", dest="a") | {"expected": gold}
    task = make_task(config=[file], evaluator=evaluator)
    options = {"cache_dir": str(tmp_path)}
    (reason,) = reasons(task, **options)
    assert reason == f"it downloads from files.example.com, which this machine cannot reach, and {tmp_path} lacks files"
    places = [DownloadStore(tmp_path).path("t", download) for download in downloads_of(task.spec)]
    places[0].parent.mkdir()
    for place, lacking in zip(places, ([reason], []), strict=True):
        place.write_bytes(b"")
        assert reasons(task, **options) == lacking
    places[0].unlink()
    monkeypatch.setattr(validation, "_is_reachable", lambda origin: origin == "https://files.example.com")
    assert reasons(task, **options) == []


def test_the_shipped_tasks_need_nothing_that_a_desktop_lacks():
    check_tasks_run_here(load_tasks("embedded"), EnvironmentConfig())


# --- The evaluator's sandbox ------------------------------------------------------------------------------------------

DATES = {"type": "rule_relativeTime", "rules": {"relativeTime": {"from": "tomorrow"}, "expected": {"time": "{DoW}"}}}
IN_ZURICH = {"type": "rule_relativeTime", "rules": {**DATES["rules"], "timezone": "Europe/Zurich"}}
RESULT = {"type": "vm_file", "path": "/a", "dest": "a"}


@pytest.mark.parametrize("provider", ["embedded", "docker"])
@pytest.mark.parametrize(
    ("evaluator", "reason", "allowed"),
    [
        ({"func": ["check_python_file_by_test_suite"]}, "give itself any score", {"evaluator_runs_policy_code": True}),
        ({"expected": [DATES]}, "ipapi.co", {"evaluator_hosts": ["ipapi.co"]}),
        ({"result": {"type": "googledrive_file"}}, "reads files of this machine", None),
        ({"postconfig": [{"type": "upload_file", "parameters": {}}]}, "reads files of this machine", None),
        ({"expected": {"type": "cloud_file", "path": URL, "dest": "x/y"}}, "into its own folder", None),
    ],
    ids=["import", "hosts", "drive", "upload", "folder"],
)
def test_what_a_sandbox_cannot_evaluate_is_refused_wherever_the_desktop_is(provider, evaluator, reason, allowed):
    path = "/x.qcow2" if provider == "docker" else None
    task = make_task(evaluator={"func": "exact_match", "result": RESULT, **evaluator})
    options = {"provider": provider, "path_to_vm": path}
    assert any(re.search(reason, found) for found in reasons(task, **options))
    with pytest.raises(TaskError, match=reason):
        check_tasks_run_here([task], EnvironmentConfig(**options))
    if allowed is not None:
        assert not any(re.search(reason, found) for found in reasons(task, **options, **allowed))


def test_dates_of_a_time_zone_that_the_task_names_need_no_host():
    task = make_task(evaluator={"func": "exact_match", "result": RESULT, "expected": IN_ZURICH})
    assert not any("ipapi" in found for found in reasons(task))
