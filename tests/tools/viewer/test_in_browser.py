"""The page in a real Chromium, from the real server and from an export opened from disk."""

import io
import json
import re
import shutil

import pytest
from PIL import Image
from support.browser_run import HOSTILE_TASK, MARKUP, NUM_STEPS, make_run, play
from support.pictures import png
from support.viewer_run import ViewerRun
from support.viewer_server import served

playwright = pytest.importorskip("playwright.sync_api", reason='pip install "arpo-verl[dev]" brings playwright')
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("the page is tested in Debian's chromium: make osworld-packages installs it", allow_module_level=True)

from arpo_verl.records.jumps import Jump, append_jumps  # noqa: E402
from arpo_verl.records.run import open_run  # noqa: E402
from arpo_verl.records.runs import RunsFolder  # noqa: E402
from arpo_verl.tools.evaluation.folder import uid_of  # noqa: E402
from arpo_verl.tools.evaluation.report import write_report  # noqa: E402
from arpo_verl.tools.evaluation.results import Trial  # noqa: E402
from arpo_verl.tools.viewer.export import export_run  # noqa: E402

ARGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
PATIENCE_MS = 60_000
"""A busy machine's; what is there is seen at once."""
playwright.expect.set_options(timeout=PATIENCE_MS)
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
MISSING = "step_000001/none"
"""An episode that is not there: Chromium logs the server's answer, 404, as an error."""
RECORD_VIOLATIONS = "addEventListener('securitypolicyviolation', e => console.error('CSP', e.violatedDirective))"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("viewer") / "a-run")


@pytest.fixture(scope="module")
def server(made):
    """The server's address. What a test writes, the next ones would see: it takes `written` and `own_server`."""
    with served(open_run(made.run.path)) as address:
        yield address


@pytest.fixture
def own_server(written):
    """The address of a server of this test's own run, with one episode."""
    written.episode(1)
    with served(open_run(written.path)) as address:
        yield address


@pytest.fixture(scope="module")
def runs_server(tmp_path_factory):
    """The address of a server of a folder with two runs, of which the second is better and has a hostile name."""
    root = tmp_path_factory.mktemp("runs") / "runs"
    for number, name in enumerate(("arpo", f"grpo {MARKUP.replace('/', '')}")):
        run = ViewerRun(root / name)
        for step in (1, 2, 3):
            run.metrics(step, rollout__success_mean=0.2 * step + 0.1 * number, timing_s__step=60.0)
        for task in range(8):
            run.episode(3, f"task-{task}", "v", 0, float(task < 4 * number), validation=True)
    with served(RunsFolder(root)) as address:
        yield address


@pytest.fixture(scope="module")
def exported(made, tmp_path_factory):
    """The address of the run's export on disk."""
    run = open_run(made.run.path)
    return export_run(run, run.snapshot(), tmp_path_factory.mktemp("export"), progress=False).index.as_uri()


@pytest.fixture(scope="module")
def context():
    """One browser for all tests."""
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        context = chromium.new_context(viewport=WIDE)
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(RECORD_VIOLATIONS)
        yield context
        chromium.close()


@pytest.fixture
def page(context):
    """A tab that must neither log an error, nor break the content security policy, nor ask another host."""
    page, faults = context.new_page(), []
    page.on("request", lambda request: faults.extend([] if _is_local(request.url) else [request.url]))
    page.on("console", lambda message: faults.extend([message.text] if _is_fault(message) else []))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: (faults.append(f"dialog {dialog.message}"), dialog.dismiss()))
    yield page
    page.close()
    assert faults == []


def _is_local(url):
    return url.startswith(("http://127.0.0.1:", "file:", "data:"))


def _is_fault(message):
    return message.type == "error" and MISSING not in message.location["url"]


def see(page, selector, text):
    """Wait until an element shows the text."""
    playwright.expect(page.locator(selector).first).to_contain_text(text)


def rows(page):
    return page.locator(".episodes tbody tr")


def see_turns(page, *turns):
    """Wait until the episodes of a comparison, or the last ones of it, are at these turns, such as `3 of 7`."""
    steppers = page.locator(".side .stepper")
    for place, turn in enumerate(turns, start=2 - len(turns)):
        playwright.expect(steppers.nth(place)).to_contain_text(f"turn {turn}")


# --- The overview ------------------------------------------------------------------------------------------------


def test_the_run_opens_on_its_overview(server, made, page):
    page.goto(server)
    see(page, "h1", "Overview")
    see(page, ".tiles", "10.0% → 93.3%")
    page.get_by_role("img", name="Success: training: last 100%, least 3%, most 100%, 30 values").wait_for()
    playwright.expect(page.locator(".chart canvas")).to_have_count(1)  # of what this run did not log there is none
    see(page, "main", "Tasks that changed most")
    see(page, ".u-legend", "training100%")  # the last step's, while no mouse points at one
    page.get_by_role("link", name="plain-7").first.click()
    see(page, "h1", "plain-7")
    assert page.url.endswith("#/episode/step_000026/plain-7__p7_0")


@pytest.mark.release
def test_the_overview_s_details_have_their_tables(server, page):
    page.goto(server)
    page.get_by_text("Success by task: 12 tasks").click()
    row = page.locator("details[open] tbody tr", has_text="order-tea")
    playwright.expect(row).to_contain_text("1 of 4")
    playwright.expect(row).to_contain_text("25.0%")
    page.get_by_text("Faults", exact=True).click()
    see(page, "details[open] >> nth=1", "Not recorded")


def test_axes_fit_their_data(own_server, written, page):
    """A plot of one point had an axis to 100."""
    written.metrics(7, rollout__success_mean=0.5, loss=-3.0)
    page.goto(f"{own_server}#/metrics?q=loss")
    page.locator(".chart canvas").first.wait_for()
    ranges = page.evaluate("[[7, 7, -3, -3], [1, 9, 0, 0]].map(r => viewer.ui.rangesOf(...r))")
    assert ranges == [[[6, 8], [-3.3, -2.7]], [[1, 9], [-1, 1]]]
    assert page.evaluate("viewer.ui.rangeOf([7], (_, from, to) => [from - 1, to + 1])") == [6, 8]


# --- A folder of runs --------------------------------------------------------------------------------------------


def test_runs_are_picked_into_one_plot_and_paired(runs_server, page):
    page.goto(runs_server)
    see(page, ".counts", "2 runs.")
    see(page, ".runs tbody tr", "40.0%")
    for box in page.get_by_role("checkbox").all():
        box.check()
    page.get_by_role("img", name="rollout/success_mean: arpo: last 0.6, least 0.2, most 0.6, 3 values; grpo").wait_for()
    page.get_by_label("Along").select_option("hours")
    page.get_by_role("img", name="rollout/success_mean: arpo: last 0.6").wait_for()
    see(page, "main", "+50.0 points")
    see(page, "main", "The second is better on 4, worse on 0")
    page.reload()
    see(page, "main", "+50.0 points")
    page.get_by_role("link", name="arpo").click()
    see(page, "h1", "Overview")
    see(page, ".tiles", "40.0%these training steps, before any replay")
    page.get_by_role("link", name="Episodes").click()
    see(page, ".counts", "8 episodes")
    page.get_by_role("link", name="All runs").click()
    see(page, ".counts", "2 runs.")


@pytest.mark.release
def test_runs_are_walked_by_keyboard(runs_server, page):
    page.goto(runs_server)
    see(page, ".counts", "2 runs.")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    playwright.expect(page.get_by_role("link", name="arpo")).to_be_focused()
    page.keyboard.press("Enter")
    see(page, "h1", "Overview")


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.release)])
def test_the_runs_can_be_read_and_named(runs_server, page, scheme):
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{runs_server}#/runs?runs=arpo")
    page.locator(".chart canvas").wait_for()
    check_readable(page, "runs")
    assert page.evaluate("window.ran") is None and page.locator("main b:text-is('bold')").count() == 0


# --- The list ----------------------------------------------------------------------------------------------------


FILTERED = {
    "action=Drag": 1,
    "program=kettle": 5,
    "fault=format": 1,
    "replay=replaced": 1,
    "replay=took": 1,
    "kind=validation": 1,
    "stop=parse_error": 1,
    "task=plain-3": NUM_STEPS,
    "step=29-": 16,
    "task=order-tea&success=no": 3,
}


@pytest.mark.release
def test_list_shows_the_newest_episodes_counts_filters_and_sorts(server, made, page):
    page.goto(f"{server}#/episodes")
    see(page, ".counts", f"{made.num_episodes} episodes")
    assert rows(page).count() == 100
    assert f"{NUM_STEPS}" in rows(page).first.inner_text()
    page.get_by_role("button", name="Last").click()
    see(page, ".pager", "page 3 of 3")
    assert rows(page).count() == made.num_episodes - 200
    for query, count in FILTERED.items():
        page.goto(f"{server}#/episodes?{query}")
        see(page, ".counts", f"{count} episode")
        assert rows(page).count() == count, query
    page.goto(f"{server}#/episodes?task=order-tea")
    page.get_by_role("button", name="Advantage").click()
    playwright.expect(page.locator("th[aria-sort=descending]")).to_have_text(re.compile("Advantage"))
    assert "+1.00" in rows(page).first.inner_text()
    assert "–" in rows(page).last.inner_text()  # what has no value comes last either way
    page.get_by_role("button", name="Advantage").click()
    playwright.expect(rows(page).first).to_contain_text("−1.00")
    assert "–" in rows(page).last.inner_text()


@pytest.mark.release
def test_filters_live_in_the_address(server, page):
    page.goto(f"{server}#/episodes")
    page.get_by_label("Training steps").fill("2-5")
    page.get_by_label("Result").select_option("yes")
    page.get_by_label("Search").fill("TEA milk")
    see(page, ".counts", "1 episode of")
    assert page.url.endswith("#/episodes?step=2-5&success=yes&q=TEA+milk")
    page.reload()
    see(page, ".counts", "1 episode of")
    assert page.get_by_label("Training steps").input_value() == "2-5"
    page.get_by_role("button", name="Clear").click()
    see(page, ".pager", "page 1 of 3")


def test_what_the_agent_wrote_is_searched(server, made, page):
    page.goto(f"{server}#/episodes")
    page.get_by_label("Search").fill("milk please")  # typed, in one episode alone
    see(page, ".counts", "1 episode of")
    playwright.expect(rows(page)).to_have_count(1)
    see(page, ".hit", "turn 6: ")
    assert page.locator(".hit mark").all_inner_texts() == ["milk", "please"]
    rows(page).first.get_by_role("link").click()
    see(page, ".crumbs", "1 of 1 episode")
    assert made.winner in page.url and "turn=6" in page.url
    playwright.expect(page.locator(".turn figcaption mark")).to_have_text(["milk", "please"])
    page.goto(f"{server}#/episode/{made.winner}?q=milk")  # as the next of a search is opened
    see(page, ".stepper", "turn 6 of 7")
    playwright.expect(page.locator(".film mark")).to_have_count(1)


def test_a_search_over_all_runs_leads_to_a_runs_episodes(runs_server, seen):
    page = seen
    page.goto(runs_server)
    page.get_by_label("Search all runs").fill("task-3")
    found = page.locator(".runs tbody tr td:nth-child(3)")
    playwright.expect(found).to_have_text(["1 episode", "1 episode"])
    check_readable(page, "runs")
    found.first.get_by_role("link").click()
    see(page, ".counts", "1 episode of 8")
    assert page.url.endswith("/run/arpo/#/episodes?q=task-3")


# --- One episode -------------------------------------------------------------------------------------------------


@pytest.mark.release
def test_keyboard_opens_steps_and_goes_back(server, made, page):
    page.goto(f"{server}#/episodes?task=order-tea&sort=step")
    see(page, ".counts", "5 episodes")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    see(page, ".stepper", "turn 1 of 7")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("j")
    see(page, ".stepper", "turn 3 of 7")
    page.keyboard.press("ArrowLeft")
    see(page, ".stepper", "turn 2 of 7")
    page.keyboard.press("n")
    see(page, ".crumbs", "3 of 5 episodes")
    page.keyboard.press("p")
    see(page, ".crumbs", "2 of 5 episodes")
    page.keyboard.press("?")
    playwright.expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    playwright.expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("Escape")
    see(page, "h1", "Episodes")
    assert page.url.endswith("#/episodes?task=order-tea&sort=step")


def test_click_is_marked_where_it_went(server, made, page):
    page.goto(f"{server}#/episode/{made.winner}?turn=7")  # without a mark on the target
    page.wait_for_function("() => document.querySelector('.turn img')?.naturalWidth === 640")
    page.evaluate("document.querySelector('.turn img').decode()")  # else it may not be painted yet
    target = _centre_of_red(Image.open(io.BytesIO(page.screenshot())).convert("RGB"), page.locator(".turn .shot img"))
    page.goto(f"{server}#/episode/{made.winner}?turn=1")
    mark = page.locator(".turn circle").first.bounding_box()
    assert [mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2] == pytest.approx(target, abs=1)


def _centre_of_red(picture, image):
    """The centre of an image's red pixels, as the browser drew it, in the window's pixels."""
    box = image.bounding_box()
    xs, ys = (range(int(box[side]), int(box[side] + box[length])) for side, length in (("x", "width"), ("y", "height")))
    red = [(x, y) for x in xs for y in ys if _is_red(picture.getpixel((x, y)))]
    return [sum(axis) / len(red) + 0.5 for axis in zip(*red, strict=True)]


def _is_red(pixel):
    return pixel[0] > 150 and max(pixel[1:]) < 60


@pytest.mark.release
def test_actions_are_told_and_drawn_apart(server, made, page):
    page.goto(f"{server}#/episode/{made.winner}")
    marks, said = page.locator(".turn .shot svg"), page.locator(".turn figcaption")
    marks.wait_for()  # they need the screenshot's size
    drawn = {}
    for turn in range(1, 8):
        see(page, ".stepper", f"turn {turn} of 7")
        drawn[turn] = (marks.inner_html(), said.inner_text())
        page.keyboard.press("ArrowRight")
    assert drawn[1][0].count("<circle") == 2 and "click left at (480, 380)" in drawn[1][1]
    assert drawn[2][0].count("<circle") == 4 and "2× left" in drawn[2][0] and "double click" in drawn[2][1]
    assert "<rect" in drawn[3][0] and ">right<" in drawn[3][0]
    assert "drag" in drawn[4][0] and "from (100, 120) to (400, 300)" in drawn[4][1]
    assert "scroll 3" in drawn[5][0] and "stroke-dasharray" in drawn[5][0]  # where the drag had left the pointer
    assert "milk, please⏎" in drawn[6][1] and "ctrl + s" in drawn[6][1]
    assert "finished" in drawn[7][1]
    assert len({picture for picture, _ in list(drawn.values())[:5]}) == 5


def test_episode_tells_verdict_timings_and_group(server, made, page):
    page.goto(f"{server}#/episode/{made.winner}?turn=2")
    see(page, ".verdict", "exact_match returned 1.0")
    see(page, ".verdict", "'milk\\n'")
    see(page, ".verdict", "{'expected': 'tea'}")
    see(page, ".by-turn tr.current", "20.25 s0.50 s")
    assert page.locator(".context, .seen, .left, .begins").count() == 0, "of one row nothing is said"
    see(page, ".details tr.self", "session 1, this")
    see(page, ".details tr.self", "+1.00")
    image = page.locator(".turn .shot img")
    assert image.get_attribute("alt") == "Screenshot 2 of 7 of task order-tea: double click left at (480, 380)"
    playwright.expect(image).to_have_js_property("naturalWidth", 640)


VIEWS = [
    pytest.param((WIDE, "light"), id="wide-light"),
    pytest.param((NARROW, "dark"), id="narrow-dark"),
    pytest.param((WIDE, "dark"), id="wide-dark", marks=pytest.mark.release),
    pytest.param((NARROW, "light"), id="narrow-light", marks=pytest.mark.release),
]


@pytest.fixture(params=VIEWS)
def seen(request, page):
    """The page on a desk or a phone, light or dark."""
    size, scheme = request.param
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=scheme)
    return page


def test_the_lens_shows_what_is_under_the_pointer_without_a_mark_upon_it(server, made, seen):
    page = seen
    page.goto(f"{server}#/episode/{made.winner}?turn=4")  # a drag from (100, 120)
    lens = page.locator(".lens img")
    lens.wait_for()
    assert _centre_of(lens) == pytest.approx((100.5, 120.5))
    assert lens.get_attribute("alt").startswith("Enlarged: Screenshot 4 of 7")
    shot = page.locator(".turn .shot")
    box = shot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 4)
    page.wait_for_function("() => !document.querySelector('.lens img').style.transform.includes('-100.5px')")
    assert _centre_of(lens) == pytest.approx((320.5, 120.5), abs=3)
    page.mouse.move(0, 0)
    page.wait_for_function("() => document.querySelector('.lens img').style.transform.includes('-100.5px')")
    frame, said = page.locator(".lens").bounding_box(), page.locator(".turn .actions").bounding_box()
    assert said["x"] >= frame["x"] + frame["width"] or said["y"] >= frame["y"] + frame["height"]


def _centre_of(lens):
    """The pixel of the screen that is in the middle of the lens."""
    return [-float(number) for number in re.findall(r"(-?[\d.]+)px", lens.evaluate("e => e.style.transform"))]


def test_tokens_are_coloured_by_probability_and_by_the_ratio(server, made, seen):
    page = seen
    page.goto(f"{server}#/episode/{made.winner}")
    tokens = page.locator(".tokens span")
    playwright.expect(tokens).to_have_count(9)
    assert "".join(tokens.all_inner_texts()) == "Action: click(...)<|im_end|>"
    see(page, ".token-facts", "Least likely: “<|im_end|>” 4.1%")
    shades = [tokens.nth(i).evaluate("e => getComputedStyle(e).backgroundColor") for i in (0, 2, 8)]
    assert len(set(shades)) == 3 and shades[0] == "rgba(0, 0, 0, 0)"
    tokens.last.click()
    see(page, ".token-facts", "“<|im_end|>”: probability 4.1% (log-prob -3.20); when trained -2.90, ratio 1.35")
    page.get_by_label("Colour by").select_option("ratio, training step 1")
    playwright.expect(tokens.first).to_have_class("shade-2")
    page.keyboard.press("Escape")
    see(page, ".reply-head", "9 tokens, advantage +1.00")
    table = page.locator(".by-turn tbody tr")
    assert table.count() == 7
    playwright.expect(table.first).to_contain_text("9")
    playwright.expect(table.first).to_contain_text("−1.60")
    page.get_by_role("button", name="Turn 6").click()
    see(page, ".stepper", "turn 6 of 7")
    check_readable(page, "episode")


@pytest.mark.release
def test_a_token_of_a_record_is_text_and_an_odd_list_is_none(own_server, written, page):
    texts = [MARKUP, "</span><script>window.ran=1</script>", "\u202e", ""]
    many = {"token_ids": [1] * 20_000, "texts": ["word "] * 20_000, "log_probs": [-1e99] * 20_000}
    turns = [{"screenshot": i, "text": "reply", "actions": []} for i in range(3)]
    id = written.episode(31, "odd", turns=turns)
    odd = {"token_ids": [1] * 4, "texts": texts, "log_probs": [None, 5, -1e99, None]}
    written.tokens(id, [odd, {"token_ids": [], "texts": ["a"]}, many], {"step": 2, "log_probs": [0] * 20_004})
    page.goto(f"{own_server}#/episode/{id}")
    see(page, ".tokens", MARKUP)
    page.get_by_label("Colour by").select_option("ratio, training step 2")
    page.keyboard.press("Escape")
    page.goto(f"{own_server}#/episode/{id}?turn=2")
    see(page, ".beside pre", "reply")
    page.goto(f"{own_server}#/episode/{id}?turn=3")
    playwright.expect(page.locator(".tokens span")).to_have_count(20_000)
    written.tokens(id, {"replies": "none"})
    page.reload()
    see(page, ".beside pre", "reply")
    assert page.evaluate("window.ran") is None


@pytest.mark.release
def test_an_episode_is_downloaded_as_a_moving_picture(server, made, page):
    page.goto(f"{server}#/episode/{made.winner}")
    with page.expect_download() as download:
        page.get_by_role("link", name="GIF").click()
    picture = Image.open(download.value.path())
    assert (picture.format, picture.n_frames) == ("GIF", 7)
    assert download.value.suggested_filename.startswith("order-tea")


@pytest.mark.release
def test_replay_links_lead_to_the_other_episode(server, made, page):
    page.goto(f"{server}#/episode/{made.replaced}")
    see(page, ".message", "this episode was replaced by the episode of training step 1")
    page.get_by_role("link", name="Compare with the success").click()
    see(page, "h1", "Compare")
    linked = page.url
    page.keyboard.press("Escape")
    see(page, ".message", "this episode was replaced by the episode of training step 1")
    page.keyboard.press("c")
    page.wait_for_url(linked)
    page.goto(f"{server}#/episode/{made.replaced}")
    page.get_by_role("link", name="the episode of training step 1").click()
    see(page, ".message", "This success took the place of 1 episode: the episode of training step 2")
    page.goto(f"{server}#/episode/{made.replaced}")
    see(page, ".details tr.self", "0.00 → 1.00")
    page.get_by_role("link", name="replaced by training step 1").click()
    see(page, ".stepper", "turn 1 of 7")


def places(page):
    """Of each screenshot in the film strip, the number as shown: those that the model saw, and those that had left."""
    classes = page.locator(".film button").evaluate_all("buttons => buttons.map(b => b.className)")
    return tuple([i for i, name in enumerate(classes, 1) if name == wanted] for wanted in ("seen", "left"))


@pytest.mark.release
def test_what_the_model_saw_and_where_a_row_begins_is_marked(server, made, page):
    page.goto(f"{server}#/episode/{made.windowed}?turn=2")
    see(page, ".context", "The model saw screenshots 1–2 of 2; row 1 of 6.")
    assert places(page) == ([1, 2], [])
    page.keyboard.press("j")
    page.keyboard.press("ArrowRight")
    see(page, ".context", "The model saw screenshots 2–4 of 4, and reply 1 as text; row 2 of 6.")
    assert places(page) == ([2, 3, 4], [1])
    page.keyboard.press("End")
    see(page, ".context", "The model saw screenshots 6–8 of 8, and replies 1–5 as text; row 6 of 6.")
    see(page, "[role=status]", "Turn 8 of 8: click left at (480, 380). The model saw screenshots 6–8 of 8")
    assert places(page) == ([6, 7, 8], [1, 2, 3, 4, 5])
    dimmed = page.locator(".film .left .shot").first.evaluate("shot => getComputedStyle(shot).opacity")
    assert float(dimmed) < 0.5
    see(page, ".details", "2400 in the prompt, 1500 in the response, 6 rows together")
    page.goto(f"{server}#/episode/{made.segmented}?turn=5")
    see(page, ".context", "The model saw screenshots 4–5 of 5, and replies 1–3 as text; row 2 of 3.")
    begins = page.locator(".film li.begins").all_inner_texts()
    assert [" ".join(text.split()[:3]) for text in begins] == ["1 row 1", "5 row 2", "8 row 3"]


# What of the context is told of turns and rows as a broken record may have them: of each turn, first, newest and row.
ODD_CONTEXTS = [
    ([{"first_screenshot": -1}, {"first_screenshot": 9}], [], [[0, 0, None], [1, 1, None]]),
    ([{"first_screenshot": True}, {"first_screenshot": 1.5}, {"first_screenshot": "1"}], "none", []),
    ([{}, None, {"first_screenshot": 1}], [{"first_screenshot": 0}], [[0, 0, None], None, [1, 2, None]]),
    ([{}, {}], [{"first_screenshot": 0, "num_screenshots": 1}] * 2, []),
    ([{}, {}], [None, 3, "row"], []),
    ([{}, {}], [{"first_screenshot": 0, "num_screenshots": n} for n in (1, 2)], [[0, 0, 0], [0, 1, 1]]),
]


@pytest.mark.release
def test_what_of_an_episode_is_missing_is_told(server, own_server, made, written, page):
    page.goto(f"{server}#/episode/{made.bare}")
    see(page, ".turn .shot", "screenshot not kept")
    see(page, ".turn figcaption", "click left at (100, 100)")
    assert page.locator("img").count() == 0
    page.goto(f"{server}#/episode/{MISSING}")
    see(page, ".message", f"Could not read the episode: this run has no episode {MISSING}")
    written.episode(31, "odd", turns=[{"screenshot": 0}, {"actions": [{"action": "constructor"}]}], image_size=None)
    page.goto(f"{own_server}#/episode/step_000031/odd__u1_0?turn=2")
    see(page, "h1", "odd")
    see(page, ".stepper", "turn 2 of")
    page.goto(f"{own_server}#/metrics")
    see(page, "h1", "Metrics")


# --- The other pages ---------------------------------------------------------------------------------------------


@pytest.mark.release
def test_compare_steps_both_or_one(server, made, page):
    page.goto(f"{server}#/compare/{made.replaced}?with={made.winner}")
    see_turns(page, "1 of 2", "1 of 7")
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    see_turns(page, "2 of 2", "3 of 7")  # the shorter one waits at its end
    for key in ("l", "s", "ArrowRight"):
        page.keyboard.press(key)
    see_turns(page, "2 of 2", "4 of 7")
    assert "free=1" in page.url
    right = page.locator(".side").nth(1)
    right.get_by_label("Right").select_option(index=0)
    playwright.expect(right.locator(".badge").first).to_contain_text("failure")
    page.goto(f"{server}#/compare/{made.replaced}")  # one that ended otherwise is suggested
    playwright.expect(page.locator(".side").nth(1).locator(".badge").first).to_contain_text("success")


def test_compare_marks_the_first_difference_and_goes_there(server, made, seen):
    page = seen
    page.goto(f"{server}#/compare/{made.replaced}?with={made.winner}&at=7")
    see(page, "main", "First difference: left turn 1, right turn 1: the same screen, another action.")
    playwright.expect(page.locator(".aligned button")).to_have_count(7)
    see_turns(page, "7 of 7")
    page.keyboard.press("d")
    see_turns(page, "1 of 7")
    page.get_by_role("button", name="left turn 2, right turn 3: the same screen").click()
    see_turns(page, "3 of 7")
    assert page.url.endswith("&at=3")
    see(page, ".side", "reward 0.00, a replay took its place")
    check_readable(page, "compare")


@pytest.mark.release
def test_two_attempts_are_aligned_by_their_screens(own_server, written, page):
    """The second waits once; then it sees what the first one saw a turn before."""
    first, second = (written.episode(2, uid=uid, screenshots=count) for uid, count in (("a", 3), ("b", 4)))
    for episode, colors in ((first, ("white", "navy", "green")), (second, ("white", "white", "navy", "maroon"))):
        for number, color in enumerate(colors):
            (written.trajectories / episode / f"{number:02d}.png").write_bytes(png(color))
    page.goto(f"{own_server}#/compare/{first}?with={second}")
    playwright.expect(page.locator(".aligned button")).to_have_text(["1 = 1", "1 = 2", "2 = 3", "3 ≠ 4"])
    see(page, "main", "First difference: left turn 3, right turn 4: the screens differ, after the same actions.")
    page.keyboard.press("d")
    see_turns(page, "3 of 3", "4 of 4")
    page.keyboard.press("l")
    page.keyboard.press("ArrowLeft")
    see_turns(page, "2 of 3", "4 of 4")
    assert "free=1" in page.url
    page.keyboard.press("l")
    see_turns(page, "2 of 3", "3 of 4")


ALIKE = [
    ([{"action": "Click", "point": [10, 10]}], [{"action": "Click", "point": [17, 17]}], True),
    ([{"action": "Click", "point": [10, 10]}], [{"action": "Click", "point": [17, 18]}], False),
    ([{"action": "Click", "point": [10, 10]}], [{"action": "Move", "point": [10, 10]}], False),
    ([{"action": "TypeText", "text": "a"}], [{"action": "TypeText", "text": "b"}], False),
    ([{"action": "Click", "point": None}], [{"action": "Click"}], True),
    ([], [], True),
    ("odd", [None], False),
    ([None, 7], [None, 7], True),
]


@pytest.mark.release
def test_functions_of_the_page(server, page):
    page.goto(server)
    for one, other, alike in ALIKE:
        turns = [{"actions": one}, {"actions": other}]
        assert page.evaluate("([a, b]) => viewer.actions.alike(a, b)", turns) is alike, turns
    for turns, rows, told in ODD_CONTEXTS:
        turns = [None if turn is None else {"screenshot": i, **turn} for i, turn in enumerate(turns)]
        contexts = page.evaluate("episode => viewer.context.contextsOf(episode)", {"turns": turns, "rows": rows})
        assert [context and [context[name] for name in ("first", "newest", "row")] for context in contexts] == told
    for last, count, first in [(1, 1, [1, 1]), (40, 40, [1, 1]), (41, 21, [1, 2]), (999, 20, [1, 50])]:
        bins = page.evaluate("last => viewer.binsOf([1, last])", last)
        assert (len(bins), bins[0], bins[-1][1]) == (count, first, last)


@pytest.mark.release
def test_the_mark_of_a_task_whose_success_jumped_opens_the_first_success(own_server, written, page):
    written.episode(4, "worked-around", "u4", session=2)
    append_jumps(written.trajectories / "jumps.jsonl", [Jump("worked-around", 4, 8, "u4", 2)])
    page.goto(f"{own_server}#/heatmap?order=jump")
    see(page, ".heat tbody tr", "▲ 4")
    page.get_by_role("link", name="worked-around: all attempts of training step 4 succeed").click()
    see(page, "h1", "worked-around")


@pytest.mark.release
def test_heat_map_cell_opens_its_episodes(server, page):
    page.goto(f"{server}#/heatmap")
    playwright.expect(page.locator("h1")).to_be_focused()
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    cell = page.get_by_role("link", name="order-tea, training step 1: mean success 0.50 of 2 episodes")
    cell.focus()
    see(page, ".counts", "mean success 0.50 of 2 episodes")
    page.keyboard.press("ArrowRight")
    see(page, ".counts", "order-tea, training step 2: mean success 0.00 of 2 episodes")
    page.keyboard.press("Enter")
    see(page, ".counts", "2 episodes of")
    page.goto(f"{server}#/heatmap?kind=validation")
    see(page, ".heat tbody", "order-tea")
    assert page.locator(".heat tbody tr").count() == 1


@pytest.mark.release
def test_metrics_are_drawn_and_found(server, page):
    page.goto(f"{server}#/metrics")
    see(page, ".charts", "val-core/embedded/acc/mean@1")
    page.locator(".chart canvas").first.wait_for()
    label = page.locator(".chart [role=img]").first.get_attribute("aria-label")
    assert label == "val-core/embedded/acc/mean@1: last 1, least 0.1667, most 1, 6 values"
    page.get_by_label("Search").fill("entropy")
    see(page, ".counts", "1 curve of 3")
    page.get_by_label("Group").select_option("val")
    see(page, ".counts", "1 curve of 3")
    assert page.url.endswith("#/metrics?group=val")
    assert page.get_by_role("link", name="Evaluation").count() == 0, "the run is none"


def test_live_page_and_open_list_follow_what_is_written(own_server, written, page):
    page.goto(f"{own_server}#/live")
    see(page, ".empty", "No desktop is in an episode now.")
    play(written, turns=1)
    see(page, ".running", "turn 1")
    see(page, ".counts", "3 desktops: 1 booting, 1 busy, 1 idle · 1 episode waits")
    play(written, turns=2, task_id=HOSTILE_TASK)
    see(page, ".running", "turn 2")
    playwright.expect(page.locator(".running img")).to_have_attribute("src", re.compile(r"02\.png\?n=2$"))
    see(page, ".running h3", MARKUP)
    page.goto(f"{own_server}#/episodes?task=late")
    see(page, ".empty", "No episode")
    written.episode(31, "late")
    see(page, ".counts", "1 episode of")


# --- Exports, hostile text, accessibility ------------------------------------------------------------------------


def test_export_opens_from_disk(exported, made, page):
    page.goto(f"{exported}#/episodes?task=order-tea")
    see(page, ".counts", "5 episodes")
    page.goto(f"{exported}#/episode/{made.winner}?turn=3")
    see(page, ".turn figcaption", "click right")
    page.wait_for_function("() => document.querySelector('.turn img')?.naturalWidth === 640")
    page.goto(f"{exported}#/metrics")
    page.locator(".chart canvas").first.wait_for()
    assert page.get_by_role("link", name="Live").count() == 0


@pytest.mark.parametrize("source", ["server", "exported"])
def test_hostile_text_stays_text(source, made, page, request):
    base = request.getfixturevalue(source)
    page.goto(f"{base}#/episode/{made.hostile}")
    for selector in ("h1", ".task", ".thought", ".tokens", ".beside pre", ".verdict", ".turn figcaption", ".details"):
        see(page, selector, MARKUP)
    page.keyboard.press("ArrowRight")
    see(page, ".turn figcaption", f"expected a call, got {MARKUP}")
    page.goto(f"{base}#/episodes?stop=parse_error")
    see(page, ".episodes tbody", MARKUP)
    page.goto(f"{base}#/heatmap")
    see(page, ".heat tbody", MARKUP)
    page.goto(f"{base}#/compare/{made.hostile}")
    see(page, ".task", MARKUP)
    assert page.evaluate("window.ran") is None
    assert page.locator("main b:text-is('bold'), main img[src=x], main script").count() == 0


PAGES = [
    "overview",
    "episodes",
    "episode/{winner}",
    "episode/{hostile}",
    "episode/{windowed}?turn=8",
    "compare/{replaced}",
    "heatmap",
    "frontier",
    "metrics",
    "live",
]

NAMELESS = """() => [...document.querySelectorAll('button, a[href], input, select, img, [role=img]')]
    .filter(e => !(e.getAttribute('aria-label') || e.alt || e.textContent.trim() || e.labels?.[0]?.textContent.trim()))
    .map(e => e.outerHTML)"""

CONTRASTS = """() => {
    const linear = v => v <= 10 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => .2126 * linear(r) + .7152 * linear(g) + .0722 * linear(b);
    const rgba = text => (text.match(/[\\d.]+/g) || []).map(Number);
    const back = e => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor);
                        if (c.length === 3) return c; } return [255, 255, 255]; };
    const [found, seen] = [[], new Set()];
    for (const e of document.querySelectorAll('main *, header *')) {
        const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
        const kind = [e, e.parentElement, e.parentElement.parentElement].map(p => p.tagName + p.className).join();
        if (!own || seen.has(kind) || e.closest('svg, .uplot, :disabled, option, .hidden')) continue;
        seen.add(kind);
        const [a, b] = [light(rgba(getComputedStyle(e).color)), light(back(e))].sort((x, y) => y - x);
        found.push([(a + .05) / (b + .05), e.className + ': ' + e.textContent.slice(0, 30)]);
    }
    return found;
}"""


def check_readable(page, name):
    """All has a name, contrast and, on a phone and on a desk, no need to scroll sideways."""
    assert page.evaluate(NAMELESS) == []
    assert [pair for pair in page.evaluate(CONTRASTS) if pair[0] < 4.5] == []
    for size in (NARROW, WIDE):
        page.set_viewport_size(size)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], (name, size)


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.release)])
def test_every_page_can_be_read_and_named(server, made, page, scheme):
    page.emulate_media(color_scheme=scheme)
    names = {name: getattr(made, name) for name in ("winner", "hostile", "replaced", "windowed")}
    backs = set()
    for name in PAGES:
        page.goto(f"{server}#/{name.format(**names)}")
        page.locator("main h1").wait_for()
        page.wait_for_function("() => !document.querySelector('.waiting')")
        assert page.evaluate("document.title").endswith("a-run")
        check_readable(page, name)
        backs.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert backs == {"rgb(255, 255, 255)" if scheme == "light" else "rgb(15, 20, 26)"}


@pytest.mark.release
def test_reader_chooses_the_theme(server, page):
    page.goto(server)
    see(page, "h1", "Overview")
    page.get_by_role("button", name="Theme: as the system").click()
    page.keyboard.press("t")
    page.get_by_role("button", name="Theme: dark").wait_for()
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 20, 26)"
    page.evaluate("localStorage.clear()")


@pytest.mark.release
def test_list_is_found_as_it_was_left(server, made, page):
    page.goto(f"{server}#/episodes")
    rows(page).nth(60).get_by_role("link").click()
    see(page, ".stepper", "turn 1 of 2")
    assert page.evaluate("scrollY") == 0
    page.keyboard.press("Escape")
    playwright.expect(rows(page).nth(60).get_by_role("link")).to_be_focused()
    playwright.expect(rows(page).nth(60)).to_be_in_viewport()


@pytest.mark.release
def test_episode_plays_by_itself(server, made, page):
    page.goto(f"{server}#/episode/{made.winner}")  # of so many steps that who looks late sees it play too
    see(page, ".stepper", "turn 1 of 7")
    page.keyboard.press("Space")
    playwright.expect(page.get_by_role("button", name="Pause")).to_be_visible()
    see(page, ".stepper", "turn 7 of 7")
    playwright.expect(page.get_by_role("button", name="Play")).to_be_visible()


# --- Frontier sampling -------------------------------------------------------------------------------------------


@pytest.mark.release
@pytest.mark.release
def test_the_frontier_shows_each_task_and_how_often_it_is_drawn(server, page):
    page.goto(server)
    page.get_by_role("link", name="Frontier").click()
    see(page, ".counts", "3 tasks, 24 groups drawn")
    rows = page.locator(".frontier tbody tr")
    playwright.expect(rows.first).to_contain_text("plain-2")
    page.get_by_role("img", name="0.45, between 0.20 and 0.80").wait_for()
    page.get_by_label("Order").select_option("hard")
    playwright.expect(rows.first).to_contain_text(MARKUP)
    page.get_by_role("link", name="plain-2").click()
    see(page, "h1", "Episodes")


# --- An evaluation -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    """The address of the export of an evaluation: three tasks, two budgets, a run that a fault left out."""
    written = ViewerRun(tmp_path_factory.mktemp("evaluation") / "warm-start")
    tasks = [{"task_id": name, "domain": domain} for name, domain in (("a", "os"), ("b", "os"), ("c", MARKUP))]
    settings = {"max_steps": [1, 15], "policy": {"model": "m"}}
    (written.path / "evaluation.json").write_text(json.dumps({"settings": settings, "tasks": tasks}))
    for task in tasks:
        for run in range(4):
            success = float(run < {"a": 3, "b": 0}.get(task["task_id"], 1))
            if (task["task_id"], run) != ("b", 3):
                uid = uid_of(Trial(task["task_id"], run, 15))
                written.episode(0, task["task_id"], uid=uid, session=run, success=success, screenshots=1)
    write_report(written.path)
    run = open_run(written.path)
    return export_run(run, run.snapshot(), tmp_path_factory.mktemp("exported"), progress=False).index.as_uri()


@pytest.mark.release
def test_an_evaluation_has_its_table_and_each_run_opens_its_episode(evaluation, page):
    page.goto(evaluation)
    page.get_by_role("link", name="Evaluation").click()
    see(page, ".evaluation .overall", "33.3%")
    assert page.locator(".evaluation tbody tr").count() == 3
    assert page.locator(".heat tbody tr").count() == 3
    page.get_by_label("Order of tasks").select_option("hard")
    see(page, ".heat tbody tr", "b")
    page.get_by_label("Turns at most").select_option("1")
    assert page.url.endswith("#/evaluation?order=hard&budget=1")
    page.get_by_role("link", name="a, run 3: score 0.00, finished").click()
    see(page, "h1", "a")
    assert "#/episode/" in page.url
