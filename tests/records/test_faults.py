"""The file in which a run notes why a start ended."""

import time

from arpo_verl.records.faults import Fault, note_fault, read_faults
from arpo_verl.records.layout import FAULTS_FILE

DAMAGED = ["[]", "1", "{", "{}", '{"time": 1}', '{"time": "1", "sentence": "a"}', '{"time": 1, "sentence": 2}']
DAMAGED += ['{"time": NaN, "sentence": "a"}', '{"time": 1e300, "sentence": "a"}', "\x00\xff"]


def test_faults_are_read_in_their_order(tmp_path):
    run_dir = tmp_path / "run"
    assert read_faults(run_dir) == []
    before = time.time()
    note_fault(run_dir, "an engine died")
    note_fault(run_dir, "the queue died")
    first, second = read_faults(run_dir)
    assert (first.sentence, second.sentence) == ("an engine died", "the queue died")
    assert before <= first.time <= second.time <= time.time()


def test_damaged_lines_are_passed_over_and_a_line_moves_no_cursor(tmp_path):
    lines = [*DAMAGED, '{"time": 5, "sentence": "an\\u001b[2Jengine\\ndied"}']
    (tmp_path / FAULTS_FILE).write_text("\n".join(lines))
    assert read_faults(tmp_path) == [Fault(5, "an?[2Jengine died")]
