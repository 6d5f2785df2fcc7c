"use strict";
/* Curves and stacks, drawn by uPlot: all charts of all pages. Colours are custom properties of the page. */
{
  const { html, plural } = viewer.ui;
  const { useEffect, useRef, useState } = preactHooks;

  const HEIGHT = 150;
  const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];
  const cursors = uPlot.sync("charts");

  const short = (value) =>
    value === null || value === undefined
      ? "–"
      : Math.abs(value) >= 1e6 || (value !== 0 && Math.abs(value) < 1e-3)
        ? value.toExponential(2)
        : String(Number(value.toPrecision(4)));

  const isNumber = (value) => typeof value === "number";

  /** The axis of the values: as far as they go; a single value is in its middle. */
  const around = (from, to) => {
    if (from === null || to === null) return [0, 1];
    const margin = from === to ? Math.abs(from) / 10 || 1 : (to - from) / 20;
    return [from - margin, to + margin];
  };
  const fromZero = (_, to) => [0, 1.05 * to || 1];
  const share = () => [0, 1.02];
  const SCALES = { around, fromZero, share };

  /** One step more on either side of a single one; uPlot itself would draw it on an axis to 100. */
  const steps = (_, from, to) => (from === to ? [from - 1, from + 1] : [from, to]);
  const barSteps = (_, from, to) => [from - 0.5, to + 0.5];
  const rangeOf = (x, range) => (x.length === 1 ? range(null, x[0], x[0]) : range);

  /** What the legend shows of a curve: the value under the mouse; without a mouse, the last one. */
  const shownAt = (values, show) => (_, __, ___, index) => show(index === null ? values.findLast(isNumber) : values[index]);

  /**
   * A chart.
   * @param {string} title above it
   * @param {Array} x ascending
   * @param {Array<{label, values, tone, kind}>} series `kind`: "line", "points", "bars" (upon each other), or "band" with
   *   `low` and `high`; `tone`: a custom property
   * @param {string} scale one of `SCALES`
   * @param {string} xLabel what `x` is
   * @param {boolean} whole whether `x` are whole numbers
   */
  function Chart({ title, x, series, scale = "around", xLabel = "training step", whole = true, last, show = short }) {
    const box = useRef(null);
    const seen = useSeen(box);
    const chart = { x, series, scale, xLabel, whole, show };
    const drawn = JSON.stringify([x, series, scale, xLabel]);
    useEffect(() => {
      if (!seen) return undefined;
      let plot = null;
      const draw = () => {
        plot?.destroy();
        plot = new uPlot(...arguments_(chart, box.current), box.current);
      };
      draw();
      const resized = new ResizeObserver(() => plot.setSize({ width: box.current.clientWidth, height: HEIGHT }));
      resized.observe(box.current);
      window.addEventListener("themechange", draw);
      return () => {
        window.removeEventListener("themechange", draw);
        resized.disconnect();
        plot.destroy();
      };
    }, [seen, drawn]);
    return html`<figure class="chart">
      <figcaption><bdi>${title}</bdi>${last !== undefined && html`<b>${show(last)}</b>`}</figcaption>
      <div ref=${box} role="img" aria-label=${`${title}: ${spoken(series, show)}`}></div>
    </figure>`;
  }

  /** The curves for who does not see them. */
  function spoken(series, show) {
    const drawn = series.filter(({ kind }) => kind !== "band");
    const each = drawn.map(({ label, values }) => {
      const numbers = values.filter(isNumber);
      const name = drawn.length > 1 ? `${label}: ` : "";
      if (!numbers.length) return `${name}no value`;
      const [low, high] = [Math.min, Math.max].map((most) => numbers.reduce((a, b) => most(a, b)));
      return `${name}last ${show(numbers.at(-1))}, least ${show(low)}, most ${show(high)}, ${plural(numbers.length, "value")}`;
    });
    return each.join("; ");
  }

  /** What uPlot takes: options and columns. Bars are drawn from the highest down, each over the one before. */
  function arguments_({ x, series, scale, xLabel, whole, show }, box) {
    const style = getComputedStyle(box);
    const color = (tone) => resolved(style, tone);
    const bars = series.filter(({ kind }) => kind === "bars");
    const columns = [x];
    const options = [{ label: xLabel, value: shownAt(x, short) }];
    const bands = [];
    const add = (values, option) => (columns.push(values), options.push({ spanGaps: true, ...option }), columns.length - 1);
    [...bars].reverse().forEach(({ label, values, tone }, i) => {
      const below = bars.slice(0, bars.length - i);
      const tops = x.map((_, j) => below.reduce((sum, one) => sum + (one.values[j] || 0), 0));
      add(tops, {
        label,
        fill: color(tone),
        stroke: color(tone),
        width: 0,
        paths: uPlot.paths.bars({ size: [1, 60] }),
        points: { show: false },
        value: shownAt(values, show),
      });
    });
    for (const one of series.filter(({ kind }) => kind === "band")) {
      const hidden = { stroke: "transparent", width: 0, points: { show: false }, class: "hidden" };
      const edges = [one.high, one.low].map((values) =>
        add(values, { ...hidden, label: one.label, value: (_, value) => show(value) }),
      );
      bands.push({ series: edges, fill: `color-mix(in srgb, ${color(one.tone)} 20%, transparent)` });
    }
    for (const { label, values, tone, kind } of series.filter(({ kind }) => kind !== "band" && kind !== "bars"))
      add(values, {
        label,
        stroke: color(tone),
        width: kind === "points" ? 0 : 1.5,
        points: {
          show: kind === "points" || ((plot) => plot.data[0].length <= 60),
          size: kind === "points" ? 9 : 4,
          fill: color(tone),
        },
        value: shownAt(values, show),
      });
    const [ink, grid] = [color("--muted"), color("--border")];
    const axis = {
      stroke: ink,
      grid: { stroke: grid, width: 1 },
      ticks: { stroke: grid, width: 1 },
      font: "11px system-ui, sans-serif",
    };
    const range = SCALES[bars.length ? "fromZero" : scale];
    const allOptions = {
      width: box.clientWidth,
      height: HEIGHT,
      padding: [8, 14, 0, 0],
      cursor: { sync: { key: cursors.key, setSeries: false }, points: { size: 7 } },
      legend: { show: true, live: true, markers: { width: 0, fill: (_, i) => options[i].fill || options[i].stroke } },
      scales: {
        x: { time: false, range: rangeOf(x, bars.length ? barSteps : steps) },
        y: { range: (_, from, to) => range(from, to) },
      },
      series: options,
      bands,
      axes: [
        { ...axis, size: 28, space: 44, ...(whole ? { incrs: WHOLE } : {}), values: (_, ticks) => ticks.map(short) },
        { ...axis, size: 52, space: 28, values: (_, ticks) => ticks.map(show) },
      ],
    };
    return [allOptions, columns];
  }

  /** A custom property's colour as the canvas takes it: light-dark() resolves only in a real property. */
  function resolved(style, variable) {
    const probe = document.createElement("i");
    probe.style.color = style.getPropertyValue(variable);
    document.body.append(probe);
    const color = getComputedStyle(probe).color;
    probe.remove();
    return color;
  }

  /** Whether an element has come near the window: two hundred curves are drawn as one scrolls. All are for a printer. */
  function useSeen(box) {
    const [seen, setSeen] = useState(viewer.source.kind === "report");
    useEffect(() => {
      const observer = new IntersectionObserver(
        (entries) => entries.some((entry) => entry.isIntersecting) && setSeen(true),
        { rootMargin: "300px" },
      );
      observer.observe(box.current);
      return () => observer.disconnect();
    }, []);
    return seen;
  }

  /** The colours of a chart's series, in order: `--series-1` and so on. */
  const tone = (i) => `--series-${1 + (i % 6)}`;

  const rangesOf = (left, right, low, high) => [steps(null, left, right), around(low, high)];

  Object.assign(viewer.ui, { Chart, short, tone, rangesOf, rangeOf });
}
