"""A pool of fake desktops, without Ray, and replies that solve their task."""

from contextlib import asynccontextmanager

from arpo_verl.desktops.fake import FakeEnvironment, FakeScript
from arpo_verl.errors import DesktopError
from arpo_verl.types import Size

SCREEN = Size(640, 480)
# The fake's square lies at the top left, 120 pixels wide: (20, 20) of the 364x252 image is (35, 38) of the screen.
HIT = "Thought: I click it.\nAction: click(start_box='<|box_start|>(20,20)<|box_end|>')"
MISS = "Action: click(start_box='(300,200)')"
DONE = "Thought: Done.\nAction: finished()"


class AsyncDesktop:
    """A desktop as an episode awaits it."""

    host = "here"

    def __init__(self, environment, name):
        self.environment = environment
        self.name = name

    async def reset(self, task):
        return self.environment.reset(task)

    async def step(self, action):
        return self.environment.step(action)

    async def look(self):
        return self.environment.look()

    async def ask(self, request):
        return self.environment.ask(request)

    async def evaluate(self):
        return self.environment.evaluate()


class FakeSession:
    """Counts every attempt."""

    def __init__(self, pool, task_id):
        self.pool, self.task_id, self.attempts = pool, task_id, 0

    def lease(self):
        self.attempts += 1
        return self.pool.lease(self.task_id)

    async def count_faults(self):
        return self.attempts


class FakePool:
    """Leases a new fake desktop each time, made from the next script (the last one for ever), and keeps the books."""

    def __init__(self, *scripts, screen=SCREEN):
        self.scripts = list(scripts) or [FakeScript()]
        self.screen = screen
        self.desktops = []
        self.leased = 0
        self.faults = []
        self.refused = []

    @asynccontextmanager
    async def lease(self, task_id):
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        environment = FakeEnvironment(script, self.screen)
        self.desktops.append(environment)
        self.leased += 1
        try:
            yield AsyncDesktop(environment, environment.name)
        except DesktopError as error:
            self.faults.append(type(error).__name__)
            raise
        finally:
            self.leased -= 1

    def session(self, task_id, batch=0):
        return FakeSession(self, task_id)

    async def refuse(self, message):
        self.refused.append(message)
