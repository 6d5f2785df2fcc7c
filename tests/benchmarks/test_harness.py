"""`benchmarks/harness.py`: each episode plays its turns over HTTP, and no picture is decoded twice."""

import asyncio

import pytest

pytest.importorskip("verl")

import harness  # noqa: E402

pytestmark = pytest.mark.study


def test_a_turn_decodes_one_picture_however_many_it_shows(tmp_path):
    harness.screenshots(tmp_path, 2)
    figures = asyncio.run(harness.play(tmp_path, 2, 2))
    assert figures["decodes_a_turn"] == 1.0 and figures["cpu_ms_a_turn"] > 0
