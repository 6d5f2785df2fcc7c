"""A bundle of CUA-Gym's format on the real embedded desktop: set up, played, judged; and attacked by its policy."""

import io
import time

import pytest
from PIL import Image
from support.cua_gym_bundle import BLUE, GREEN, REWARD, SETUP, write_bundle

from arpo_verl.desktop.programs import has_program
from arpo_verl.environments.config import EnvironmentConfig
from arpo_verl.environments.osworld.bundles import read_reward
from arpo_verl.environments.osworld.environment import OSWorldEnvironment
from arpo_verl.errors import DesktopSetupError, EvaluatorError
from arpo_verl.tasks import load_tasks
from arpo_verl.types import Click, Fail, Finish, Point, Wait

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


def judged(environment, end=Finish):
    environment.step(end())
    verdict = environment.evaluate()
    return verdict.score, verdict.share


def colour(observation):
    return Image.open(io.BytesIO(observation.screenshot)).convert("RGB").getpixel(MIDDLE)


def until(environment, wanted):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        seen = environment.step(Wait())
        if colour(seen) == wanted:
            return
    pytest.fail(f"{colour(seen)} instead of {wanted}")


@pytest.mark.skipif(not has_program("google-chrome"), reason="neither chromium nor google-chrome is installed")
def test_a_web_task_is_played_in_the_desktops_browser_and_judged_by_its_own_program(environment, task):
    bundle = task(browser=True)
    environment.reset(bundle)
    until(environment, GREEN)
    environment.step(Click(Point(MIDDLE.x + 50, MIDDLE.y + 50)))
    until(environment, BLUE)
    assert judged(environment) == (1.0, 1.0)
    environment.reset(bundle)  # and no trace of it is left
    assert judged(environment) == (0.0, 0.0)


def test_a_part_of_the_reward_is_a_share_and_no_success(environment, task):
    environment.reset(task())
    run_in(
        environment, NOW + "for note in now['notes']: note['done'] = True\npost(sid, action='set_current', state=now)"
    )
    assert judged(environment) == (0.0, 0.8)
