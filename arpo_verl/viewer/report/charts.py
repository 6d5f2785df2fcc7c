"""Charts as SVG, drawn by matplotlib: exact, printable, without a script in the page.

Colours are put in as placeholders and become CSS variables, so that one drawing serves the light and the dark page. No
text of a model or a task goes into a drawing.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from arpo_verl.viewer.report.success import StepSuccess

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Placeholder to CSS variable; templates/report.css gives their values.
_VARIABLES = {
    "#000001": "var(--ink)",
    "#000002": "var(--faint)",
    "#000003": "var(--grid)",
    "#000011": "var(--series-1)",
    "#000012": "var(--series-2)",
    "#000013": "var(--series-3)",
    "#000014": "var(--series-4)",
    "#000015": "var(--series-5)",
}
_INK, _FAINT, _GRID, *SERIES = _VARIABLES
_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
GOOD, BAD, NEUTRAL = SERIES[:3]
_SIZE_INCHES = (8.2, 2.8)


def success_chart(training: Sequence[StepSuccess], validation: Sequence[StepSuccess]) -> str | None:
    """Success by step with its interval, and the validations."""
    if not any(step.share is not None for step in (*training, *validation)):
        return None

    def draw(axes: Axes) -> None:
        shown = [step for step in training if step.share is not None]
        counted = [step for step in shown if step.recorded.total]
        if counted:
            low, high = zip(*(step.recorded.interval for step in counted), strict=True)
            axes.fill_between(
                [step.step for step in counted], _percent(low), _percent(high), color=SERIES[0], alpha=0.2
            )
        if shown:
            shares = [step.share or 0.0 for step in shown]
            axes.plot([s.step for s in shown], _percent(shares), color=SERIES[0], marker=".", label="training")
        points = [step for step in validation if step.share is not None]
        if points:
            shares = [step.share or 0.0 for step in points]
            axes.plot([s.step for s in points], _percent(shares), "D", color=SERIES[1], label="validation")
        axes.set_ylim(0, 102)
        axes.set_ylabel("success, %")

    return _svg("success", draw)


def stacked_chart(
    steps: Sequence[int], series: Mapping[str, Sequence[float | None]], label: str, colors: Sequence[str] = SERIES
) -> str | None:
    """Amounts that belong together, upon each other, by step; series that are always 0 are left out."""
    shown = [
        (color, name, [value or 0.0 for value in values])
        for color, (name, values) in zip(colors, series.items(), strict=False)
        if any(values)
    ]
    if not shown or not steps:
        return None

    def draw(axes: Axes) -> None:
        edges = [*(step - 0.5 for step in steps), steps[-1] + 0.5]
        base = [0.0] * len(steps)
        for color, name, values in shown:
            top = [below + value for below, value in zip(base, values, strict=True)]
            axes.stairs(top, edges, baseline=base, fill=True, color=color, label=name)
            base = top
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(bottom=0)
        axes.set_ylabel(label)

    return _svg(label, draw)


def _percent(shares: Sequence[float]) -> list[float]:
    return [100 * share for share in shares]


def _svg(name: str, draw: Any) -> str:
    """Draw on a chart's axes; `name` makes the ids in it differ from those of the page's other charts."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        axes.set_xlabel("training step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles, labels = axes.get_legend_handles_labels()
        if labels:
            figure.legend(handles, labels, loc="outside upper left", ncols=len(labels))
        return _inline(figure)


def _inline(figure: Figure) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Groups' ids repeat from chart to chart; the ids that a drawing refers to are made of its content.
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    for placeholder, variable in _VARIABLES.items():
        svg = svg.replace(placeholder, variable)
    return svg.replace("<svg ", '<svg aria-hidden="true" ', 1)
