"""A Ray of one's own: started again where it was too slow, and without what nobody reads."""

import json
import os
import subprocess
import sys
from unittest.mock import Mock

import psutil
import pytest

from arpo_verl.lib import own_ray

pytest.importorskip("ray")


def slow(times):
    """In the place of `ray.init`: so many starts are too slow, each of which leaves a process."""
    left = []

    def init(**options):
        if len(left) == times:
            return options
        left.append(subprocess.Popen(["sleep", "600"]))
        raise Exception("The current node timed out during startup. This could happen because")

    return init, left


def test_a_ray_that_was_too_slow_is_started_again_and_nothing_of_it_stays(monkeypatch, capfd):
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    for name in own_ray.PATIENCE:  # as if a user had set them; they are put back afterwards
        monkeypatch.setenv(name, "5")
    init, left = slow(own_ray.STARTS - 1)
    assert own_ray.start_ray(init, num_cpus=2) == {"num_cpus": 2}
    assert len(left) == own_ray.STARTS - 1 and not any(psutil.pid_exists(process.pid) for process in left)
    said = capfd.readouterr().out
    assert "timed out during startup): this machine is slow or busy, with " in said and "(try 3 of 3)" in said
    init, left = slow(own_ray.STARTS)
    with pytest.raises(RuntimeError, match=r"slow or busy, .*\. End other programs, then run the same command again"):
        own_ray.start_ray(init)
    assert os.environ["RAY_raylet_start_wait_time_s"] == "5"
    for wrong in (ValueError, PermissionError):  # and remains so
        with pytest.raises(wrong, match="^here$"):
            own_ray.start_ray(Mock(side_effect=wrong("here")))
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    with pytest.raises(Exception, match="^The current node"):  # a second call is nobody's start, and ends no Ray
        own_ray.start_ray(slow(1)[0])


def test_a_ray_without_dashboard_has_no_process_for_it_and_its_workers_their_variables(local_ray, monkeypatch):
    import ray

    # Of one look: between two an idle worker, or another test's process, may end.
    shown = [process.info for process in psutil.process_iter(["pid", "ppid", "name", "cmdline"])]
    ours = [one for one in shown if one["ppid"] == os.getpid()]
    (raylet,) = [one["pid"] for one in ours if one["name"] == "raylet"]
    words = [" ".join(one["cmdline"] or ()) for one in shown if one in ours or one["ppid"] == raylet]
    assert not [line for line in words if "monitor.py" in line.replace("log_monitor.py", "") or "dashboard.py" in line]
    assert [line for line in words if "own_ray.py" in line and own_ray._AGENT in line]
    read = ray.remote(lambda: (os.environ["A"], os.environ["B"], os.nice(0))).options(
        runtime_env={"env_vars": {"A": "a", "B": "${A}/${NOBODY}"}}
    )
    assert ray.get(read.remote()) == ("a", "a/", os.getpriority(os.PRIO_PROCESS, 0))


@pytest.mark.parametrize(
    ("context", "language", "printed"),
    [
        ({"py_executable": f"{sys.executable} -I", "env_vars": {"A": "b"}}, "PYTHON", "worker b [] 1"),
        ({}, "PYTHON", "worker None [] 0"),
        ({"command_prefix": ["true"]}, "PYTHON", "setup"),
        ({"py_executable": "~/bin/python"}, "PYTHON", "setup"),
        ({}, "JAVA", "setup"),
    ],
)
def test_what_our_script_does_not_know_is_left_to_rays(tmp_path, context, language, printed):
    setup, worker = tmp_path / "setup.py", tmp_path / "worker.py"
    setup.write_text("print('setup')")
    worker.write_text("import os, sys\nprint('worker', os.environ.get('A'), sys.argv[1:], sys.flags.isolated)")
    options = [f"--serialized-runtime-env-context={json.dumps(context)}", f"--language={language}"]
    command = [sys.executable, "-I", "-S", own_ray.__file__, setup, worker, *options]
    assert subprocess.check_output(command, text=True, env={}).strip() == printed
