"""The real server, asked over a socket."""

import gzip
import http.client
import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from support.pictures import png
from support.viewer_run import ViewerRun
from support.viewer_server import served

from arpo_verl.records.film_strip import recorded_frames
from arpo_verl.records.run import open_run
from arpo_verl.tools.viewer.access import SECURITY_HEADERS

TOKEN = "a-token-of-a-test"


@pytest.fixture
def url(run):
    with served(run) as address:
        yield address


@pytest.fixture(scope="module")
def enclosed_url(tmp_path_factory):
    """A server of a run with secrets around it, and ways that could lead to them."""
    written = ViewerRun(tmp_path_factory.mktemp("enclosed") / "a-run")
    episode = written.trajectories / written.episode(1)
    outside = written.path.parent / "outside"
    outside.mkdir()
    for folder in (written.path.parent, written.path, written.trajectories, outside):
        (folder / "00.png").write_bytes(b"secret")
    shutil.copy(episode / "episode.json", outside)
    (episode.parent / "link__u1_0").symlink_to(outside)
    (episode / "07.png").symlink_to(outside / "00.png")
    os.mkfifo(episode / "08.png")
    (episode / "09.png").mkdir()
    with served(open_run(written.path)) as address:
        yield address


@pytest.fixture(scope="module")
def token_url(tmp_path_factory):
    """A server that demands the token."""
    run = open_run(ViewerRun(tmp_path_factory.mktemp("token") / "a-run").path)
    with served(run, TOKEN) as address:
        yield address


def raw(url, path, **headers):
    """Ask for a path as it stands: other clients tidy it up."""
    connection = http.client.HTTPConnection(url.split("/")[2], timeout=60)
    connection.putrequest("GET", path, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": "localhost", **headers}.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_the_page_and_every_document_are_served(written, url):
    page = requests.get(url)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert 'data-source="server"' in page.text
    assert requests.get(url + "assets/source.js").headers["content-type"].startswith("text/javascript")
    id = written.episode(1)
    written.metrics(1, loss=2.0)
    assert requests.get(url + "api/run").json()["num_episodes"] == 1
    document = requests.get(url + "api/episodes").json()
    assert document["rows"][0][0] == id
    assert requests.get(url + "api/episodes", params={"cursor": document["cursor"]}).json()["rows"] == []
    assert requests.get(url + f"api/episode/{id}").json()["id"] == id
    written.tokens(id, [{"token_ids": [1], "texts": ["x"], "log_probs": [-1.0]}], {"step": 1, "log_probs": [-2.0]})
    assert requests.get(url + f"api/tokens/{id}").json() == {
        "replies": [
            {"num_tokens": 1, "texts": ["x"], "log_probs": [-1.0], "trained": [{"step": 1, "log_probs": [-2.0]}]}
        ]
    }
    hits = requests.get(url + "api/hits", params={"q": "press", "id": [id, "step_000001/none"]}).json()["hits"]
    assert hits == {id: {"turn": 1, "text": "Thought: press it. press it."}}
    aligned = requests.get(url + "api/align", params={"first": id, "second": id}).json()
    assert aligned == {"pairs": [[0, 0, True], [1, 1, True]]}
    moving = requests.get(url + f"moving/{id}")
    assert (moving.headers["content-type"], moving.content[:6]) == ("image/gif", b"GIF89a")
    while (found := requests.get(url + "api/search", params={"q": "press"}).json())["indexed"] < 1:
        pass
    assert found["ids"] == [id] and requests.get(url + "api/search").status_code == 422
    assert requests.get(url + "api/metrics").json()["series"] == {"loss": [2.0]}
    assert requests.get(url + "api/live").json()["running"] == []


def test_screenshots_are_served_as_what_they_are(written, url):
    id = written.episode(1, "задача-任务")
    assert requests.get(url + f"api/episode/{id}").json()["task_id"] == "задача-任务"
    shutil.copy(written.trajectories / id / "00.png", written.trajectories / id / "02.jpg")
    answer = requests.get(url + f"shots/{id}/00.png")
    assert (answer.content, answer.headers["content-type"]) == (png(), "image/png")
    assert requests.get(url + f"shots/{id}/02.jpg").headers["content-type"] == "image/jpeg"
    running = written.live(2, ".press-ok__u9_0.x")
    assert requests.get(url + f"shots/step_000002/{running.name}/00.png").status_code == 200


def test_what_is_not_there_is_told_as_json(url):
    missing = [f"{kind}/step_000001/none" for kind in ("api/episode", "api/tokens", "moving")]
    for path in (*missing, "api/align?first=a&second=b", "shots/step_000001/none/00.png", "api/none", "assets/none.js"):
        answer = requests.get(url + path)
        assert (answer.status_code, type(answer.json()["detail"])) == (404, str)


@pytest.mark.parametrize("path", ["", "api/run", "api/none", "assets/app.js", "shots/a/b/00.png"])
def test_every_answer_forbids_what_the_page_does_not_need_and_what_may_change_is_asked_for_again(enclosed_url, path):
    answer = requests.get(enclosed_url + path)
    assert {name: answer.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
    assert "'unsafe" not in answer.headers["content-security-policy"]
    assert answer.status_code == 404 or answer.headers["cache-control"] == "private, no-cache"


@pytest.mark.parametrize(
    "path",
    [
        "/shots/step_000001/press-ok__u1_0/..%2f..%2f..%2f00.png",
        "/shots/step_000001/..%2f../00.png",
        "/shots/step_000001/../../../00.png",
        "/shots/../00.png",
        "/shots/step_000001/../00.png",
        "/shots/step_000001/%2e%2e/00.png",
        "/shots/step_000001/link__u1_0/00.png",
        "/shots/step_000001/press-ok__u1_0/07.png",
        "/shots/step_000001/press-ok__u1_0/08.png",
        "/shots/step_000001/press-ok__u1_0/09.png",
        "/shots/step_000001/press-ok__u1_0/episode.json",
        "/shots/step_000001/press-ok__u1_0/00.png%00.html",
        "/shots/step_000001/press-ok__u1_0/00.svg",
        "/shots/step_000001%2fpress-ok__u1_0%2f..%2fpress-ok__u1_0/00.png",
        "/api/episode/step_000001/..",
        "/api/episode/step_000001/%2e%2e",
        "/api/episode/..%2f..%2foutside/x",
        "/api/episode/step_000001/link__u1_0",
        "/api/tokens/step_000001/link__u1_0",
        "/api/tokens/..%2f..%2foutside/x",
        "/api/align?first=step_000001/press-ok__u1_0&second=../outside",
        "/moving/step_000001/link__u1_0",
        "/moving/step_000001/%2e%2e",
        "/assets/../server.py",
        "/assets/..%2fserver.py",
        "/assets/%2e%2e/server.py",
        "/assets//etc/passwd",
        "//etc/passwd",
        "/api/run/",
        "/assets",
        "/docs",
        "/openapi.json",
    ],
)
def test_nothing_but_the_runs_episodes_and_the_page_is_served(enclosed_url, path):
    status, body = raw(enclosed_url, path)
    assert status == 404
    assert b"secret" not in body


def test_no_screenshot_that_is_none_comes_into_a_moving_picture_or_an_alignment(written, url):
    id = written.episode(1, screenshots=4)
    folder = written.trajectories / id
    for name in ("01.png", "02.png", "03.png"):
        (folder / name).unlink()
    (written.path / "secret.png").write_bytes(png("red"))
    (folder / "01.png").symlink_to(written.path / "secret.png")
    os.mkfifo(folder / "02.png")
    (folder / "03.png").mkdir()
    content = json.loads((folder / "episode.json").read_text())
    content["screenshots"] += ["../../../secret.png", "", "/dev/zero"]
    content["turns"] = [{"screenshot": number} for number in (*range(8), -1, None)] + [{}]
    content["turns"][0]["actions"] = [{"action": "Click", "point": point} for point in ([1e99, 0], [3, 4])]
    (folder / "episode.json").write_text(json.dumps(content))
    frames = [frame.screenshot for frame in recorded_frames(folder)]
    assert frames == [png(), *[None] * 10]
    assert recorded_frames(folder)[0].points == ((3, 4),)
    assert requests.get(url + f"moving/{id}").status_code == 200
    pairs = requests.get(url + "api/align", params={"first": id, "second": id}).json()["pairs"]
    assert [same for _, _, same in pairs] == [True, *[None] * 6]


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (["localhost", "localhost:1", "127.0.0.1:8642", "[::1]:8642", "LOCALHOST"], 200),
        (["evil.example", "localhost.evil.example", "192.0.2.1:8642", "", "[::2]", "127.0.0.1.x"], 403),
    ],
)
def test_this_machine_is_answered_by_any_of_its_names_and_no_foreign_one_that_leads_here(enclosed_url, hosts, expected):
    for host in hosts:
        status, body = raw(enclosed_url, "/api/run", Host=host)
        assert (status, b"num_episodes" in body) == (expected, expected == 200), host


PATHS = ("", "api/run", "api/episodes", "api/metrics", "api/live", "assets/source.js", "shots/a/b/00.png", "none")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("query", ["", *(f"?token={token}" for token in ("", "%ff", TOKEN[:-1], f"{TOKEN}x"))])
def test_without_the_token_nothing_is_served(token_url, path, query):
    answer = requests.get(token_url + path + query)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_the_token_is_needed_once_and_kept_as_a_cookie(token_url):
    with requests.Session() as browser:
        first = browser.get(token_url + f"?token={TOKEN}")
        assert first.status_code == 200
        cookie = first.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        second = browser.get(token_url + "api/run")
    assert second.status_code == 200
    assert "set-cookie" not in second.headers


def test_cookies_of_other_pages_on_this_host_do_no_harm(token_url):
    port = token_url.split(":")[-1].strip("/")
    cookies = f"bad name=x; a[b]=1; =; ;; arpo_view_{port}={TOKEN}; z={{}}"
    assert raw(token_url, "/api/run", Cookie=cookies)[0] == 200
    assert raw(token_url, f"/api/run?token={TOKEN}", Host="gpu-node-7:8642")[0] == 200  # under any name
    assert raw(token_url, "/api/run", Cookie=f"arpo_view_{port}=wrong")[0] == 403


def test_long_documents_are_compressed_for_those_who_take_it(written, url):
    for session in range(40):
        written.episode(1, session=session, screenshots=0)
    status, body = raw(url, "/api/episodes", **{"Accept-Encoding": "gzip"})
    plain_status, plain = raw(url, "/api/episodes")
    assert (status, plain_status) == (200, 200)
    assert gzip.decompress(body) == plain
    assert len(json.loads(plain)["rows"]) == 40


def test_a_document_that_did_not_change_is_not_sent_again(written, url):
    written.metrics(1, loss=1.0)
    first = requests.get(url + "api/metrics")
    again = requests.get(url + "api/metrics", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    written.metrics(2, loss=1.0)
    changed = requests.get(url + "api/metrics", headers={"If-None-Match": first.headers["etag"]})
    assert changed.json()["steps"] == [1, 2]


def test_many_readers_see_a_run_whole_while_it_is_written(written, url):
    """Every reader follows the cursor while episodes and groups are written; in the end each has the same rows."""
    done = threading.Event()

    def follow(_):
        rows, cursor = {}, ""
        while True:
            was_done = done.is_set()
            document = requests.get(url + "api/episodes", params={"cursor": cursor}).json()
            rows = {} if document["complete"] else rows
            rows.update({row[0]: row for row in document["rows"]})
            cursor = document["cursor"]
            if was_done:
                return rows

    with ThreadPoolExecutor(6) as readers:
        followed = [readers.submit(follow, i) for i in range(6)]
        for step in range(1, 21):
            for session in range(4):
                written.episode(step, uid=f"u{step}", session=session, screenshots=0)
            written.group(step, f"u{step}", *({"session": s, "reward": 1, "advantage": s} for s in range(4)))
        done.set()
        seen = [reader.result() for reader in followed]
    whole = {row[0]: row for row in requests.get(url + "api/episodes").json()["rows"]}
    assert len(whole) == 80
    assert all(rows == whole for rows in seen)
    advantage = requests.get(url + "api/episodes").json()["columns"].index("advantage")
    assert sorted({row[advantage] for row in whole.values()}) == [0, 1, 2, 3]
