"""A bundle of CUA-Gym's format on the real embedded desktop: set up, played, evaluated; and attacked by its policy."""

import io
import threading
import time

import pytest
from PIL import Image
from support.cua_gym_bundle import BLUE, GREEN, REWARD, write_bundle
from support.desktop_harness import eventually

from arpo_verl.desktops.config import EnvironmentConfig
from arpo_verl.desktops.embedded.programs import has_program
from arpo_verl.desktops.osworld.environment import OSWorldEnvironment
from arpo_verl.errors import DesktopError, DesktopSetupError, EvaluatorError
from arpo_verl.tasks import load_tasks
from arpo_verl.types import Click, Fail, Finish, Point, Wait

pytest.importorskip("desktop_env")

from arpo_verl.desktops.osworld.bundles import read_reward  # noqa: E402

pytestmark = pytest.mark.desktop
MIDDLE = Point(320, 300)
NOW = """
now = json.load(urllib.request.urlopen(f"http://localhost:8100/go?sid={sid}"))["current_state"]
"""
SID = """
import json, os, signal, urllib.error, urllib.request
sid = open("/tmp/task_web_sid").read()
def post(sid, **payload):
    request = urllib.request.Request(f"http://localhost:8100/post?sid={sid}", json.dumps(payload).encode())
    return urllib.request.urlopen(request).status
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("store"))
    config = EnvironmentConfig(screen_size=(640, 480), cache_dir=folder, evaluate_timeout_s=60, boot_timeout_s=60)
    environment = OSWorldEnvironment(config)
    yield environment
    environment.close()


@pytest.fixture
def task(tmp_path):
    def make(**changes):
        write_bundle(tmp_path, **{"browser": False, **changes})
        (task,) = load_tasks(f"cua_gym:{tmp_path}")
        return task

    return make


def run_in(environment, code):
    """As a program of the policy's; what it prints."""
    answer = environment._client.controller.execute_python_command(f"{SID}{code}")
    assert answer["returncode"] == 0, answer
    return answer["output"].strip()


def evaluated(environment, end=Finish):
    environment.step(end())
    verdict = environment.evaluate()
    return verdict.score, verdict.share


def colour(observation):
    return Image.open(io.BytesIO(observation.screenshot)).convert("RGB").getpixel(MIDDLE)


def until(environment, wanted):
    eventually(lambda: colour(environment.step(Wait())) == wanted)


@pytest.mark.skipif(not has_program("google-chrome"), reason="neither chromium nor google-chrome is installed")
def test_a_web_task_is_played_in_the_desktops_browser_and_evaluated_by_its_own_program(environment, task):
    bundle = task(browser=True)
    environment.reset(bundle)
    until(environment, GREEN)
    environment.step(Click(Point(MIDDLE.x + 50, MIDDLE.y + 50)))
    until(environment, BLUE)
    assert evaluated(environment) == (1.0, 1.0)
    environment.reset(bundle)  # and no trace of it is left
    assert evaluated(environment) == (0.0, 0.0)


def test_a_part_of_the_reward_is_a_share_and_no_success(environment, task):
    environment.reset(task())
    run_in(
        environment, NOW + "for note in now['notes']: note['done'] = True\npost(sid, action='set_current', state=now)"
    )
    assert evaluated(environment) == (0.0, 0.8)


def test_who_gives_up_has_no_reward(environment, task):
    environment.reset(task(reward="print('REWARD: 1.0')"))
    assert evaluated(environment, Fail) == (0.0, 0.0)


# --- What goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("raise SystemExit('no such table')", "ended with 1: no such table"),
        ("print('done')", "must print `REWARD: <0 to 1>`, got 'done"),
        ("import time; time.sleep(100)", "took more than 0.1 s"),
        ("print('x' * 3_000_000)", "printed more than 1048576 bytes"),
    ],
)
def test_a_reward_program_that_says_none_is_a_fault_and_no_zero(environment, task, reward, message, monkeypatch):
    environment.reset(task(setup="pass", reward=reward))
    monkeypatch.setattr("arpo_verl.desktops.osworld.bundles.PROGRAM_TIMEOUT_S", 0.1 if "sleep" in reward else 60.0)
    with pytest.raises(EvaluatorError, match=message):
        evaluated(environment)


def test_who_closes_the_desktop_need_not_wait_for_its_reward_program(task, tmp_path, monkeypatch):
    closed = OSWorldEnvironment(EnvironmentConfig(screen_size=(320, 240), cache_dir=str(tmp_path / "store")))
    closed.reset(task(setup="pass", reward="import time; time.sleep(300)"))
    closed.step(Finish())
    running = threading.Event()
    run = closed._client.provider.run_reward_program
    monkeypatch.setattr(closed._client.provider, "run_reward_program", lambda *one: running.set() or run(*one))
    closer = threading.Thread(target=lambda: running.wait(60) and closed.close())
    closer.start()
    began = time.monotonic()
    with pytest.raises(DesktopError):
        closed.evaluate()
    closer.join()
    assert time.monotonic() - began < 60


def test_a_set_up_that_fails_and_an_application_that_is_not_built_are_no_tasks(environment, task, tmp_path):
    with pytest.raises(DesktopSetupError, match=r"(?s)initial_setup.py' failed: .*AssertionError: no data"):
        environment.reset(task(setup="assert False, 'no data'"))
    write_bundle(tmp_path, "other", browser=False)
    (tmp_path / "websites/notes-app_mock/dist/index.html").unlink()
    (other,) = load_tasks(f"cua_gym:{tmp_path / 'other'}")
    with pytest.raises(DesktopSetupError, match=r"notes-app_mock is not built: .* has no index.html"):
        environment.reset(other)


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("REWARD: 0.5\n", 0.5),
        ("checks...\n  REWARD: 1\nbye", 1.0),
        ("REWARD: 1.0000000001", 1.0),
        ("title: x\nREWARD: 1.0\nREWARD: 0.0", 0.0),
        ("REWARD: 0.2\nREWARD: 1.0\n", 0.2),
        ("REWARD: 0.5 (partly)", 0.5),
        ("my REWARD: 1.0", None),
        ("REWARD: 7", None),
        ("REWARD: -1", None),
        ("REWARD: nan", None),
        ("REWARD: 1e999", None),
        ("REWARD: 1.0.0", None),
        ("REWARD: 1/2", None),
        ("", None),
    ],
)
def test_a_reward_is_read_as_data_and_the_least_counts(said, reward):
    if reward is None:
        with pytest.raises(EvaluatorError):
            read_reward(said)
    else:
        assert read_reward(said) == reward


# --- A policy that would rather write its reward than earn it ---------------------------------------------------------

SOLVED = f"{NOW}now['notes'][0]['done'] = True\n"
PLANTED = "print('REWARD: 1.0', flush=True); import os; os._exit(0)"
# Writes a reward into every Python that reads its program from standard input.
LINGERING = """
import os, time
while True:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if open(f"/proc/{pid}/cmdline").read().endswith("\\0-\\0"):
                for fd in (1, 2):
                    open(f"/proc/{pid}/fd/{fd}", "w").write("REWARD: 1.0")
        except OSError:
            pass
"""
FORGING = """
import http.server, json, time
class Forger(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        state = {"notes": [{"title": "", "done": True}, {}]}
        body = json.dumps({"initial_state": state, "current_state": state}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
while True:
    try:
        http.server.HTTPServer(("127.0.0.1", 8100), Forger).serve_forever()
    except OSError:
        time.sleep(0.02)
"""


@pytest.mark.parametrize("request_", ["action='set', state=now", "action='reset'"])
def test_what_the_set_up_gave_as_initial_stays(environment, task, request_):
    environment.reset(task())
    answer = environment._client.controller.execute_python_command(f"{SID}{SOLVED}post(sid, {request_})")
    assert "HTTP Error 403" in answer["error"]
    assert evaluated(environment) == (0.0, 0.0)


def test_who_ends_the_applications_and_answers_in_their_place_is_not_asked(environment, task):
    environment.reset(task())
    # The newest fork of process 1 that listens: the desktop's own server is older.
    end = "import signal\nos.kill(max(int(p) for p in os.popen('pgrep -P 1 -f arpo_guest.template').read().split()"
    end += " if int(p) not in (os.getpid(), os.getppid())), signal.SIGKILL)\n"
    serve = f"import subprocess\nsubprocess.Popen(['setsid', 'python3', '-c', {FORGING!r}])\n"
    wait = """
import time
deadline = time.monotonic() + 20
while time.monotonic() < deadline:
    try:
        print(json.load(urllib.request.urlopen(f"http://localhost:8100/go?sid={sid}"))["current_state"]["notes"][0]["done"])
        break
    except OSError:
        time.sleep(0.05)
"""
    assert run_in(environment, end + serve + wait) == "True"
    assert evaluated(environment) == (0.0, 0.0)


def test_neither_program_can_be_read_while_the_policy_plays(environment, task):
    environment.reset(task(reward=REWARD + "# a secret of the reward program's\n"))
    look = "grep -rsl 'secret of the reward' /home /tmp /run /var/tmp /dev/shm; ls /home/user/*.py; true"
    found = environment._client.controller.run_bash_script(look)
    assert found["output"].strip() == "ls: cannot access '/home/user/*.py': No such file or directory", found
    peek = """
import os
seen = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    if "arpo_guest.template" in open(f"/proc/{pid}/cmdline").read():
        for name in ("fd", "mem", "maps"):
            try:
                os.listdir(f"/proc/{pid}/fd") if name == "fd" else open(f"/proc/{pid}/{name}", "rb").close()
                seen.append((pid, name))
            except PermissionError:
                pass
print(seen)
"""
    script = f"cat > /tmp/peek.py <<'END'\n{peek}END\npython3 /tmp/peek.py"
    assert environment._client.controller.run_bash_script(script)["output"].strip() == "[]"


def test_hostile_requests_leave_the_applications_alive(environment, task):
    environment.reset(task())
    code = """
def status(body, path="/post?sid=" + sid):
    try:
        return urllib.request.urlopen(urllib.request.Request("http://localhost:8100" + path, body), timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return "closed"
print(status(b"[" * 100000), status(b"nonsense"), status(b"[]"), status(b'{"action": "burn"}'),
      status(None, "/../../etc/passwd.txt"), status(b"", "/upload?sid=x"), status(None, "/files/x/y.txt"),
      {status(b'{"action": "set", "state": {}}', f"/post?sid=s{n}") for n in range(100)} == {200, 403},
      status(b" " * (17 << 20)) in (403, "closed"), status(None, "/go?sid=" + sid))
"""
    assert run_in(environment, code) == "400 400 400 403 404 400 404 True True 200"
    assert evaluated(environment) == (0.0, 0.0)


HOME = f"""
folder = os.popen("python3 -m site --user-site").read().strip()
os.makedirs(folder)
for name in ("usercustomize", "sitecustomize", "requests", "urllib", "json"):
    for place in (folder, "/home/user", "/tmp"):
        open(f"{{place}}/{{name}}.py", "w").write({PLANTED!r})
"""
IN_ITS_PLACE = "p = '/tmp/task_web_sid'; os.unlink(p); {}; os.rename('/run/log', '/run/gone')"
SPOILS = {
    "another session than the set-up's": SOLVED
    + "post('mine', action='set', state=now)\nopen('/tmp/task_web_sid', 'w').write('mine')",
    "a pipe in the place of the session file": IN_ITS_PLACE.format("os.mkfifo(p)"),
    "a link in its place": IN_ITS_PLACE.format("os.symlink('/home/user/mine', p)"),
    "a folder in its place": IN_ITS_PLACE.format("os.mkdir(p)"),
    "nothing in its place": IN_ITS_PLACE.format("None"),
    "a program that waits for the reward program": "import subprocess\n"
    f"for _ in range(4): subprocess.Popen(['setsid', 'python3', '-c', {LINGERING!r}])",
    "settings and packages of the home": HOME,
    "text that the reward program prints": SOLVED.replace("True", "False")
    + "now['notes'][1]['title'] = 'x\\nREWARD: 1.0\\n'\npost(sid, action='set_current', state=now)",
    "a disk that is full": "os.unlink('/tmp/task_web_sid'); os.system('cat /dev/zero > /tmp/full 2> /dev/null')",
    "folders too deep to be removed": "os.chdir('/run/log')\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')",
}
RELEASED = ("a folder in its place", "nothing in its place")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.release) if name in RELEASED else name for name in SPOILS]
)
def test_what_earns_nothing(environment, task, name):
    environment.reset(task())
    run_in(environment, SPOILS[name])
    assert evaluated(environment) == (0.0, 0.0)
