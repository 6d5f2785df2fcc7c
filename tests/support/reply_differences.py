"""Every kind of reply that OSWorld's runners and we read differently: kind | theirs | ours | why not the same.

The parsers' tests hold us to this list: no other kind differs, and each of these does. docs/benchmark-fidelity.md has
the groups.
"""

from __future__ import annotations


def kinds(table: str) -> set[str]:
    return {row.split(" | ")[0] for row in table.strip().splitlines()}


# UI-TARS-1.5: `uitars15_v1.py`, whose two functions ARPO's worker uses too
UI_TARS = kinds("""
keys joined by a sign, in capitals or by another name | pressed as one key that does not exist, or with Shift | the keys that it means | models write them so, and the reply says which keys it means
keys that do not exist | nothing comes; the step counts | malformed | a turn that does nothing is no turn
a point outside of the image | clicked outside of the screen | malformed | it names nothing that the model sees
scroll left or right | no input | `hscroll` | it is in the prompt's action space
call_user | `WAIT` three times, then `FAIL` | `FAIL` | it is the answer to an infeasible task
an action before an end | only the end is done | all in order | the reply says so
actions on lines without a blank one between | malformed | each is done | the calls are plain to read
more than 8 actions | each is done | malformed | one turn must not hold a desktop for minutes
a position by another name or form | the runner breaks | the point is taken | newer UI-TARS prompts write `point`, and a box's tokens may be kept
a newline amid typed text | no Python, and nothing typed | Enter | the reply says so
a backslash in typed text | interpreted once more, or `n` cut off at the end | as written | nothing of a reply is code
a thought with three quotes | code that the guest runs, or none | left on the host | nothing of a reply is code
typed text in double quotes | the call itself is typed | the text | syntax is not to be typed
typed text with something behind it | the comment, the comma or the argument is typed too | the text | syntax is not to be typed
a string over a following call | the call is typed as text | malformed | syntax is not to be typed, and what the reply means is not clear
a quote and a bracket within typed text | malformed, or the bracket is lost | the text | models forget to escape it
a key several times | pressed once | pressed so often, the others held: `alt tab tab` | the reply says so
a position, direction, amount or switch that the action does not read | left aside | malformed | the action would do something else than is written
Doubao's forms | malformed, or the runner breaks | read: `Action：`, `[x1,y1,x2,y2]`, `<bbox>x1 y1 x2 y2</bbox>` | the call is plain to read
Enter alone | nothing is typed | Enter | the reply says so
space in front of typed text | left out | typed | the reply says so
a call on the line below its label | malformed | done | the call is plain to read
an apostrophe in an answer | malformed | `DONE`, with the answer | models forget to escape it
an empty line in an answer | malformed | `DONE`, with the answer | the answer is plain to read
any space within a call | malformed | done | the call is plain to read
Windows lines within the action | malformed | done, as other lines | the calls are plain to read
a second label behind a call | the last call alone is done | malformed | half of a reply is none
a position in fractions | the corner of the screen | malformed | the model means another place
another notation of keys | keys that do not exist, or a sign too | malformed | nobody means these
typed text in other quotes | the call itself is typed | malformed | syntax is not to be typed
Python beyond a plain call | done: `wait(None)`, `(wait())` | malformed | nothing of a reply is code
a number without quotes | malformed | left aside | `wait(time=5)` is plain to read
keydown, keyup | done | malformed | they are not in the prompt, and a key would stay down
control characters | typed | malformed | they have no key: the input would fail as if the desktop had
a reply of more than 40,000 characters | done | malformed | it bounds the work on hostile text
""")  # noqa: E501

# Qwen2.5-VL and Qwen3-VL: `qwen25vl_agent.py` and `qwen3vl_agent.py`
QWEN = kinds("""
wait or terminate without a line `Action:` | the runner breaks | done | the call is plain to read
terminate with failure | `DONE` | `FAIL` | it is the right answer to an infeasible task
quotes, newlines and backslashes in typed text | pasted into Python source: no Python, or other text | as written | nothing of a reply is code
names of keys | pressed as a key that does not exist, or nothing | the keys that it means | as for UI-TARS
keys that the tool's list does not hold | nothing comes; the step counts | malformed | as for UI-TARS
a key several times | pressed once | pressed so often, the others held | as for UI-TARS
a position, direction, amount or switch that the action does not read | left aside | malformed | as for UI-TARS
keys as text | each of its letters is pressed | malformed | the tool asks for a list
scroll at a point | where the pointer is | at the point | the call says so
scroll by more than 100 notches | all of them | 100 | a desktop would be held for minutes
scroll by a fraction | passed on, and cut off | to the nearest notch, at least one | 0.4 would do nothing
a call on its tag's line | nothing | done | the call is plain to read
several calls within one tag | nothing | each is done | the calls are plain to read
a newline within a JSON string | nothing | done | some models do not escape it
a sign behind the JSON | nothing | done | the call is plain to read
a call in Qwen3.5's tags | nothing | done | one reader for all of Qwen's models
a coordinate outside | clicked outside of the screen | malformed | as for UI-TARS
no coordinate to move or drag to | the corner of the screen | malformed | the call names no place
a coordinate that is null | the runner breaks | where the pointer is | as where there is none
a second call that is broken | only the first is done | malformed | half of a reply is none
a call to another tool beside it | only ours is done | malformed | half of a reply is none
a call within the thinking | done | left aside | the model had not decided yet
more than 8 calls | each is done | malformed | as for UI-TARS
control characters in a call | typed | malformed | as for UI-TARS
Qwen3-VL's further actions | nothing | done | its prompt names them
Qwen2.5-VL's signs in a reply of Qwen3-VL | nothing | done | one reader for both
Qwen2.5-VL's signs around several calls | nothing | each is done | the calls are plain to read
""")  # noqa: E501

# By family, beside those above: UI-TARS 1.0, UI-TARS-2 and GUI-Owl 1.0
FURTHER = {
    "ui_tars_10": kinds("""
a hotkey | presses `arrowleft` and its like, keys that do not exist | the keys that it means | as UI-TARS-1.5's runner
text behind a call | a second thought is left aside | malformed | as UI-TARS-1.5's runner
"""),
    "ui_tars_2": kinds("""
any space around an action | behind `Thought:` malformed | done | as UI-TARS-1.5's runner
a scroll without a point | up and down are exchanged | as written | the reply says so
several actions | malformed | each is done | the calls are plain to read
not in the grammar | `press` holds a key down | malformed | as `keydown`
"""),
    "gui_owl": kinds("""
a coordinate of three numbers | the third is left aside | malformed | it may mean another place
middle_click | the runner breaks | done | it is in the tool
several calls | the last alone is done | each is done | the reply says so
a click without a place | the runner breaks | where the pointer is | as for Qwen
quotes, newlines, backslashes and outer spaces in typed text | pasted into Python source: no Python, or other text; outer spaces are left out | as written | nothing of a reply is code
"""),  # noqa: E501
}
