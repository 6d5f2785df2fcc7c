"""OSWorld's guest protocol, scripted: what each request is answered, or how it fails."""

import contextlib
import functools
import json
import threading
from dataclasses import dataclass

from arpo_verl.desktops.machine_provider import GuestAddress, MachineProvider
from arpo_verl.desktops.osworld.evaluation import evaluate
from arpo_verl.types import Click, Point, Size, Task
from support import pictures
from support.http_server import Server

SIZE = Size(320, 240)
CLICK = Click(Point(10, 20))
png = functools.partial(pictures.png, size=SIZE)
RESULT = {"type": "vm_command_line", "command": ["cat", "a"]}


def task(task_id="t", config=(), **evaluator):
    evaluator = {
        "func": "exact_match",
        "result": RESULT,
        "expected": {"type": "rule", "rules": {"expected": "yes"}},
    } | evaluator
    return Task(
        task_id, "do it", {"id": task_id, "instruction": "do it", "config": list(config), "evaluator": evaluator}
    )


INFEASIBLE = task(func="infeasible")
LAUNCH = {"type": "launch", "parameters": {"command": ["xterm"]}}


class EvaluatedHere:
    """Evaluates in this process, for a test that changes names in it."""

    def __init__(self, with_share=False):
        self.with_share = with_share

    def __call__(self, client, task):
        return evaluate(client, "desktop", self.with_share)

    def close(self):
        pass


def executed(output="", returncode=0, error=""):
    return 200, json.dumps({"status": "success", "output": output, "error": error, "returncode": returncode})


DROP = "drop"
HANG = "hang"
"""No answer until the guest is stopped."""


@dataclass(frozen=True)
class Cut:
    """The beginning of an answer that says it is longer."""

    content: bytes = b"the beg"


@dataclass(frozen=True)
class Large:
    """So many bytes, sent as long as somebody reads."""

    size: int


class Guest(MachineProvider):
    """OSWorld's guest protocol from a table, and a provider that starts and stops it, each time on another port."""

    def __init__(self):
        self.replies = {
            "/screenshot": lambda: (200, png()),
            "/terminal": lambda: (200, json.dumps({"output": "", "status": "success"})),
            "/setup/launch": lambda: (200, "launched"),
            "/setup/execute": executed,
            "/setup/activate_window": lambda: (404, "no such window"),
            "/execute": executed,
            "/file": lambda: (404, "no such file"),
        }
        self.requests, self.headers, self.starts, self.server = [], [], 0, None
        self.stopped = threading.Event()
        self.listens, self.ports = ("127.0.0.1", 0), (9222, 8080)

    def start(self):
        self.starts += 1
        self.stopped.clear()
        self.server = Server(self._respond, self.listens)

    def address(self):
        return GuestAddress("127.0.0.1", self.server.server_port, *self.ports)

    def stop(self):
        self.stopped.set()
        if self.server is not None:
            self.server.close()
            self.server = None

    def reply(self, path, body):
        return self.replies[path]()

    def _respond(self, handler, body):
        self.requests.append((handler.path, body))
        self.headers.append({name.lower() for name in handler.headers})
        reply = self.reply(handler.path, body)
        handler.close_connection = True
        if reply == HANG:
            self.stopped.wait(60)
        elif isinstance(reply, Cut):
            handler.answer(200, reply.content, Content_Length=1000)
        elif isinstance(reply, Large):
            handler.answer(200, Content_Length=reply.size)
            with contextlib.suppress(OSError):
                for _ in range(reply.size // 1000):
                    handler.wfile.write(bytes(1000))
        elif reply != DROP:
            status, *headers, content = reply
            handler.answer(status, content.encode() if isinstance(content, str) else content, **dict(*headers))

    def code(self):
        """The Python sources of all actions so far."""
        return [json.loads(body)["command"][2] for path, body in self.requests if path == "/execute"]
