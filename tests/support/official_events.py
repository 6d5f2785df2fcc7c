"""What a reply does in the guest, as events: ours by its actions, the official agents' by their code."""

import builtins
from functools import partial
from types import SimpleNamespace

from arpo_verl.types import Click, Drag, Fail, Finish, Hotkey, Move, Point, Scroll, TypeText, Wait
from support import ROOT
from support.reply_differences import QWEN, UI_TARS

NOTHING = "nothing"
"""No input, or malformed."""
ENDS = {Wait: "WAIT", Finish: "DONE", Fail: "FAIL"}
DOCUMENT = (ROOT / "docs" / "benchmark-fidelity.md").read_text(encoding="utf-8")
DIFFERENCES = UI_TARS | QWEN
"""The kinds of replies that UI-TARS-1.5's or Qwen's agents read differently."""


def event_of(action):
    match action:
        case Click(point=point, button=button, count=count):
            return ("click", button, count, point)
        case Drag(start=start, end=end):
            return ("drag", start, end)
        case Move(point=point):
            return ("move", point)
        case Hotkey(keys=keys):
            return ("keys", *keys)
        case TypeText(text=text):
            return ("text", text)
        case Scroll(direction=direction, point=point, notches=notches):
            way = "vertical" if direction in ("up", "down") else "horizontal"
            return ("scroll", way, (notches or 5) * (1 if direction in ("up", "right") else -1), point)
    return ENDS[type(action)]


class Noted:
    """Stand-ins of the guest's modules: each call becomes an event."""

    def __init__(self, press_is_text):
        self.events = []
        self.press_is_text = press_is_text

    def click(self, x=None, y=None, clicks=1, interval=0.0, button="left", duration=0.0):
        self.events.append(("click", button, clicks, None if x is None else Point(x, y)))

    def doubleClick(self, x=None, y=None, interval=0.0, button="left", duration=0.0):
        self.click(x, y, 2, button=button)

    def tripleClick(self, x=None, y=None, interval=0.0, button="left", duration=0.0):
        self.click(x, y, 3, button=button)

    def rightClick(self, x=None, y=None, interval=0.0, duration=0.0):
        self.click(x, y, button="right")

    def middleClick(self, x=None, y=None, interval=0.0, duration=0.0):
        self.click(x, y, button="middle")

    def moveTo(self, x, y, duration=0.0, tween=None):
        self.events.append(("move", Point(x, y)))

    def dragTo(self, x, y, duration=0.0, tween=None, button="left"):
        if isinstance(tween, str):
            raise TypeError("pyautogui calls it")
        is_moved = self.events and self.events[-1][0] == "move"
        self.events.append(("drag", self.events.pop()[1] if is_moved else None, Point(x, y)))

    def scroll(self, clicks, x=None, y=None, way="vertical"):
        if clicks:
            self.events.append(("scroll", way, clicks, None if x is None else Point(x, y)))

    vscroll = scroll

    def hscroll(self, clicks, x=None, y=None):
        self.scroll(clicks, x, y, "horizontal")

    def hotkey(self, *keys):
        keys = keys[0] if keys and isinstance(keys[0], list) else keys
        # X takes a press of a key that is down already for nothing.
        self.events.append(("keys", *dict.fromkeys("space" if key == " " else key for key in keys)))

    def press(self, keys, presses=1, interval=0.0):
        for key in (keys if isinstance(keys, list) else [keys]) * presses:
            if self.press_is_text and key == "enter":
                self.write("\n")
            else:
                self.hotkey(key if key else "space")  # the agent strips it of a space

    def write(self, message, interval=0.0):
        text = message
        if self.events and self.events[-1][0] == "text":
            text = self.events.pop()[1] + text
        if text:
            self.events.append(("text", text))

    typewrite = write

    def keyDown(self, key):
        self.events.append(("down", key))

    keyUp = keyDown


def imported(modules, name, *more):
    return modules[name] if name in modules else __import__(name, *more)


def events_of(codes, *, press_is_text):
    """What the agent's actions do in the guest, where an error is not looked at."""
    events = []
    for code in codes:
        if code in ("WAIT", "DONE", "FAIL"):
            events.append(code)
            continue
        noted = Noted(press_is_text)
        modules = {"pyautogui": noted, "time": SimpleNamespace(sleep=lambda seconds: None)}
        # Only this code's imports find them: `sys.modules` is also that of the threads which other tests left.
        own = vars(builtins) | {"__import__": partial(imported, modules)}
        try:
            exec(code, {**modules, "__builtins__": own})
        except (AttributeError, NameError, SyntaxError, TypeError):
            continue
        events += noted.events
    return events or NOTHING


def alike(first, second):
    """Equal, but that a point may lie two pixels aside: they cut off, we round; thousandths are 999 to them."""
    if isinstance(first, Point) and isinstance(second, Point):
        return all(abs(a - b) <= 2 for a, b in zip(first, second, strict=True))
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(map(alike, first, second))
    return first == second
