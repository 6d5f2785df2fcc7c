"""Two episodes laid side by side by their screens."""

import numpy as np

from arpo_verl.tools.viewer.alignment import align


def screens(text):
    """A screen a letter, the same for the same one; of a blank nothing was kept."""
    return [None if letter == " " else np.full((48, 64), 3 * ord(letter), dtype=np.int16) for letter in text]


def numbers(first, second):
    return [(one, other) for one, other, _ in align(screens(first), screens(second))]


def test_the_same_screens_go_together_and_the_other_one_waits():
    assert numbers("abcd", "axybcd") == [(0, 0), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5)]
    assert numbers("xyab", "ab") == [(0, 0), (1, 0), (2, 0), (3, 1)]


def test_screens_that_differ_go_together_where_none_is_the_same():
    assert align(screens("abc"), screens("axc")) == [(0, 0, True), (1, 1, False), (2, 2, True)]
    assert numbers("aaa", "aa")[-1] == (2, 1)


def test_what_was_not_kept_is_not_compared():
    assert align(screens(" b"), screens("  ")) == [(0, 0, None), (1, 1, None)]
    assert align(screens("ab"), []) == []


def test_a_caret_makes_no_other_screen():
    one, other, window = (np.zeros((48, 64), dtype=np.int16) for _ in range(3))
    other[10, 10:12] = 200
    window[10:20, 10:20] = 200
    assert [same for _, _, same in align([one, one], [other, window])] == [True, False]
