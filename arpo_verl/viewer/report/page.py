"""A report as HTML, by Jinja2 with autoescaping: whatever a model or a task wrote is text."""

from __future__ import annotations

import datetime
import json
from importlib import resources
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from arpo_verl.versions import __version__
from arpo_verl.viewer.report import charts
from arpo_verl.viewer.report.content import RunReport
from arpo_verl.viewer.report.rates import Rate

TEMPLATE = "report.html.j2"
STOP = "rollout/stop/"
SHOWN_SHARE = 0.01
"""Parts of a step below this share are in the table alone."""


def render(report: RunReport) -> str:
    """The whole page."""
    with resources.as_file(resources.files(__package__) / "templates") as templates:
        environment = Environment(
            loader=FileSystemLoader(templates),
            autoescape=True,
            extensions=["jinja2.ext.loopcontrols"],
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters.update(FILTERS)
        style = Markup((templates / "report.css").read_text(encoding="utf-8"))
        template = environment.get_template(TEMPLATE)
        return template.render(report=report, charts=draw_charts(report), style=style, version=__version__)


def draw_charts(report: RunReport) -> dict[str, Markup | None]:
    """The drawings by name; None where there is nothing to draw."""
    metrics = report.metrics
    trained = [i for i, value in enumerate(metrics.column("rollout/success_mean")) if value is not None]
    steps = [metrics.steps[i] for i in trained]

    def series(names: dict[str, str]) -> dict[str, list[float | None]]:
        return {label: [metrics.column(name)[i] for i in trained] for name, label in names.items()}

    groups = {f"replay/groups_{name}": name.replace("_", " ") for name in ("all_solved", "mixed", "all_failed")}
    group_colors = (charts.GOOD, charts.NEUTRAL, charts.BAD)
    timers = {part.name: part.what for part in report.parts[:4] if part.name and (part.share or 0) >= SHOWN_SHARE}
    reasons = {STOP + stop.reason: stop.reason for stop in report.stop_reasons if STOP + stop.reason in metrics.series}
    drawn = {
        "success": charts.success_chart(report.steps, report.validations),
        "groups": charts.stacked_chart(steps, series(groups), "groups", group_colors),
        "time": charts.stacked_chart(steps, series(timers), "seconds"),
        "stops": charts.stacked_chart(steps, series(reasons), "share of episodes"),
    }
    # matplotlib's own output: it holds no text but numbers and the names above.
    return {name: None if svg is None else Markup(svg) for name, svg in drawn.items()}


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}%"


def number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:.{digits}g}"


def seconds(value: float | None) -> str:
    """A duration, in the unit that suits it."""
    if value is None:
        return "–"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def moment(unix: float | None) -> str:
    """A time of day with its zone, this machine's."""
    if unix is None:
        return "not recorded"
    try:
        return datetime.datetime.fromtimestamp(unix).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    except (OSError, OverflowError, ValueError):
        return "no time of this calendar"


def interval(rate: Rate) -> str:
    low, high = rate.interval
    return f"{100 * low:.0f}–{100 * high:.0f}%"


def value(anything: Any) -> str:
    """A recipe's value as a recipe would have it."""
    return anything if isinstance(anything, str) else json.dumps(anything, ensure_ascii=False, default=str)


FILTERS = {
    "percent": percent,
    "number": number,
    "seconds": seconds,
    "moment": moment,
    "interval": interval,
    "value": value,
}
