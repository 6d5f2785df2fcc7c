"""Metrics that the sampler returns empty and the estimator fills: what veRL makes of them."""

from verl.trainer.ppo.v1.utils import MetricsAggregator

from arpo_verl.plugin.handover import LateMetrics


def logged(metrics):
    aggregator = MetricsAggregator()
    aggregator.add_step_metrics(metrics, sample_count=4)
    return aggregator.get_aggregated_metrics()


def test_what_is_filled_before_the_step_ends_is_logged_with_it_and_the_rest_is_not():
    late = LateMetrics()
    metrics = {"known": 1.0, **late.open(["filled", "left_empty"])}
    late.fill({"filled": 2.5, "never_opened": 3.0})
    assert logged(metrics) == {"known": 1.0, "filled": 2.5}


def test_each_batch_of_a_step_keeps_its_own():
    late, aggregator = LateMetrics(), MetricsAggregator()
    for value in (1.0, 3.0):
        metrics = late.open(["x/mean"])
        late.fill({"x/mean": value})
        aggregator.add_step_metrics(metrics, sample_count=4)
    assert aggregator.get_aggregated_metrics() == {"x/mean": 2.0}
