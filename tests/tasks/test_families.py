"""Generated tasks: the same everywhere, apart by split, and on real desktops solved by the expert alone."""

import hashlib
import io
import itertools
import json

import pytest
from PIL import Image

from arpo_verl.agent.actions.ui_tars import parse_reply
from arpo_verl.errors import TaskError
from arpo_verl.tasks import load_tasks
from arpo_verl.tasks.families import SCREEN, SPLITS, generate, replies_of, write
from arpo_verl.tasks.families.__main__ import main
from arpo_verl.tasks.families.kinds import FAMILIES, HELD_OUT_FAMILIES, LONG_FAMILIES
from arpo_verl.tasks.families.styles import HELD_OUT_THEMES, HELD_OUT_WORDS, SIZES, THEMES, TRAINING_WORDS, WORDS
from arpo_verl.tasks.families.windows import _TITLE, LEAST_WIDTH
from arpo_verl.tasks.programs import programs_of
from arpo_verl.types import Click, Finish, Point

COUNT = 60
TASKS = {split: [generate(split, index) for index in range(COUNT)] for split in SPLITS}
ALL = [task for tasks in TASKS.values() for task in tasks]
SHORT = [task for task in ALL if task.family not in LONG_FAMILIES]
FAMILIES_OF = {"held_out_families": HELD_OUT_FAMILIES, "long": LONG_FAMILIES, "held_out_long": LONG_FAMILIES}


def text_of(task):
    """Everything that tells a task: what is asked, and what its programs are told."""
    return json.dumps(task.spec | {"id": ""})


# --- What is generated -------------------------------------------------------------------------------------------


def test_a_task_is_the_same_everywhere():
    """Whoever changes what is drawn changes every task: measured policies are not comparable across that."""
    found = {}
    for name, tasks in {"short": SHORT, "long": TASKS["long"] + TASKS["held_out_long"]}.items():
        shown = [(task.spec, task.replies, [(label.text, label.box) for label in task.labels]) for task in tasks]
        found[name] = hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:16]
    assert found == {"short": "873d1116c7c9546a", "long": "3de41e523552f13d"}


def test_no_two_tasks_are_alike_within_or_across_splits():
    assert len({text_of(task) for task in ALL}) == len(ALL)
    assert len({task.spec["id"] for task in ALL}) == len(ALL)


def test_families_take_turns():
    for split, tasks in TASKS.items():
        known = FAMILIES_OF.get(split, FAMILIES)
        assert [task.family for task in tasks[: len(known)]] == list(known)
    assert len({*FAMILIES, *HELD_OUT_FAMILIES, *LONG_FAMILIES}) == 9


def test_words_are_short_and_none_is_within_another():
    assert len(WORDS) == len(set(WORDS)) == 125 and len(HELD_OUT_WORDS) == 25
    assert all(3 <= len(word) <= 7 and word == word.capitalize() for word in WORDS)
    assert not any(a != b and a.lower() in b.lower() for a in WORDS for b in WORDS)
    assert not set(TRAINING_WORDS) & set(HELD_OUT_WORDS)


def test_held_out_words_and_themes_are_shown_and_named_nowhere_else():
    assert not {theme.window for theme in THEMES} & {theme.window for theme in HELD_OUT_THEMES}
    for split, tasks in TASKS.items():
        words = TRAINING_WORDS if split == "held_out_words" else HELD_OUT_WORDS
        themes = THEMES if split == "held_out_themes" else HELD_OUT_THEMES
        forbidden = [*words, *(theme.window for theme in themes)]
        assert not [word for task in tasks for word in forbidden if word in text_of(task)]


def test_training_shows_every_word_theme_font_and_size_that_it_may():
    shown = "".join(text_of(generate("training", index)) for index in range(600))
    assert all(word in shown for word in TRAINING_WORDS)
    assert all(theme.button in shown for theme in THEMES)
    assert all(
        f"-dejavu-{face}-medium-r-normal--{size}-" in shown for face in ("sans", "serif", "mono") for size in SIZES
    )


def test_labels_stand_apart_and_on_the_screen_and_every_title_has_room_in_the_middle_of_its_bar():
    for task in ALL:
        boxes = [label.box for label in task.labels]
        assert all(0 <= b.left < b.right <= SCREEN.width and 0 <= b.top < b.bottom <= SCREEN.height for b in boxes)
        for a, b in itertools.combinations(boxes, 2):
            beside = a.right <= b.left or b.right <= a.left
            assert beside or a.bottom <= b.top or b.bottom <= a.top, task
    widest = max(map(_TITLE.width, WORDS))
    assert LEAST_WIDTH // 2 - 52 >= widest / 2, "three buttons of the bar take 52 pixels"


def test_the_expert_reads_the_instruction_and_presses_what_its_thought_names():
    for task in ALL:
        replies = replies_of(task.spec["id"])
        assert 2 <= len(replies) <= 6 and all(len(reply.actions) == 1 for reply in replies)
        assert replies[-1].actions == (Finish(),)
        for reply in replies[:-1]:
            verb, word = reply.thought.rstrip(".").split()
            assert word in task.spec["instruction"] or word == "OK" or task.family == "follow", task
            boxes = [label.box for label in task.labels if label.text == word]
            (x, y), covered = reply.actions[0].point, not boxes
            assert verb == "Close" or covered or any(b.left <= x < b.right and b.top <= y < b.bottom for b in boxes)
            assert not covered or task.family in ("two", "three", "five"), task


# --- Files and sources -------------------------------------------------------------------------------------------


def test_a_written_folder_is_read_as_tasks_and_its_replies_are_not(tmp_path):
    write(tmp_path / "suite", "held_out_words", 7, first=3)
    tasks = load_tasks(tmp_path / "suite" / "tasks")
    assert [task.spec for task in tasks] == [generate("held_out_words", index).spec for index in range(3, 10)]
    replies = json.loads((tmp_path / "suite" / "replies.json").read_text())
    assert {task.task_id: list(generate("held_out_words", i).replies) for i, task in enumerate(tasks, 3)} == replies


def test_the_check_before_a_run_sees_which_programs_it_needs():
    for task in ALL:
        assert set(programs_of(task.spec)) >= set(task.spec["related_apps"])


def test_a_recipe_takes_a_split_by_its_name():
    assert [task.spec for task in load_tasks("families:training:5")] == [task.spec for task in TASKS["training"][:5]]
    assert [task.task_id for task in load_tasks("families:validation:8:2")] == [
        task.spec["id"] for task in TASKS["validation"][8:10]
    ]


TAKEN = "training-000000-close"


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        *(
            (lambda folder, argument=argument: load_tasks(f"families:{argument}"), "families|splits?")
            for argument in ("", "training", "training:x", "training:-1", "training:1:2:3", "test:4")
        ),
        (lambda folder: generate("test", 0), "one of training, validation"),
        (lambda folder: generate("training", -1), "0 or more"),
        (lambda folder: load_tasks("families:training:999999999"), "must be 1 to 1000000, got 999999999"),
        (lambda folder: write(folder / "none", "training", 0), "must be 1 to 1000000, got 0"),
        *(
            (lambda folder, name=name: replies_of(name), "a generated task's id, such as training-000000-press")
            for name in (
                "dialog-confirm-yes",
                "training-000000-close",
                "training-0-press",
                f"training-{'9' * 5000}-press",
            )
        ),
    ],
)
def test_an_unknown_source_split_number_or_id_is_refused(call, reason, tmp_path):
    with pytest.raises(TaskError, match=reason):
        call(tmp_path)


def test_the_command_writes_and_refuses_to_overwrite(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["--out", str(out), "--split", "validation", "--count", "3"]) == 0
    assert len(list((out / "tasks").glob("validation-*.json"))) == 3
    assert main(["--out", str(out)]) == 1
    assert "name a new or an empty one" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # it was written under another name


# --- On real desktops --------------------------------------------------------------------------------------------

# A task of training of each family; of a release also another one, and one of a held-out split. Numbers as good as any.
PLAYED = [
    *TASKS["training"][:6],
    *(
        pytest.param(task, marks=pytest.mark.release)
        for task in (
            *TASKS["training"][6:12],
            *TASKS["held_out_words"][:3],
            *TASKS["held_out_themes"][3:6],
            *TASKS["held_out_families"][:6],
            *TASKS["long"][:2],
        )
    ),
]

DONE_WRONG = [
    TASKS["training"][0],
    *(pytest.param(task, marks=pytest.mark.release) for task in (TASKS["training"][1], TASKS["held_out_families"][0])),
]


@pytest.fixture(scope="module")
def desktop():
    from arpo_verl.desktops.config import EnvironmentConfig
    from arpo_verl.desktops.osworld.environment import OSWorldEnvironment

    desktop = OSWorldEnvironment(EnvironmentConfig(screen_size=SCREEN), "families")
    yield desktop
    desktop.close()


def play(desktop, task, actions):
    """The first screenshot and the score."""
    (loaded,) = load_tasks(f"families:{task.spec['id'].split('-')[0]}:{int(task.spec['id'].split('-')[1])}:1")
    first = desktop.reset(loaded).screenshot
    for action in actions:
        desktop.step(action)
    return first, desktop.evaluate().score


def ids(task):
    return task.spec["id"]


@pytest.mark.desktop
@pytest.mark.parametrize("task", PLAYED, ids=ids)
def test_the_expert_solves_it_and_its_labels_stand_where_it_says(desktop, task):
    actions = [action for reply in replies_of(task.spec["id"]) for action in reply.actions]
    for _ in range(3):  # a busy machine may draw a window later than the script clicks it
        screenshot, score = play(desktop, task, actions)
        if score == 1:
            break
    assert score == 1
    image = Image.open(io.BytesIO(screenshot)).convert("RGB")
    for label in task.labels:
        assert_stands_there(image, label)


def assert_stands_there(image, label, least=60):
    """Letters fill the box and end with it; each row is compared with what is left of it, since bars have shades."""
    left, top, right, bottom = label.box

    def ink(x, y):
        behind = image.getpixel((left - 3, y))
        return max(abs(a - b) for a, b in zip(image.getpixel((x, y)), behind, strict=True)) > least

    inked = [(x, y) for y in range(top, bottom) for x in range(left - 1, right + 1) if ink(x, y)]
    xs, ys = {x for x, _ in inked}, {y for _, y in inked}
    assert min(xs) <= left + 3 and max(xs) >= right - 4, (label, min(xs), max(xs))
    assert min(ys) <= top + 3 and max(ys) >= bottom - 7, (label, min(ys), max(ys))
    outside = [(x, y) for y in range(top, bottom) for x in (right + 1, right + 2)]
    outside += [(x, y) for y in (top - 2, bottom + 1) for x in range(left, right)]
    assert not [at for at in outside if ink(*at)], label


@pytest.mark.desktop
@pytest.mark.parametrize("task", DONE_WRONG, ids=ids)
def test_doing_nothing_or_pressing_something_else_does_not_solve_it(desktop, task):
    assert play(desktop, task, [Finish()])[1] == 0
    named = " ".join(reply["thought"] for reply in task.replies)
    box = next(label.box for label in task.labels[1:] if label.text not in named)
    wrong = Click(Point((box.left + box.right) // 2, (box.top + box.bottom) // 2))
    *_, last, finish = replies_of(task.spec["id"])
    actions = [wrong, *last.actions, *finish.actions] if last.thought == "Press OK." else [wrong, Finish()]
    assert play(desktop, task, actions)[1] == 0


DOORS = {
    "key": ["hotkey(key='ctrl alt t')"],
    "menu": ["right_single(start_box='(440,330)')", "wait()", "hotkey(key='down')", "hotkey(key='enter')"],
}


@pytest.mark.desktop
@pytest.mark.parametrize("door", ["key", pytest.param("menu", marks=pytest.mark.release)])
def test_what_a_terminal_would_write_is_not_written_since_none_opens(desktop, door):
    written = [*DOORS[door], "wait()", "type(content='(echo Mirror) > ~/answer.txt\\n')", "wait()"]
    parsed = [parse_reply(f"Thought: So.\nAction: {action}", SCREEN, SCREEN) for action in written]
    assert TASKS["training"][0].replies[0]["thought"] == "Press Mirror."
    assert play(desktop, TASKS["training"][0], [action for reply in parsed for action in reply.actions])[1] == 0


@pytest.mark.release
@pytest.mark.desktop
def test_ok_alone_does_not_choose(desktop):
    for task in TASKS["training"][1:30:6]:
        assert task.family == "choose"
        _, press_ok, finish = replies_of(task.spec["id"])
        assert play(desktop, task, [*press_ok.actions, *finish.actions])[1] == 0
