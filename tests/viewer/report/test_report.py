"""A run's report: what it says of a run that was written by hand, read back from the file."""

import io
import json
import shutil

import lxml.html
import numpy as np
import pytest
from PIL import Image

from arpo_verl.cli.main import main
from arpo_verl.records.run import open_run
from arpo_verl.viewer.report import content, samples, write_report
from arpo_verl.viewer.report.costs import step_parts
from arpo_verl.viewer.report.rates import Rate
from arpo_verl.viewer.report.replay import replay_effect

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


def report_of(made):
    return content.gather(open_run(made.path))


def page_of(made, file):
    write_report(open_run(made.path), file)
    return lxml.html.parse(str(file)).getroot()


def row(session, reward, replay=None):
    return {"session": session, "reward": reward, "advantage": 0.5, "replay": replay}


def text(element):
    return " ".join(" ".join(element.itertext()).split())


def rows(page, section):
    return [text(tr) for tr in page.xpath(f"//section[@id='{section}']//tr")]


def test_success_by_task_counts_training_and_validation_apart(made):
    hard, easy = report_of(made).tasks
    assert (hard.task_id, hard.training, hard.earlier, hard.later) == ("hard", Rate(1, 8), Rate(0, 4), Rate(1, 4))
    assert (easy.task_id, easy.training) == ("easy", Rate(4, 8))
    assert (hard.first_validation, hard.last_validation) == (Rate(0, 1), Rate(1, 1))


def test_success_by_step_and_validations(made):
    report = report_of(made)
    assert [(step.step, step.recorded, step.measured) for step in report.steps] == [
        (1, Rate(1, 4), 0.25),
        (2, Rate(1, 4), 0.25),
        (3, Rate(2, 4), 0.5),
        (4, Rate(1, 4), 0.25),
    ]
    assert [(step.step, step.recorded, step.measured) for step in report.validations] == [
        (0, Rate(0, 1), 0.0),
        (4, Rate(1, 1), 1.0),
    ]


def test_a_step_that_is_being_played_is_not_shown_as_one(made):
    made.episode(5, "easy", "e5", 0, 1.0)
    assert [step.step for step in report_of(made).steps] == [1, 2, 3, 4]


def test_replays_effect(made):
    effect = report_of(made).replay
    assert (effect.injected, effect.missed, effect.store_trajectories, effect.steps_with_replay) == (1, 2, 9, 1)
    assert effect.groups == {"all_failed": 3, "mixed": 5, "all_solved": 0}
    # As played: the four groups of `easy` and the one of `hard` in step 3; the replay adds the one of step 4.
    assert [(t.as_played, t.as_trained) for t in effect.teaching] == [(Rate(5, 8), Rate(6, 8))] * 2
    assert [(task.task_id, task.groups, task.replays) for task in effect.tasks] == [("hard", 4, 1)]
    assert effect.ages == [1]
    assert [(c.name, c.with_replays, c.without) for c in effect.compared] == [("critic/score/mean", 0.4, 0.2)]


def test_of_a_group_trained_on_twice_after_a_resume_the_later_counts(written):
    for step in (3, 4):
        written.folder(step, "u")
    written.group(3, "u", row(0, 1.0, {"step": 1, "uid": None, "session": None}), row(1, 0.0))
    written.group(4, "u", row(0, 0.0), row(1, 0.0))
    run = open_run(written.path)
    assert replay_effect(run.snapshot().index.groups(), [], run.metrics()).ages == []


def test_parts_of_a_step_add_up_to_it(made):
    made.metrics(4, timing_s__testing=30.0)
    report = report_of(made)
    parts = {part.what: part.mean_s for part in report.parts}
    assert parts == {
        "rollouts: desktops and generation": 6.0,
        "actor's update": 3.0,
        "everything else": 1.0,
        "validation, beside the steps": 30.0,
    }
    assert sum(part.share or 0.0 for part in step_parts(report.metrics)) == pytest.approx(1)
    assert [(task.task_id, task.wall_s) for task in report.slowest] == [
        ("all tasks", 4.0),
        ("hard", 6.0),
        ("easy", 2.0),
    ]


def test_faults_are_counted_and_told_apart_from_drops(made):
    made.pool(quarantined=["hard"])
    (made.folder(2, "torn") / "episode.json").write_text('{"task_id": ')
    faults = report_of(made).faults
    seen = {fault.what: fault.count for fault in faults.kinds if fault.count}
    assert seen == {
        "sessions dropped, whatever the reason": 1,
        "desktops lost during an episode": 6,
    }
    assert faults.retried == 5 and faults.quarantined == ["hard"] and list(faults.broken) == ["step_000002/torn"]


def test_episodes_to_look_at_are_rare_successes_and_unexpected_failures(made):
    chosen = report_of(made).samples
    assert [(s.episode.task_id, s.episode.step) for s in chosen.best] == [("hard", 3), ("easy", 4)]
    assert [(s.episode.task_id, s.episode.step, s.episode.reward) for s in chosen.worst] == [
        ("easy", 4, -1.0),
        ("hard", 4, 0.0),
    ]
    assert chosen.worst[1].replaced and chosen.best[0].advantage == 0.5


def test_the_page_says_it_in_tables_with_headers_and_pictures_with_words(made, tmp_path):
    page = page_of(made, tmp_path / "report.html")
    assert "hard Do hard. 1 of 8 12.5% 2–47% 0% → 25%" in rows(page, "tasks")
    assert "4 100.0% 1 of 1 100.0% 21–100%" in rows(page, "validation")
    assert "success with replays 6 of 8 75.0% 41–93%" in rows(page, "replay")
    assert "parse_error 25.0% 0 of 4 0.0% 0–49%" in rows(page, "stops")
    assert "desktops lost during an episode 6" in rows(page, "faults")
    assert "all tasks 16 4 s 1.5 s 2.5 s 2" in rows(page, "time")
    for table in page.xpath("//table[thead]"):
        assert table.xpath("./caption") and table.xpath("./thead//th[@scope='col']"), text(table)[:80]
        assert all(tr.xpath("./th[@scope='row']") for tr in table.xpath("./tbody/tr[not(td[@colspan])]"))
    pictures = page.xpath("//img")
    assert pictures and all(img.get("alt") == "Screenshot, before: Click (10, 20)" for img in pictures)
    assert all(figure.xpath("./div[@role='img' and @aria-label]/svg") for figure in page.xpath("//figure"))
    assert len(page.xpath("//figure")) == 4
    ids = page.xpath("//@id")
    assert len(ids) == len(set(ids))


def test_what_ran_is_read_from_the_runs_starts(made, tmp_path):
    start = {"time": 1_700_000_000, "versions": {"verl": "0.9.1", "vllm": None}, "recipe": {"replay.trigger": HOSTILE}}
    (made.path / "starts.jsonl").write_text(json.dumps(start) + "\n" + json.dumps({**start, "time": 1_700_000_100}))
    page = page_of(made, tmp_path / "report.html")
    ran = text(page.get_element_by_id("ran"))
    assert "verl 0.9.1." in ran and "vllm" not in ran and "starts 2: interrupted and resumed" in ran
    assert f"replay.trigger {HOSTILE}" in ran


def test_hostile_text_is_text(written, tmp_path):
    call = {"metric": HOSTILE, "result": HOSTILE, "expected": HOSTILE, "returned": "0"}
    action = {"action": HOSTILE, "text": HOSTILE, "point": [HOSTILE, 1], "keys": [HOSTILE]}
    turn = {"screenshot": 0, "text": HOSTILE, "thought": HOSTILE, "actions": [action, HOSTILE], "parse_error": HOSTILE}
    episode = written.episode(
        1, instruction=HOSTILE, task="x", success=0.0, stop_reason=HOSTILE, turns=[turn, HOSTILE], evaluator=[call]
    )
    path = written.trajectories / episode / "episode.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "task_id": HOSTILE}))
    written.metrics(1, **{f"rollout__stop__{HOSTILE}": 1.0, "rollout__success_mean": 0.0})
    page = page_of(written, tmp_path / "report.html")
    assert not page.xpath(
        "//script | //iframe | //object | //link | //@onerror | //img[not(starts-with(@src, 'data:'))]"
    )
    article = text(page.xpath("//article")[0])
    assert article.count("<script>window.ran=1</script>") >= 8 and "{{ 7 * 7 }}" in article and "49" not in article
    assert page.xpath("//article//img/@alt")[0].startswith("Screenshot, before: </code></style>")


def test_a_run_that_has_only_begun_says_what_is_missing(written, tmp_path):
    page = page_of(written, tmp_path / "report.html")
    notes = text(page.xpath("//div[@class='notes']")[0])
    assert "No recipe" in notes and "No metrics" in notes and "No episodes" in notes
    assert "No training step yet." in text(page.get_element_by_id("success"))
    assert "Not recorded" in text(page.get_element_by_id("faults"))


def test_an_old_run_without_groups_and_times_is_reported(written, tmp_path):
    episode = written.episode(1, success=0.5)
    path = written.trajectories / episode / "episode.json"
    kept = {"task_id": "press-ok", "success": 0.5, "turns": [{"text": "x"}], "reward": 0.5}
    path.write_text(json.dumps(kept))
    written.metrics(1, rollout__success_mean=0.5, replay__injected=1.0, replay__groups_all_failed=1.0)
    page = page_of(written, tmp_path / "report.html")
    notes = text(page.xpath("//div[@class='notes']")[0])
    assert "no groups.jsonl" in notes and "When episodes began" in notes
    assert "Replays injected: 1, in 1 of the steps" in text(page.get_element_by_id("replay"))
    assert "Episodes with a part of the score: 1." in text(page.get_element_by_id("success"))


def test_metrics_without_a_recorded_episode_are_reported(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "data": {"rollout/success_mean": 0.25}}\n{"step": 2, "da')
    assert main(["report", str(tmp_path)]) == 0
    page = lxml.html.parse(str(tmp_path / "report.html")).getroot()
    assert "1 25.0% 0 of 0 – –" in rows(page, "success")
    assert "No episode is recorded." in text(page.get_element_by_id("tasks"))


def test_screenshots_that_are_gone_or_torn_are_shown_as_gone(made, tmp_path):
    for path in made.trajectories.glob("*/*/00.png"):
        path.unlink()
    for path in made.trajectories.glob("*/*/01.png"):
        path.write_bytes(b"torn")
    page = page_of(made, tmp_path / "report.html")
    assert page.xpath("//div[@class='gone']") and page.xpath("//img")


@pytest.mark.release
def test_the_file_stays_small_however_large_the_screenshots(written, tmp_path):
    for task in range(8):
        for success in (0.0, 1.0):
            episode = written.episode(1, f"t{task}", f"u{task}", int(success), success, screenshots=20)
            for number in range(20):
                (written.trajectories / episode / f"{number:02d}.png").write_bytes(NOISE)
    file = tmp_path / "report.html"
    page = page_of(written, file)
    assert file.stat().st_size < 5 * 1024**2
    assert "8 more." in text(page.get_element_by_id("episodes"))
    assert len(page.xpath("//article[1]//li")) == samples.MAX_FRAMES


def test_pictures_beyond_the_budget_are_left_out(made, tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "IMAGE_BYTES", 2000)
    page = page_of(made, tmp_path / "report.html")
    assert sum(len(src) for src in page.xpath("//img/@src")) < 2500 and page.xpath("//div[@class='gone']")


def test_the_command_writes_where_it_is_told_and_says_so(made, tmp_path, capsys):
    out = tmp_path / "new" / "r.html"
    assert main(["report", str(made.path / "trajectories"), "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{out} (") and out.read_text().startswith("<!DOCTYPE html>")


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


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.release)])
def test_it_opens_from_disk_asks_nobody_and_is_readable(made, tmp_path, browser, scheme):
    page_of(made, tmp_path / "report.html")
    context = browser.new_context(color_scheme=scheme, viewport={"width": 700, "height": 900})
    page, asked, faults = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url.split(":")[0]))
    page.on("console", lambda message: faults.append(message.text))
    page.goto((tmp_path / "report.html").as_uri())
    assert faults == [] and asked[0] == "file" and set(asked) <= {"file", "data"}
    assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    lightness = "c => c.match(/[0-9.]+/g).slice(0, 3).reduce((sum, x) => sum + Number(x), 0) / 765"
    color = "getComputedStyle(document.querySelector('{}')).{}"
    ink = page.evaluate(f"({lightness})({color.format('section p, section td', 'color')})")
    line = page.evaluate(f"({lightness})({color.format('figure svg text', 'fill')})")
    paper = page.evaluate(f"({lightness})({color.format('body', 'backgroundColor')})")
    assert abs(ink - paper) > 0.6 and abs(line - paper) > 0.6 and (paper > 0.5) == (scheme == "light")
    context.close()


def test_odd_values_in_a_run_s_files_cost_themselves_and_not_the_report(written, run):
    written.episode(1, started_at=1e18)
    for step in (1, 2):
        written.metrics(step, rollout__success_mean=1e308, replay__injected=10**400)
    (written.path / "pool.json").write_text('{"quarantined": 5}')
    (written.path / "starts.jsonl").write_text('{"time": 1}\n{"recipe": 5, "versions": {}}\n')
    write_report(run, written.path / "report.html")
    assert "press-ok" in (written.path / "report.html").read_text()
