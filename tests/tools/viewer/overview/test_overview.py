"""The overview of a run that was written by hand: the document, and the file that shows it without a server."""

import io
import json
import shutil

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image

from arpo_verl.records.ended_starts import note_fault
from arpo_verl.records.json_files import dump_json
from arpo_verl.records.run import open_run
from arpo_verl.records.starts import note_start
from arpo_verl.tools.cli.main import main
from arpo_verl.tools.viewer import report
from arpo_verl.tools.viewer.overview.content import OverviewFeed, overview_document

HOSTILE = '</code></style></details><script>window.ran=1</script><img src=x onerror="window.ran=1"> {{ 7 * 7 }}'
VALIDATION = "val-aux__embedded__success__mean@1"


def noise(size=(400, 300), seed=0):
    """A screenshot that compresses badly."""
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)).save(
        stream, "PNG"
    )
    return stream.getvalue()


NOISE = noise()


@pytest.fixture
def made(written):
    """Four steps of two groups of two. `hard` fails in steps 1, 2 and 4; a replay of step 3's success goes into 4."""
    for step in (1, 2, 3, 4):
        hard = 1.0 if step == 3 else 0.0
        written.episode(step, "easy", f"e{step}", 0, 1.0, wall_s=2.0)
        written.episode(step, "easy", f"e{step}", 1, 0.0, wall_s=2.0, stop_reason="parse_error", reward=-1.0)
        written.episode(step, "hard", f"h{step}", 0, hard, wall_s=6.0)
        written.episode(step, "hard", f"h{step}", 1, 0.0, wall_s=6.0)
        written.group(step, f"e{step}", row(0, 1.0), row(1, -1.0), task="easy")
        replay = {"step": 3, "uid": "h3", "session": 0} if step == 4 else None
        written.group(step, f"h{step}", row(0, 1.0 if step == 4 else hard, replay), row(1, 0.0), task="hard")
        written.metrics(
            step,
            rollout__success_mean=0.5 if step == 3 else 0.25,
            rollout__stop__finished=0.75,
            rollout__stop__parse_error=0.25,
            replay__injected=float(step == 4),
            replay__missed=float(step < 3),
            replay__groups_all_failed=float(step != 3),
            replay__groups_mixed=1.0 + (step == 3),
            replay__groups_all_solved=0.0,
            replay__store_trajectories=5.0 + step,
            replay__without__critic__score__mean=0.2,
            critic__score__mean=0.4,
            timing_s__step=10.0,
            timing_s__gen=6.0,
            timing_s__replay=5.0,  # a part of the one above
            timing_s__update_actor=3.0,
            environment__dropped_sessions=float(step == 2),
            environment__faults__lost=3.0 if step == 2 else 1.0,
            environment__faults__boot=0.0,
        )
    for step, success in ((0, 0.0), (4, 1.0)):
        written.episode(step, "hard", f"v{step}", 0, success, validation=True)
        written.metrics(step, **{VALIDATION: success})
    return written


def overview_of(made):
    """As the page gets it: through JSON."""
    run = open_run(made.path)
    return json.loads(dump_json(overview_document(run, run.snapshot())))


def rate(document):
    return document["count"], document["total"]


def row(session, reward, replay=None):
    return {"session": session, "reward": reward, "advantage": 0.5, "replay": replay}


def test_success_by_task_counts_training_and_validation_apart(made):
    hard, easy = overview_of(made)["tasks"]
    assert [rate(hard[name]) for name in ("training", "earlier", "later")] == [(1, 8), (0, 4), (1, 4)]
    assert (hard["task_id"], easy["task_id"], rate(easy["training"])) == ("hard", "easy", (4, 8))
    assert (rate(hard["first_validation"]), rate(hard["last_validation"])) == ((0, 1), (1, 1))
    low, high = pytest.approx(0.0224, abs=1e-3), pytest.approx(0.4709, abs=1e-3)
    assert hard["training"] == {"count": 1, "total": 8, "share": 0.125, "low": low, "high": high}
    assert easy["first_validation"] == {"count": 0, "total": 0, "share": None, "low": 0.0, "high": 1.0}


def test_success_by_step_and_validations(made):
    made.episode(5, "easy", "e5", 0, 1.0)  # a step that is being played
    success, validations = (
        [(one["step"], rate(one["recorded"]), one["measured"]) for one in overview_of(made)[name]]
        for name in ("success", "validations")
    )
    assert success == [(1, (1, 4), 0.25), (2, (1, 4), 0.25), (3, (2, 4), 0.5), (4, (1, 4), 0.25)]
    assert validations == [(0, (0, 1), 0.0), (4, (1, 1), 1.0)]


def test_replays_effect(made):
    effect = overview_of(made)["replay"]
    names = ("injected", "missed", "store_trajectories", "steps_with_replay", "ages", "median_age")
    assert [effect[name] for name in names] == [1, 2, 9, 1, [1], 1]
    assert effect["groups"] == {"all_failed": 3, "mixed": 5, "all_solved": 0}
    # As played: the four groups of `easy` and the one of `hard` in step 3; the replay adds the one of step 4.
    teaching = [(rate(one["as_played"]), rate(one["as_trained"])) for one in effect["teaching"]]
    assert teaching == [((5, 8), (6, 8))] * 2
    assert effect["tasks"] == [{"task_id": "hard", "groups": 4, "replays": 1}]
    assert effect["compared"] == [{"name": "critic/score/mean", "with_replays": 0.4, "without": 0.2}]


def test_of_a_group_trained_on_twice_after_a_resume_the_later_counts(written):
    for step, replay in ((3, {"step": 1, "uid": None, "session": None}), (4, None)):
        written.folder(step, "u")
        written.group(step, "u", row(0, 1.0, replay), row(1, 0.0))
    assert overview_of(written)["replay"]["ages"] == []


def test_parts_of_a_step_add_up_to_it(made):
    made.metrics(4, timing_s__testing=30.0)
    overview = overview_of(made)
    assert {part["what"]: part["mean_s"] for part in overview["parts"]} == {
        "rollouts: desktops and generation": 6.0,
        "actor's update": 3.0,
        "everything else": 1.0,
        "validation, beside the steps": 30.0,
    }
    assert sum(part["share"] or 0.0 for part in overview["parts"]) == pytest.approx(1)
    slowest = {task["task_id"]: task["wall_s"] for task in overview["slowest"]}
    assert list(slowest.items()) == [("all tasks", 4.0), ("hard", 6.0), ("easy", 2.0)]


def test_charts_hold_what_is_not_always_zero(made):
    overview = overview_of(made)
    assert overview["steps"] == [1, 2, 3, 4]
    assert {name: list(chart["series"]) for name, chart in overview["charts"].items()} == {
        "groups": ["mixed", "all failed"],
        "replays": ["replays"],
        "time": ["rollouts: desktops and generation", "actor's update"],
        "stops": ["finished", "parse_error"],
        "faults": ["sessions dropped, for any reason", "desktops lost during an episode"],
    }
    assert overview["charts"]["groups"]["series"]["mixed"] == [1, 1, 2, 1]


def test_faults_are_counted_apart_from_drops(made):
    (made.folder(2, "torn") / "episode.json").write_text('{"task_id": ')
    faults = overview_of(made)["faults"]
    assert {fault["what"]: fault["count"] for fault in faults["kinds"] if fault["count"]} == {
        "sessions dropped, for any reason": 1,
        "desktops lost during an episode": 6,
    }
    assert (faults["total"], faults["retried"]) == (6, 5)
    assert list(faults["broken"]) == ["step_000002/torn"]
    made.metrics(5, environment__faults__unclear=2.0)  # which the policy may have caused
    faults = overview_of(made)["faults"]
    assert (faults["total"], faults["retried"]) == (8, 7)


def test_episodes_to_look_at_are_the_newest_failures_and_first_successes(made):
    samples = overview_of(made)["samples"]
    assert [(s["task_id"], s["step"], s["session"]) for s in samples["failures"]] == [("hard", 4, 1), ("easy", 4, 1)]
    assert [(s["task_id"], s["step"]) for s in samples["first_successes"]] == [("hard", 3), ("easy", 1)]
    sample = samples["first_successes"][0]
    assert (sample["screenshots"], sample["folder_files"]) == (["00.png", "01.png"],) * 2
    assert sample["turns"][1]["actions"][0]["point"] == [10, 20] and sample["advantage"] == 0.5


def test_long_turns_of_an_episode_to_look_at_are_cut(written):
    action = {"action": "TypeText", "text": "x" * 5000}
    turn = {"screenshot": 0, "thought": HOSTILE * 100, "actions": [action, *[{"action": "Wait"}] * 20]}
    written.episode(1, success=0.0, turns=[turn] * 20)
    (sample,) = overview_of(written)["samples"]["failures"]
    assert (len(sample["turns"]), sample["turns_left_out"]) == (12, 8)
    assert len(sample["turns"][0]["thought"]) == 400 and len(sample["turns"][0]["actions"]) == 7


def test_time_left_is_estimated_from_the_last_steps_where_the_total_is_known(made):
    start = {"time": 1_700_000_000, "versions": {}, "recipe": {}}
    (made.path / "starts.jsonl").write_text(json.dumps({**start, "total_steps": 10}) + "\n")
    assert overview_of(made)["left"] == {"total_steps": 10, "seconds": 60.0}
    (made.path / "starts.jsonl").write_text(json.dumps(start) + "\n")
    note_fault(made.path, "an engine died")
    note_start(made.path, OmegaConf.create())
    overview = overview_of(made)
    assert overview["left"] == {"total_steps": None, "seconds": None}
    assert [each["fault"] for each in overview["starts"]] == [None, "an engine died"]


def test_a_run_says_what_it_did_not_record(written):
    overview = overview_of(written)
    assert [sentence.split(":")[0].split()[-1].lower() for sentence in overview["missing"]] == [
        "versions",
        "metrics",
        "episodes",
    ]
    assert (overview["summary"], overview["tasks"], overview["steps"]) == (None, [], [])
    path = written.trajectories / written.episode(1) / "episode.json"  # an old one
    path.write_text(json.dumps({"task_id": "press-ok", "success": 0.5, "turns": [{"text": "x"}], "reward": 0.5}))
    written.metrics(1, rollout__success_mean=0.5, replay__injected=1.0, replay__groups_all_failed=1.0)
    overview = overview_of(written)
    assert "no groups.jsonl" in " ".join(overview["missing"])
    assert (overview["replay"]["injected"], overview["partial_scores"]) == (1, 1)


def test_a_run_that_starts_shows_its_phase_and_the_end_of_its_output(tmp_path):
    (tmp_path / "output.log").write_text("Started a local Ray instance.\n")
    feed = OverviewFeed(open_run(tmp_path))
    assert feed.document()["start"]["lines"] == ["Started a local Ray instance."] and feed.document()["missing"] == []
    (tmp_path / "pool.json").touch()
    assert feed.document()["start"]["phase"].startswith("boots its desktops")


@pytest.mark.parametrize("validation", [None, True])
def test_episodes_that_no_training_played_are_all_counted(written, validation):
    """As of `arpo-verl try` and of an evaluation: once there was a success, and none was recorded."""
    written.episode(0, success=1.0, validation=validation)
    overview = overview_of(written)
    assert (overview["trains"], overview["num_training"], overview["num_validation"]) == (False, 1, 0)
    assert [sample["task_id"] for sample in overview["samples"]["first_successes"]] == ["press-ok"]
    assert rate(overview["tasks"][0]["training"]) == (1, 1) and overview["missing"] == []


def test_odd_values_in_a_run_s_files_cost_themselves_and_not_the_overview(written):
    written.episode(1, started_at=1e18)
    for step in (1, 2):
        written.metrics(step, rollout__success_mean=1e308, replay__injected=10**400)
    (written.path / "starts.jsonl").write_text('{"time": 1}\n{"recipe": 5, "versions": {}}\n')
    assert [task["task_id"] for task in overview_of(written)["tasks"]] == ["press-ok"]


def test_the_feed_makes_the_overview_anew_only_when_the_run_has_changed(written, run):
    feed = OverviewFeed(run)
    written.episode(1)
    first = feed.document()
    assert first["num_training"] == 1 and feed.document()["made_at"] == first["made_at"]
    written.metrics(1, rollout__success_mean=0.5)
    assert feed.document()["summary"]["steps"] == 1
    written.episode(2)
    assert feed.document()["num_training"] == 2


# --- The file ----------------------------------------------------------------------------------------------------


def embedded(file):
    """What the page finds in the file: its documents and pictures."""
    text = file.read_text()
    data = text.partition('<script type="application/json" id="report">')[2].partition("</script>")[0]
    return json.loads(data)


@pytest.fixture
def report_of(tmp_path):
    """Write the report of a run; returns what the page finds in the file."""

    def write(written):
        report.write_report(open_run(written.path), tmp_path / "report.html")
        return embedded(tmp_path / "report.html")

    return write


def test_text_of_a_model_ends_no_script_of_the_file(written, tmp_path, report_of):
    written.episode(1, instruction=HOSTILE, success=0.0)
    (sample,) = report_of(written)["documents"]["api/overview"]["samples"]["failures"]
    assert sample["instruction"] == HOSTILE
    assert "window.ran=1</script>" not in (tmp_path / "report.html").read_text()


def test_screenshots_that_are_gone_or_torn_and_those_beyond_the_budget_are_left_out(made, monkeypatch, report_of):
    whole = report_of(made)["pictures"]
    for path in made.trajectories.glob("*/*/00.png"):
        path.unlink()
    for path in made.trajectories.glob("*/hard*/01.png"):
        path.write_bytes(b"torn")
    pictures = report_of(made)["pictures"]
    assert pictures and all("easy" in path and path.endswith("01.png") for path in pictures)
    assert len(pictures) < len(whole)
    most = sum(len(picture[0]) for picture in pictures.values()) // 2
    monkeypatch.setattr(report, "IMAGE_BYTES", most)
    kept = report_of(made)["pictures"]
    assert 0 < sum(len(picture[0]) for picture in kept.values()) <= most and len(kept) < len(pictures)


@pytest.mark.release
def test_the_file_stays_small_however_large_the_screenshots(written, tmp_path):
    for task in range(8):
        for success in (0.0, 1.0):
            episode = written.episode(1, f"t{task}", f"u{task}", int(success), success, screenshots=20)
            for number in range(20):
                (written.trajectories / episode / f"{number:02d}.png").write_bytes(NOISE)
    report.write_report(open_run(written.path), tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 5 * 1024**2


def test_metrics_without_a_recorded_episode_are_reported(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "data": {"rollout/success_mean": 0.25}}\n{"step": 2, "da')
    assert main(["report", str(tmp_path)]) == 0
    (step,) = embedded(tmp_path / "report.html")["documents"]["api/overview"]["success"]
    assert (step["measured"], rate(step["recorded"])) == (0.25, (0, 0))


def test_the_command_writes_where_it_is_told_and_says_so(made, tmp_path, capsys):
    out = tmp_path / "new" / "r.html"
    assert main(["report", str(made.path / "trajectories"), "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{out} (") and out.read_text().startswith("<!doctype html>")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("the report is looked at in Debian's chromium: make osworld-packages installs it")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


@pytest.mark.parametrize(
    "scheme, width",
    [
        ("light", 390),
        pytest.param("light", 1440, marks=pytest.mark.release),
        pytest.param("dark", 390, marks=pytest.mark.release),
        pytest.param("dark", 1440, marks=pytest.mark.release),
    ],
)
def test_the_file_opens_from_disk_asks_nobody_and_runs_nothing_of_a_run(made, tmp_path, browser, scheme, width):
    made.episode(4, "hostile", "x", 0, 0.0, instruction=HOSTILE, stop_reason=HOSTILE)
    report.write_report(open_run(made.path), tmp_path / "report.html")
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    page, asked, faults = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url.split(":")[0]))
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto((tmp_path / "report.html").as_uri())
    page.get_by_role("heading", name="Report: a-run").wait_for()
    page.get_by_role("img", name="Success: training: last 25%").wait_for()
    page.get_by_role("img", name="Screenshot 1 of 2 of task hard: click left at (10, 20)").first.wait_for()
    assert HOSTILE in page.inner_text("main") and page.evaluate("window.ran") is None
    assert faults == [] and asked[0] == "file" and set(asked) <= {"file", "data"}
    assert page.locator("a[href*='episode'], header nav a").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".chart canvas").count() == 6
    context.close()
