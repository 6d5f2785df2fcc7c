"use strict";
/* What an action did, in words and as marks on a screenshot. Pure. */
{
  /** `pyautogui.SCROLL_NOTCHES` of arpo_verl: a scroll whose grammar has no amount. */
  const USUAL_NOTCHES = 5;
  const COUNTS = { 1: "click", 2: "double click", 3: "triple click" };

  const at = (point) => (point ? `at (${point[0]}, ${point[1]})` : "where the pointer is");

  /** Typed text with its newlines and tabs made visible. */
  const visible = (text) => String(text).replace(/\n/g, "⏎").replace(/\t/g, "⇥");

  const WORDS = {
    __proto__: null,
    Click: ({ point, button, count }) => [`${COUNTS[count] || `${count} clicks`} ${button}`, at(point)],
    Drag: ({ start, end }) => [
      "drag",
      `${start ? `from (${start[0]}, ${start[1]})` : "from where the pointer is"} to (${end[0]}, ${end[1]})`,
    ],
    Move: ({ point }) => ["move", `to (${point[0]}, ${point[1]})`],
    Hotkey: ({ keys }) => ["press", keys.join(" + ")],
    TypeText: ({ text }) => ["type", visible(text)],
    Scroll: ({ direction, point, notches }) => [
      `scroll ${direction}`,
      `${notches ?? USUAL_NOTCHES} notches ${at(point)}`,
    ],
    Wait: () => ["wait", ""],
    Finish: ({ answer }) => ["finished", answer ? `with the answer ${visible(answer)}` : ""],
    Fail: () => ["fail:", "the agent says that the task cannot be done"],
  };

  /** [what, the rest], both as plain text: ["click left", "at (120, 300)"]. */
  function words(action) {
    try {
      return WORDS[action.action](action);
    } catch {
      return [String(action?.action ?? "action"), JSON.stringify(action)]; // of a newer or a broken record
    }
  }

  const describe = (action) => words(action).filter(Boolean).join(" ");

  /** A turn in one line: its actions, or why there are none. */
  function describeTurn(turn) {
    if (!turn) return "after the last action";
    if (turn.parse_error) return "reply that could not be parsed";
    return list(turn.actions).map(describe).join(", then ") || "no action";
  }

  /** A record may be of another version, or broken: what is no list has nothing to show. */
  const list = (value) => (Array.isArray(value) ? value : []);

  const isPoint = (point) => Array.isArray(point) && point.length === 2 && point.every(Number.isFinite);

  /**
   * What to draw for each turn: a list of {kind, number, at, to, assumed, ...} a turn, in pixels of the screen.
   * An action without a place happens where the pointer was left, which the turns before tell: `assumed`.
   */
  function marksOfTurns(turns) {
    let pointer = null;
    return turns.map((turn) => {
      const marks = [];
      list(turn?.actions).forEach((action, index, { length }) => {
        const mark = markOf(action, pointer);
        if (!mark) return;
        pointer = mark.to || mark.at || pointer;
        if (mark.at || mark.to) marks.push({ ...mark, number: length > 1 ? index + 1 : null });
      });
      return marks;
    });
  }

  const NEAR_PX = 10;

  /** Whether two turns did the same: the same actions, at places at most 10 pixels apart. */
  function alike(one, other) {
    const [first, second] = [list(one?.actions), list(other?.actions)];
    const near = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]) <= NEAR_PX;
    const same = (a, b) =>
      isPoint(a) && isPoint(b) ? near(a, b) : JSON.stringify(a ?? null) === JSON.stringify(b ?? null);
    const sameAction = (a, b) =>
      Object.keys({ ...a, ...b }).every((name) => same(a?.[name], b?.[name]));
    return first.length === second.length && first.every((action, i) => sameAction(action, second[i]));
  }

  function markOf(action, pointer) {
    const placed = (point) => (isPoint(point) ? { at: point, assumed: false } : { at: pointer, assumed: true });
    switch (action?.action) {
      case "Click":
        return { kind: "click", button: action.button, count: action.count, ...placed(action.point) };
      case "Drag":
        return isPoint(action.end) ? { kind: "drag", to: action.end, ...placed(action.start) } : null;
      case "Move":
        return isPoint(action.point) ? { kind: "move", at: action.point, assumed: false } : null;
      case "Scroll":
        return {
          kind: "scroll",
          direction: action.direction,
          notches: action.notches ?? USUAL_NOTCHES,
          ...placed(action.point),
        };
      default:
        return null;
    }
  }

  viewer.actions = { words, describe, describeTurn, marksOfTurns, alike, list };
}
