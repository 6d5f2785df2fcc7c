"""A task bundle of our own in CUA-Gym's format, and a mock web application as `npm run build` leaves one."""

import json
from pathlib import Path

TASK_ID = "0c0ffee0-0000-5000-8000-000000000001"
GREEN, BLUE = (0, 160, 0), (0, 0, 200)

PAGE = """<!doctype html><title>Notes</title><meta charset="utf-8">
<body style="margin:0"><button id="b" style="position:fixed;inset:0;width:100%;border:0;font-size:40px"></button>
<script src="/assets/app.js"></script></body>
"""
APP = """
const sid = new URLSearchParams(location.search).get("sid");
let state;
function show() {
  b.style.background = state.notes[0].done ? "rgb(0,0,200)" : "rgb(0,160,0)";
  b.textContent = state.notes[0].title;
}
fetch("/state?sid=" + sid).then(answer => answer.json()).then(answer => { state = answer.stored_state; show(); });
b.onclick = () => {
  state.notes[0].done = true;
  show();
  fetch("/post?sid=" + sid, {method: "POST", headers: {"Content-Type": "application/json"},
    body: JSON.stringify({action: "set_current", state})});
};
"""
SETUP = """
import os, shlex, subprocess, time, uuid
import requests

BASE_URL = "__CUA_GYM_NOTES_APP_URL__"
sid = str(uuid.uuid4())
with open("/tmp/task_web_sid", "w") as f:
    f.write(sid)
state = {"notes": [{"id": 1, "title": "Water the plants", "done": False}, {"id": 2, "title": "Sleep", "done": False}]}
answer = requests.post(f"{BASE_URL}/post?sid={sid}", json={"action": "set", "state": state}, timeout=30)
assert answer.status_code == 200, answer.text
assert requests.get(f"{BASE_URL}/go?sid={sid}", timeout=10).json()["initial_state"] == state
if BROWSER:
    subprocess.Popen(shlex.split(f'google-chrome "{BASE_URL}/?sid={sid}"'), env={**os.environ, "DISPLAY": ":0"},
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""
REWARD = """
import json, urllib.request

with open("/tmp/task_web_sid") as f:
    sid = f.read().strip()
with urllib.request.urlopen("__CUA_GYM_NOTES_APP_URL__/go?sid=" + sid, timeout=30) as answer:
    data = json.load(answer)
before, now = data["initial_state"], data["current_state"]
for note in now["notes"]:
    print("note:", note["title"])
score = 0.8 * now["notes"][0]["done"] + 0.2 * (now["notes"][0]["done"] and now["notes"][1] == before["notes"][1])
print("REWARD:", round(score, 2))
"""


def write_bundle(folder: Path, task_id: str = TASK_ID, browser: bool = True, **files: str) -> Path:
    """A bundle below `folder`, whose `websites/` has the application. `files` replaces `setup` and `reward`."""
    dist = folder / "websites/notes-app_mock/dist"
    (dist / "assets").mkdir(parents=True, exist_ok=True)
    (dist / "index.html").write_text(PAGE)
    (dist / "assets/app.js").write_text(APP)
    bundle = folder / task_id
    bundle.mkdir()
    setup = files.get("setup", SETUP).replace("BROWSER", str(browser))
    (bundle / "initial_setup.py").write_text(setup)
    (bundle / "reward.py").write_text(files.get("reward", REWARD))
    path = "/home/user/initial_setup.py"
    task = {
        "id": task_id,
        "instruction": "In the notes on notes-app.com, mark the first one as done.",
        "app_type": "notes-app_mock",
        "difficulty": "easy",
        "config": [
            {"type": "download", "parameters": {"files": [{"url": "./initial_setup.py", "path": path}]}},
            {"type": "execute", "parameters": {"command": f"python3 {path}"}},
        ],
        "evaluator": {"type": "python", "url": "./reward.py"},
    }
    (bundle / "task.json").write_text(json.dumps(task))
    return bundle
