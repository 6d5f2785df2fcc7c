"""What the evaluator saw, written down without changing what it does."""

from types import SimpleNamespace

import pytest

from arpo_verl.desktops.osworld.evaluation import noted_metrics
from arpo_verl.types import MetricCall


def exact(result, expected, **options):
    return float(result == expected)


def broken(result):
    raise ValueError("no file")


def test_each_metric_of_a_list_is_noted_with_what_it_was_given():
    client = SimpleNamespace(metric=[exact, exact])
    with noted_metrics(client) as noted:
        assert client.metric[0]("a\x1b", {"is": "a"}, tolerance=1) == 0.0
        assert client.metric[1](1, 1) == 1.0
    assert noted.calls == [
        MetricCall("exact", r"'a\x1b'", "{'expected': {'is': 'a'}, 'tolerance': 1}", "0.0"),
        MetricCall("exact", "1", "{'expected': 1}", "1.0"),
    ]
    assert noted.returned == [0.0, 1.0]
    assert client.metric == [exact, exact]


def test_a_metric_that_raises_raises_as_before_and_is_not_noted():
    client = SimpleNamespace(metric=broken)
    with pytest.raises(ValueError, match="no file"), noted_metrics(client) as noted:
        client.metric("x")
    assert noted.calls == noted.returned == [] and client.metric is broken


def test_a_large_result_is_shortened():
    client = SimpleNamespace(metric=exact)
    with noted_metrics(client) as noted:
        client.metric("x" * 100_000, ["y"] * 100_000)
    assert len(noted.calls[0].result) < 1000 and len(noted.calls[0].expected) < 1000
    assert noted.calls[0].result.startswith("'xxx") and "..." in noted.calls[0].result
