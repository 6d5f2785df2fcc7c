"""The commands of docs/osworld.md in their order, on stand-ins; `tests/test_docs_blocks.py` has what every page needs.

The stand-ins are servers of OSWorld's files and of a machine's image, with contents of ours, and a Docker engine. Of a
training, the same checks are made as before its start; of an evaluation, its options, recipe and tasks are read.
"""

import functools
import json
import re
import shlex
import threading
import zipfile
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support import documents
from support.fake_docker import FakeDocker
from support.osworld_archive import packed, publish, task
from support.viewer_run import ViewerRun

from arpo_verl.tools.cli.main import build_parser, main

PAGE = documents.page("docs/osworld.md")
# These are parsed only; what they do is tested where these say.
PARSED = {
    "install-osworld": "tests/tools/cli/test_install_osworld.py",
    "doctor": "tests/tools/cli/test_doctor.py",
    "try": "tests/tools/cli/test_try_task.py",
    "view": "tests/tools/cli/test_view.py",
    "evaluate --compare": "tests/tools/evaluation/test_compare.py",
}


@dataclass
class Cluster:
    """A folder in the place of /data and /shared."""

    root: Path
    capsys: pytest.CaptureFixture
    vm: str = ""

    def here(self, line):
        # No model is downloaded here: its size is known by its name.
        line = line.replace("/data/models/UI-TARS-1.5-7B", "ByteDance-Seed/UI-TARS-1.5-7B")
        for place in ("/data/", "/shared/"):
            line = line.replace(place, f"{self.root}{place}")
        return line.replace("$VM", self.vm)

    def type(self, words):
        status = main(words)
        said = self.capsys.readouterr()
        return status, said.out + said.err


@pytest.fixture
def cluster(tmp_path, monkeypatch, capsys):
    manager = pytest.importorskip("desktop_env.providers.docker.manager")
    served = tmp_path / "served"
    served.mkdir()
    ids = re.findall(r"examples/os/([\w-]+)\.json", PAGE) + [f"task-{number}" for number in range(40)]
    index = {"os": ids}
    files = {f"examples/os/{one}.json": task(one) for one in ids}
    lists = dict.fromkeys(("test_all.json", "test_nogdrive.json"), json.dumps(index).encode())
    publish(monkeypatch, lists["test_all.json"])
    (served / "osworld.tar.gz").write_bytes(packed({**lists, **files}))
    with zipfile.ZipFile(served / "Ubuntu.qcow2.zip", "w") as archive:
        archive.writestr("Ubuntu.qcow2", b"a disk")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=served)
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(manager, "UBUNTU_X86_URL", f"{url}/Ubuntu.qcow2.zip")
    monkeypatch.setattr("arpo_verl.tools.cli.fetch_tasks.OSWORLD_ARCHIVE", f"{url}/osworld.tar.gz")
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    engine = FakeDocker(tmp_path)
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    monkeypatch.chdir(tmp_path)
    for run in ("shared/runs/osworld_full", "runs/gpu_smoke"):
        (tmp_path / run).parent.mkdir(parents=True, exist_ok=True)
        trained = ViewerRun(tmp_path / run)
        trained.episode(1)
        trained.metrics(1, **{"episode/success": 0.5, "timing_s/step": 1.0})
    yield Cluster(tmp_path, capsys)
    engine.close()
    server.shutdown()
    server.server_close()


@pytest.mark.release
def test_the_page_walked_in_its_order(cluster):
    for line in documents.commands("docs/osworld.md"):
        line = cluster.here(line.removeprefix("RAY_ADDRESS=auto "))
        if line.startswith("VM="):
            cluster.vm = line.removeprefix("VM=")
            assert Path(cluster.vm).read_bytes() == b"a disk"
        elif line.startswith("arpo-verl ") and " ... " not in line:
            walk(cluster, shlex.split(line)[1:])


def walk(cluster, words):
    command, first = words[0], " ".join(words[:2])
    if first in PARSED or (command in PARSED and command != "doctor"):
        assert command != "try" or Path(words[1]).is_file()
    elif command in ("evaluate", "filter-tasks"):
        from arpo_verl.tools.cli.playing import read_playing

        playing = read_playing(build_parser(command).parse_args(words))
        assert len(playing.tasks) == 41 and playing.settings.environment.num_desktops == 64
    elif first == "doctor --recipe" or command == "train":
        before_a_start(cluster, words)
    else:
        status, said = cluster.type(words)
        assert status == 0, said


def before_a_start(cluster, words):
    """The recipe composes with these overrides, and passes every check once its task lists are there."""
    overrides = words[2:] if words[0] == "train" else words[3:]
    name = words[1] if words[0] == "train" else words[2]
    filtered = cluster.root / "shared/runs/filter/training_tasks"
    if any(str(filtered) in word for word in overrides) and not filtered.exists():
        filtered.parent.mkdir(parents=True)
        filtered.symlink_to(cluster.root / "data/osworld")  # what filter-tasks would have written
    elsewhere = [] if "--gpu-gb" in overrides else ["--node-gb", "1000", "--gpu-gb", "80"]
    _, said = cluster.type(["doctor", "--recipe", name, *overrides, *elsewhere])
    if name == "gpu_smoke" or any(word.startswith("data.train_files=") for word in overrides):
        assert "passes every check" in said and "[FAIL]" not in said, said
    else:
        assert ", computed:" in said, said
