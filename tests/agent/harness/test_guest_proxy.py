"""OSWorld's guest protocol behind an episode's token: its own client, unmodified, and what others try."""

import asyncio
import contextlib
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from support.pictures import png

from arpo_verl.agent.harness.guest_proxy import MAX_CODE_BYTES, REFUSED
from arpo_verl.agent.harness.server import HarnessServer
from arpo_verl.desktops.fake import FakeEnvironment
from arpo_verl.errors import DesktopLostError
from arpo_verl.lib.untrusted import MOST_JSON_BYTES
from arpo_verl.types import Click, GuestAnswer, Observation, Point, Task

CLICK = ["python", "-c", "import pyautogui; import time; pyautogui.FAILSAFE = False; pyautogui.click(3, 4)"]


class ScriptedDesktop:
    """Keeps what it was asked."""

    def __init__(self, error=None):
        self.asked = []
        self.error = error
        self.going = asyncio.Event()
        self.going.set()
        self.waits = asyncio.Event()

    async def look(self):
        if self.error is not None:
            raise self.error
        return Observation(png())

    async def ask(self, request):
        self.asked.append(request)
        self.waits.set()
        await self.going.wait()
        if self.error is not None:
            raise self.error
        return GuestAnswer(200, "application/json", b'{"returncode": 0, "output": "said"}')


def served(test, *, allow_shell=False, desktop=None):
    """Run `test(address, desktop, serve)`, whose requests are made in threads.

    `serve(token, desktop)` serves another desktop: it returns its address, and what ends it.
    """

    async def run():
        server, asked = await HarnessServer().start(), desktop or ScriptedDesktop()

        async def serve(token, desktop):
            ends = contextlib.AsyncExitStack()
            await ends.enter_async_context(server.guests.serving(token, desktop, allow_shell))
            return f"http://desktop:{token}@127.0.0.1:{server.port}", ends.aclose

        address, end = await serve("t0ken", asked)
        asked.end = end
        try:
            return await test(address, asked, serve)
        finally:
            getattr(asked, "going", asyncio.Event()).set()  # a test that failed may have left a request waiting
            await end()

    return asyncio.run(run())


async def post(address, path, body, **options):
    return await asyncio.to_thread(requests.post, address + path, json=body, **{"timeout": 300, **options})


async def get(address, path):
    return await asyncio.to_thread(requests.get, address + path, timeout=300)


def test_an_action_goes_to_the_episodes_desktop_as_it_was_understood():
    async def test(address, desktop, serve):
        answer = await post(address, "/execute", {"command": CLICK, "shell": False, "apart": True})
        assert answer.json()["output"] == "said"
        assert (await get(address, "/screenshot")).content == png()
        (request,) = desktop.asked
        command = ["python", "-c", CLICK[2].replace("; ", "\n")]
        assert json.loads(request.body) == {"command": command, "shell": False}  # and no field of ours
        assert (request.method, request.path) == ("POST", "/execute")

    served(test)


@pytest.mark.parametrize(
    "path, body",
    [
        ("/execute", {"command": "id", "shell": True}),
        ("/execute", {"command": ["python", "-c", "import os; os.remove('x')"], "shell": False}),
        ("/execute", {"command": ["python3", "-c", "pyautogui.click()"], "shell": True}),
        ("/execute", {"command": ["bash", "-c", "id"]}),
        ("/execute", {"command": [["python"], "-c", "pass"]}),
        ("/execute", {}),
        ("/execute", ["x"]),
        ("/run_python", {"code": "print(open('/etc/passwd').read())"}),
        ("/run_python", {"code": 3}),
        ("/run_python", {"code": f"pyautogui.write({'x' * MAX_CODE_BYTES!r})"}),
        ("/run_python", {"code": f"time.sleep(0x{'f' * 3900})"}),
    ],
)
def test_what_is_no_action_is_answered_as_a_command_that_failed(path, body):
    """OSWorld's client sends again what is not answered with 200, and waits before it does."""

    async def test(address, desktop, serve):
        answer = await post(address, path, body)
        said = answer.json()
        assert answer.status_code == 200 and not desktop.asked
        assert said["status"] == "error" and said.get("returncode", said.get("return_code")) == REFUSED
        assert said["error"]

    served(test)


@pytest.mark.parametrize(
    "path", ["/run_bash_script", "/setup/execute", "/setup/upload", "/file", "/list_directory", "/x"]
)
def test_shell_commands_and_files_go_through_where_the_recipe_says_so(path):
    async def refused(address, desktop, serve):
        answer = await post(address, path, {"script": "id"})
        assert answer.status_code == 403 and not desktop.asked and "harness_shell=false" in answer.json()["error"]

    async def passed(address, desktop, serve):
        assert (await post(address, path, {"script": "id"})).json()["output"] == "said"
        (request,) = desktop.asked
        assert (request.path, json.loads(request.body)) == (path, {"script": "id"})

    served(refused)
    served(passed, allow_shell=True)


def test_another_token_or_none_reaches_no_desktop():
    async def test(address, desktop, serve):
        bare = address.split("@")[1]
        for login in ("", "desktop:@", "desktop:t0ke@", "t0ken2@", "desktop:%00@"):
            answer = await post(f"http://{login}{bare}", "/execute", {"command": CLICK})
            assert answer.status_code == 401
        header = {"Authorization": "Basic !"}
        assert (await post(f"http://{bare}", "/execute", {"command": CLICK}, headers=header)).status_code == 401
        assert not desktop.asked

    served(test)


def test_each_token_has_its_own_desktop_and_none_behind_the_end_of_its_episode():
    async def test(address, desktop, serve):
        other = ScriptedDesktop()
        others, end = await serve("other", other)
        await post(others, "/execute", {"command": CLICK})
        assert (len(desktop.asked), len(other.asked)) == (0, 1)
        await end()
        assert (await post(others, "/execute", {"command": CLICK})).status_code == 401
        assert len(other.asked) == 1 and (await get(address, "/screenshot")).status_code == 200

    served(test)


def test_the_end_waits_for_what_the_desktop_still_does_and_lets_nothing_else_begin():
    async def test(address, desktop, serve):
        desktop.going.clear()
        first = asyncio.ensure_future(post(address, "/execute", {"command": CLICK}))
        await desktop.waits.wait()
        second = asyncio.ensure_future(post(address, "/execute", {"command": CLICK}))
        closing = asyncio.ensure_future(desktop.end())
        await asyncio.sleep(0)
        assert not closing.done()
        desktop.going.set()
        await closing
        assert (await first).status_code == 200 and (await second).status_code == 401
        assert len(desktop.asked) == 1

    served(test)


def test_a_fault_of_the_desktop_is_no_answer_of_its():
    async def test(address, desktop, serve):
        for answer in (await get(address, "/screenshot"), await post(address, "/execute", {"command": CLICK})):
            assert answer.status_code == 503 and "secret" not in answer.text

    served(test, desktop=ScriptedDesktop(DesktopLostError("at secret address")))


def test_what_is_no_http_is_refused_and_leaves_the_log_as_it_was(caplog):
    async def test(address, desktop, serve):
        for line in (
            b"GET @x HTTP/1.1",
            b"\x16\x03\x01",
            b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
            writer.write(line + b"\r\n\r\n")
            assert b" 400 " in await reader.readline()
            writer.close()

    with caplog.at_level("DEBUG"):
        served(test)
    # Whatever else may be logged just then, as of a task of an earlier test that Python finds now.
    said = [record for record in caplog.records if record.name.startswith(("aiohttp", "arpo_verl"))]
    assert not [each for each in said if "HTTP" in each.getMessage() or each.levelname == "ERROR"]


def test_a_request_without_end_is_refused():
    async def test(address, desktop, serve):
        answer = await post(address, "/execute", {"command": ["python", "-c", "x" * MOST_JSON_BYTES]})
        assert answer.status_code == 413 and not desktop.asked

    served(test)


def test_an_episode_has_so_many_requests_at_once_gone_ones_too_and_others_have_theirs(monkeypatch):
    monkeypatch.setattr("arpo_verl.agent.harness.guest_proxy.MOST_AT_ONCE", 2)

    async def test(address, desktop, serve):
        other, _ = await serve("other", ScriptedDesktop())
        desktop.going.clear()
        first = asyncio.ensure_future(post(address, "/execute", {"command": CLICK}))
        await desktop.waits.wait()
        timeouts_s, answers = iter((0.5, 0.5, 5, 50, 300)), []
        while not answers:  # one that was seen holds its body until its turn, although nobody waits for it
            with contextlib.suppress(requests.Timeout):
                answers.append(await post(address, "/execute", {"command": CLICK}, timeout=next(timeouts_s)))
        assert answers[0].status_code == 429 and next(timeouts_s) > 0.5, "the second was not refused"
        assert (await post(other, "/execute", {"command": CLICK})).status_code == 200
        desktop.going.set()
        assert (await first).status_code == 200
        assert (await post(address, "/execute", {"command": CLICK})).status_code == 200

    served(test)


class Awaited:
    """A desktop of this process, called in a thread as the pool's are."""

    def __init__(self, environment):
        self.environment = environment
        self._thread = ThreadPoolExecutor(1)

    async def call(self, function, *arguments):
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def look(self):
        return await self.call(self.environment.look)

    async def ask(self, request):
        return await self.call(self.environment.ask, request)


def controller_of(address):
    """OSWorld's own, for an address with a user."""
    from desktop_env.controllers.python import PythonController

    login, port = address.removeprefix("http://").rsplit(":", 1)
    controller = PythonController(login, int(port))
    controller.retry_times, controller.retry_interval = 1, 0
    return controller


def test_a_fake_desktop_takes_clicks():
    pytest.importorskip("desktop_env")

    async def test(address, desktop, serve):
        controller = controller_of(address)
        await asyncio.to_thread(controller.execute_action, {"action_type": "CLICK", "x": 20, "y": 30})
        assert desktop.environment.actions == [Click(Point(20, 30))]
        assert await asyncio.to_thread(controller.get_screenshot) == desktop.environment.look().screenshot

    environment = FakeEnvironment()
    environment.reset(Task("click", "Click the square.", {}))
    served(test, desktop=Awaited(environment))


@pytest.mark.desktop
def test_osworlds_own_controller_solves_a_task_of_an_embedded_desktop(tmp_path):
    """By what its agents send: pyautogui code, and screenshots in between."""
    pytest.importorskip("desktop_env")
    from support.name_dialog import TASK

    from arpo_verl.desktops.config import EnvironmentConfig
    from arpo_verl.desktops.osworld.environment import OSWorldEnvironment

    def play(controller):
        first = controller.get_screenshot()
        assert controller.get_vm_screen_size() == {"width": 320, "height": 240}
        assert controller.get_vm_platform() == "Linux"
        refused = controller.execute_python_command("open('/home/user/name.txt', 'w').write('arpo')")
        assert refused["returncode"] == REFUSED
        assert controller.run_bash_script("echo arpo > ~/name.txt") is not None
        code = "import pyautogui\nimport time\n'''\nThought:\nI type it.\n'''\npyautogui.write('arpo')\ntime.sleep(0.2)"
        assert controller.execute_python_command(code)["returncode"] == 0
        assert controller.get_screenshot() != first
        controller.execute_action({"action_type": "PRESS", "key": "enter"})

    async def test(address, desktop, serve):
        await asyncio.to_thread(play, controller_of(address))
        await desktop.end()
        return await desktop.call(environment.evaluate)

    environment = OSWorldEnvironment(EnvironmentConfig(screen_size=(320, 240), cache_dir=str(tmp_path)))
    desktop = Awaited(environment)
    try:
        desktop._thread.submit(environment.reset, TASK).result()
        assert served(test, desktop=desktop).score == 1.0
    finally:
        environment.close()
