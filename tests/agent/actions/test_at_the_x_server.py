"""What reaches the X server of a desktop is what a reply says: buttons, keys, places, how often and in which order."""

import string

import pytest
from support.desktop_harness import eventually
from Xlib import XK

import arpo_verl
from arpo_verl.agent.actions.keys import KEY_NAMES
from arpo_verl.agent.actions.reply import Reply
from arpo_verl.agent.models.family import SHIPPED, load_family
from arpo_verl.errors import ActionParseError
from arpo_verl.types import Click, Drag, Fail, Finish, GuestRequest, Hotkey, Move, Point, Scroll, Size, TypeText, Wait

pytestmark = pytest.mark.desktop

RECORDER = """
import os
from Xlib import X, display
from Xlib.ext import record
from Xlib.protocol import rq

asked, heard = display.Display(), display.Display()
log = open(os.path.expanduser("~/events"), "w")
given = {}

def symbol(event):
    if event.type == X.KeyPress:
        plain, shifted = asked.get_keyboard_mapping(event.detail, 1)[0][:2]
        given[event.detail] = shifted if event.state & X.ShiftMask and shifted else plain
    return given[event.detail] if event.type in (X.KeyPress, X.KeyRelease) else event.detail

def note(reply):
    if reply.category == record.StartOfData:
        print("ready", file=log, flush=True)
    data = reply.data if reply.category == record.FromServer else b""
    while data:
        event, data = rq.EventField(None).parse_binary_value(data, heard.display, None, None)
        print(event.type, symbol(event), event.root_x, event.root_y, event.time, file=log, flush=True)

none, unused = (0, 0), (0, 0, 0, 0)
devices = dict(core_requests=none, core_replies=none, ext_requests=unused, ext_replies=unused, delivered_events=none,
               device_events=(X.KeyPress, X.MotionNotify), errors=none, client_started=False, client_died=False)
context = asked.record_create_context(0, [record.AllClients], [devices])
asked.sync()
heard.record_enable_context(context, note)
"""
LONGEST_DOUBLE_CLICK_MS = 500
"""Of the toolkits' defaults: Qt and GTK take 400, Tk and Chromium 500."""
SCREEN = Size(640, 480)
LAST = Hotkey(("pause",))

# --- What is said, and what must arrive -------------------------------------------------------------------------------

HERE, THERE = Point(320, 240), Point(64, 48)
"""Whole thousandths of the screen's sides."""
AT_HERE, AT_THERE = "@320,240", "@64,48"
UI_TARS = {"ui_tars_15", "ui_tars_10", "ui_tars_2", "small"}
PIXELS_TOOL = {"qwen25_vl", "gui_owl"}

NAMED = {
    **{name: name.capitalize() for name in "delete down end help home insert left pause right tab up".split()},
    **{f"f{number}": f"F{number}" for number in range(1, 13)},
    **{name: f"KP_{name.capitalize()}" for name in "add decimal divide multiply subtract".split()},
    # Keys of the number pad, without Num Lock.
    "num0": "KP_Insert",
    "num1": "KP_End",
    "num2": "KP_Down",
    "num3": "KP_Next",
    "num4": "KP_Left",
    "num5": "KP_Begin",
    "num6": "KP_Right",
    "num7": "KP_Home",
    "num8": "KP_Up",
    "num9": "KP_Prior",
    "apps": "Menu",
    "backspace": "BackSpace",
    "enter": "Return",
    "esc": "Escape",
    "pagedown": "Next",
    "pageup": "Prior",
    "printscreen": "Print",
    "space": "space",
}
LOCKS = {"capslock": "Caps_Lock", "numlock": "Num_Lock", "scrolllock": "Scroll_Lock"}
HELD = (
    {
        "alt": "Alt_L",
        "altright": "Alt_R",
        "ctrl": "Control_L",
        "ctrlright": "Control_R",
        "win": "Super_L",
        "winright": "Super_R",
    },
    {"altleft": "Alt_L", "ctrlleft": "Control_L", "winleft": "Super_L"},
)
SIGNS = '~!@#$%^&*()_+{}|:"<>?'
PLAIN = "".join(sorted(set(string.ascii_lowercase + string.digits + string.punctuation) - set(SIGNS)))
TYPED = 'aB\té ~{"it\'s"} <b>\n中😀'


def together(*names):
    return [*(f"+{name}" for name in names), *(f"-{name}" for name in reversed(names))]


def in_turn(names):
    return [event for name in names for event in together(name)]


def keys_of(text):
    return [{"\n": "Return", "\t": "Tab", " ": "space"}.get(character, character) for character in text]


SAID = [
    # the actions of a reply, what arrives, the families that have no such action
    ((Click(HERE),), [AT_HERE, *in_turn("1")], set()),
    ((Scroll("up", notches=3),), in_turn("444"), UI_TARS),
    ((Scroll("down", THERE, 2),), [AT_THERE, *in_turn("55")], UI_TARS),
    ((Scroll("left", notches=1),), in_turn("6"), UI_TARS | PIXELS_TOOL),
    ((Scroll("right", notches=2),), in_turn("77"), UI_TARS | PIXELS_TOOL),
    ((Drag(HERE, THERE),), [AT_HERE, "+1", AT_THERE, "-1"], set()),
    ((Click(HERE, count=2),), [AT_HERE, *in_turn("11")], set()),
    ((Scroll("up"),), in_turn("44444"), set()),
    ((Scroll("down", THERE),), [AT_THERE, *in_turn("55555")], set()),
    ((Scroll("left"),), in_turn("66666"), PIXELS_TOOL),
    ((Scroll("right"),), in_turn("77777"), PIXELS_TOOL),
    ((Hotkey(("ctrl", "c")),), together("Control_L", "c"), set()),
    ((Hotkey(("ctrl", "shift", "t")),), together("Control_L", "T"), set()),
    ((Hotkey(("ctrl", "+")),), together("Control_L", "+"), set()),
    ((Hotkey(("down",) * 3),), in_turn(["Down"] * 3), set()),
    ((Hotkey(("alt", "tab", "tab")),), ["+Alt_L", *in_turn(["Tab", "Tab"]), "-Alt_L"], set()),
    ((Click(THERE, "right"),), [AT_THERE, *in_turn("3")], set()),
    ((Hotkey(("1", "!")),), in_turn("1!"), set()),
    ((Hotkey(("shift", "!", "a")),), together("!", "A"), set()),
    ((Hotkey(("<", "a")),), together("<", "a"), set()),
    ((Hotkey(tuple(PLAIN)),), together(*PLAIN), set()),
    ((Hotkey(tuple(SIGNS)),), together(*SIGNS), set()),
    ((Hotkey(tuple(NAMED)),), together(*NAMED.values()), set()),
    *(((Hotkey((name, name)),), in_turn([symbol, symbol]), set()) for name, symbol in LOCKS.items()),
    ((Click(HERE, "middle"),), [AT_HERE, *in_turn("2")], UI_TARS),
    *(((Hotkey(tuple(keys)),), together(*keys.values()), set()) for keys in HELD),
    *(((Hotkey((name, "a")),), together("A"), set()) for name in ("shiftleft", "shiftright")),
    ((Click(THERE, count=3),), [AT_THERE, *in_turn("111")], UI_TARS | PIXELS_TOOL),
    ((TypeText(TYPED),), in_turn(keys_of(TYPED)), set()),
    ((Move(HERE),), [AT_HERE], set()),
    ((Click(None),), in_turn("1"), UI_TARS),
    ((Hotkey(("ctrl", "a")), TypeText("x")), [*together("Control_L", "a"), *in_turn("x")], set()),
    ((Wait(),), [], set()),
    ((Finish("42"),), [], PIXELS_TOOL),
    ((Finish(),), [], set()),
    ((Fail(),), [], set()),
]


def test_every_key_that_a_reply_can_name_is_said():
    assert {
        key for actions, *_ in SAID for action in actions if isinstance(action, Hotkey) for key in action.keys
    } == KEY_NAMES


# --- The desktop and its recorder -------------------------------------------------------------------------------------


def task():
    ready = {"command_success": "grep -q ready ~/events"}
    verification = {"command": ["true"], "verification": ready, "max_wait_time": 60, "check_interval": 0.1}
    spec = {
        "id": "recorder",
        "instruction": "Record.",
        "config": [
            {"type": "launch", "parameters": {"command": ["python", "-c", RECORDER]}},
            {"type": "execute_with_verification", "parameters": verification},
        ],
        "evaluator": {
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": "true", "shell": True},
            "expected": {"type": "rule", "rules": {"expected": ""}},
        },
    }
    return arpo_verl.Task("recorder", "Record.", spec)


@pytest.fixture(scope="module")
def desktop():
    with arpo_verl.make_desktop("embedded", wait_s=0, action_pause_s=0) as desktop:
        yield desktop


def recorded(desktop):
    """Events and their times in milliseconds, once the key of `LAST` has arrived, and without it."""
    desktop.step(LAST)
    last = str(XK.string_to_keysym("Pause"))

    file = GuestRequest("POST", "/file", "application/x-www-form-urlencoded", b"file_path=/home/user/events")

    def read():
        lines = [line.split() for line in desktop.ask(file).body.decode().splitlines()[1:]]
        return lines if lines and lines[-1][:2] == ["3", last] else None

    return list(events_of(eventually(read)[:-2]))


def events_of(lines):
    """`+1` and `-1` for a button, `+a` and `-a` for a key by what it gives, `@x,y` for where the pointer came to.

    Shift is in what a key gives: it has no event of its own.
    """
    place = moved = None
    for kind, detail, x, y, time in lines:
        at = f"@{x},{y}"
        if kind == "6":
            moved = (at, int(time)) if at != place else None
            continue
        if moved:
            place = moved[0]
            yield moved
            moved = None
        name = name_of(int(detail)) if kind in "23" else detail
        if name not in ("Shift_L", "Shift_R"):
            yield f"{'+' if kind in '24' else '-'}{name}", int(time)
    if moved:
        yield moved


NAMES = {value: name.removeprefix("XK_") for name, value in vars(XK).items() if name.startswith("XK_")}
NAMES |= {XK.string_to_keysym(name): name for names in (NAMED, LOCKS, *HELD) for name in names.values()}


def name_of(symbol):
    return chr(symbol & 0xFFFFFF) if 0x20 < symbol < 0x100 or symbol > 0x1000000 else NAMES[symbol]


# --- Tests ------------------------------------------------------------------------------------------------------------


def test_what_every_family_says_by_every_action_is_what_arrives(desktop):
    desktop.reset(task())
    expected = []
    for actions, events, lacking in SAID:
        readings, lacks = [], set()
        for name in SHIPPED:
            family = load_family(name)
            try:
                text = family.format(Reply("", actions), SCREEN, SCREEN)
            except ActionParseError:
                lacks.add(name)
                continue
            readings.append(family.read(text, SCREEN, SCREEN).actions)
        assert lacks == lacking, actions
        for read in dict.fromkeys(readings):
            for action in read:
                desktop.step(action)
            for event in events:
                expected += [] if event == place_of(expected) else [event]
    assert [event for event, _ in recorded(desktop)] == expected


def place_of(events):
    """Where the pointer came to last."""
    return next((event for event in reversed(events) if event.startswith("@")), None)


def test_two_clicks_of_a_reply_are_two_clicks_and_repeated_keys_are_pressed_as_often_as_written(desktop):
    replies = (
        "Action: click(start_box='(300,200)')\n\nclick(start_box='(300,200)')",
        "Action: hotkey(key='ctrl z z')",
        "Action: finished()",
    )
    episode = arpo_verl.play(task(), desktop, lambda instruction, screenshots, earlier: replies[len(earlier)])
    assert episode.stop_reason is arpo_verl.StopReason.FINISHED
    events = recorded(desktop)
    clicks, keys = [*in_turn("11")], ["+Control_L", *in_turn("zz"), "-Control_L"]
    assert [event for event, _ in events] == ["@300,200", *clicks, *keys]
    first, second = (time for event, time in events if event == "+1")
    assert second - first > 900


def test_clicks_and_drags_of_several_steps_are_no_double_click_however_soon_the_next_comes(desktop):
    desktop.reset(task())
    for action in (Click(HERE), Click(HERE), Drag(HERE, THERE)):
        desktop.step(action)
    times = [time for event, time in recorded(desktop) if event == "+1"]
    assert len(times) == 3
    assert all(after - before > LONGEST_DOUBLE_CLICK_MS for before, after in zip(times, times[1:], strict=False))
