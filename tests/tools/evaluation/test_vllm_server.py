"""`vllm serve` as a child: started, awaited, ended. A program of that name stands in; vLLM itself is not run here."""

import json
import os
import signal
import subprocess
import sys

import pytest
import requests
from support.desktop_harness import eventually

from arpo_verl.errors import ConfigError, MissingDependencyError
from arpo_verl.tools.evaluation.vllm_server import serving

PROGRAM = """#!{python}
import http.server, json, os, subprocess, sys
assert os.environ["ARPO_VERL_RUN"] == "1"
if "--fail" in sys.argv:
    sys.exit("no kernel image is available")
child = subprocess.Popen(["sleep", "600"])  # as vLLM has engine processes
open(os.environ["ARGUMENTS"], "w").write(json.dumps([sys.argv[1:], os.getpid(), child.pid]))
address = "127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(address, Handler).serve_forever()
"""


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    """A program `vllm` on the path; the file that it leaves."""
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ARGUMENTS", str(tmp_path / "arguments.json"))
    return tmp_path / "arguments.json"


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_it_is_there_for_the_block_and_its_processes_go_with_it(tmp_path, arguments, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # which asks nobody for us
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.delenv("ARPO_VERL_RUN")
    values = {"images": 50, "context": 4096, "pixels": {"min_pixels": 1, "max_pixels": 2}, "options": ["--seed", "1"]}
    with serving(tmp_path / "model", tmp_path / "vllm-server.log", **values) as url:
        assert requests.get(f"{url}/models", timeout=60, proxies={"http": ""}).status_code == 200
        command, *pids = json.loads(arguments.read_text())
        assert all(map(is_alive, pids))
    eventually(lambda: not any(map(is_alive, pids)))
    assert command[:2] == ["serve", str(tmp_path / "model")] and command[-2:] == ["--seed", "1"]
    given = dict(zip(command[2:-2:2], command[3:-2:2], strict=True))
    assert json.loads(given["--limit-mm-per-prompt"]) == {"image": 50, "video": 0}
    assert json.loads(given["--mm-processor-kwargs"]) == values["pixels"] and given["--max-model-len"] == "4096"


def test_it_goes_with_a_killed_process(tmp_path, arguments):
    code = (
        "import os; from pathlib import Path; from arpo_verl.tools.evaluation.vllm_server import serving\n"
        f"with serving(Path('m'), Path({str(tmp_path / 'log')!r}), images=1): os.kill(os.getpid(), {signal.SIGKILL})"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=600).returncode == -signal.SIGKILL
    server = json.loads(arguments.read_text())[1]
    eventually(lambda: not is_alive(server))
    os.killpg(server, signal.SIGKILL)  # the stand-in's child: vLLM ends its own when it is asked to end


def test_why_it_does_not_start_is_told(tmp_path, arguments):
    with pytest.raises(ConfigError, match="(?s)ended with status 1.*no kernel image"):
        with serving(tmp_path, tmp_path / "log", images=1, options=["--fail"]):
            pass


def test_without_vllm_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match=r"pip install 'verl\[vllm\]==0.9.1', or use --endpoint"):
        with serving(tmp_path, tmp_path / "log", images=1):
            pass
