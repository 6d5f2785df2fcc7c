"use strict";
/* The run's metrics as curves: a default set, all by group, or what a search finds. */
{
  const { html, useDocument, usePolling, Waiting, Heading, plural } = viewer.ui;
  const { useEffect, useMemo, useRef, useState } = preactHooks;

  /** What one looks at first, as far as the run has it: patterns of names, in order. */
  const OVERVIEW = [
    /^val(-core)?\/.*(mean@|success|reward|score|acc)/,
    /^rollout\/success_mean$/,
    /^rollout\/reward_mean$/,
    /^critic\/score\/mean$/,
    /^rollout\/turns_mean$/,
    /^rollout\/format_error_mean$/,
    /^replay\/injected$/,
    /^replay\/informative_share$/,
    /^replay\/groups_all_failed$/,
    /^actor\/entropy$/,
    /^actor\/pg_loss$/,
    /^actor\/grad_norm$/,
    /^response_length\/mean$/,
    /^timing_s\/step$/,
    /^timing_s\/gen$/,
    /^environment\/busy_share$/,
    /^environment\/desktops_busy$/,
  ];
  const OVERVIEW_GROUP = "overview";
  const MAX_OVERVIEW_OF_ONE_PATTERN = 4;

  /** "val-core/embedded/acc/mean@1" -> "val": validation's names begin in several ways. */
  const groupOf = (name) => (/^val[-/]/.test(name) ? "val" : name.includes("/") ? name.split("/")[0] : "other");

  /** layer_2 before layer_10 */
  const inOrder = new Intl.Collator("en", { numeric: true }).compare;

  function overviewOf(names) {
    const found = OVERVIEW.flatMap((pattern) =>
      names.filter((name) => pattern.test(name)).slice(0, MAX_OVERVIEW_OF_ONE_PATTERN),
    );
    return [...new Set(found)];
  }

  function MetricsPage({ run, query }) {
    const { metrics, error } = useMetrics(run.live);
    const names = useMemo(() => (metrics ? Object.keys(metrics.series).sort(inOrder) : []), [metrics]);
    const groups = useMemo(
      () =>
        viewer.episodes.count(
          names.map((name) => ({ name })),
          (row) => groupOf(row.name),
        ),
      [names],
    );
    const words = (query.q || "").toLowerCase().split(/\s+/).filter(Boolean);
    const group = query.group || OVERVIEW_GROUP;
    const shown = words.length
      ? names.filter((name) => words.every((word) => name.toLowerCase().includes(word)))
      : group === OVERVIEW_GROUP
        ? overviewOf(names)
        : names.filter((name) => groupOf(name) === group);
    const set = (changes) => viewer.route.go({ page: "metrics", query: { ...query, ...changes } }, { replace: true });
    if (!metrics)
      return html`<${Heading} focusKey="metrics">Metrics<//><${Waiting} error=${error} what="the metrics" />`;
    return html`
      <${Heading} focusKey="metrics">Metrics<//>
      <form class="filters" role="search" aria-label="Choose metrics" onSubmit=${(event) => event.preventDefault()}>
        <label class="grow">Search
          <input
            type="search"
            value=${query.q || ""}
            onInput=${(event) => set({ q: event.target.value })}
            placeholder="part of a name"
          />
        </label>
        <label>Group<select value=${words.length ? "" : group} onChange=${(event) => set({ group: event.target.value, q: "" })}>
          ${words.length > 0 && html`<option value="">all groups</option>`}
          <option value=${OVERVIEW_GROUP}>overview</option>
          ${[...groups].map(([name, many]) => html`<option value=${name}>${name} (${many})</option>`)}
        </select></label>
      </form>
      <p class="counts" role="status">
        ${plural(shown.length, "curve")} of ${names.length}; ${plural(metrics.steps.length, "step")}. Drag across a curve to
        enlarge, double-click to see all.
      </p>
      ${names.length === 0 && html`<p class="empty">No metrics.jsonl in this run: veRL writes it with trainer.logger=[file].</p>`}
      <div class="charts">
        ${shown.map((name) => html`<${Chart} key=${name} ...${{ name, steps: metrics.steps, values: metrics.series[name] }} />`)}
      </div>
    `;
  }

  const POLL_MS = 5000;

  function useMetrics(live) {
    const { data, error } = useDocument("api/metrics");
    const [newer, setNewer] = useState(null);
    // A server that is away for a moment leaves the curves as they are: the page's banner tells.
    usePolling(async () => viewer.source.get("api/metrics").then(setNewer, () => {}), POLL_MS, Boolean(live && data));
    return { metrics: newer || data, error };
  }

  const short = (value) =>
    value === null || value === undefined
      ? "–"
      : Math.abs(value) >= 1e6 || (value !== 0 && Math.abs(value) < 1e-3)
        ? value.toExponential(2)
        : String(Number(value.toPrecision(4)));

  function Chart({ name, steps, values }) {
    const box = useRef(null);
    const seen = useSeen(box);
    const theme = useTheme();
    const known = values.map((value, i) => [steps[i], value]).filter(([, value]) => typeof value === "number");
    const numbers = known.map(([, value]) => value);
    const [low, high] = [
      numbers.reduce((a, b) => Math.min(a, b), Infinity),
      numbers.reduce((a, b) => Math.max(a, b), -Infinity),
    ];
    const last = numbers.at(-1);
    useEffect(() => {
      if (!seen) return undefined;
      const plot = new uPlot(options(name, box.current), [known.map(([step]) => step), numbers], box.current);
      const resized = new ResizeObserver(() => plot.setSize({ width: box.current.clientWidth, height: HEIGHT }));
      resized.observe(box.current);
      return () => {
        resized.disconnect();
        plot.destroy();
      };
    }, [seen, theme, name, steps, values]);
    const summary = numbers.length
      ? `last ${short(last)}, least ${short(low)}, most ${short(high)}, ${plural(numbers.length, "value")}`
      : "no value";
    return html`<figure class="chart">
      <figcaption><bdi>${name}</bdi><b>${short(last)}</b></figcaption>
      <div ref=${box} role="img" aria-label=${`${name}: ${summary}`}></div>
    </figure>`;
  }

  const HEIGHT = 150;
  const cursors = uPlot.sync("metrics");

  function options(name, box) {
    const style = getComputedStyle(box);
    const [line, ink, grid] = ["--accent", "--muted", "--border"].map((variable) => resolved(style, variable));
    const axis = {
      stroke: ink,
      grid: { stroke: grid, width: 1 },
      ticks: { stroke: grid, width: 1 },
      font: "11px system-ui, sans-serif",
    };
    return {
      width: box.clientWidth,
      height: HEIGHT,
      padding: [8, 14, 0, 0],
      cursor: { sync: { key: cursors.key, setSeries: false }, points: { size: 7 } },
      legend: { show: true, live: true },
      scales: { x: { time: false } },
      series: [
        { label: "step", value: (_, step) => (step === null ? "–" : String(step)) },
        {
          label: "value",
          stroke: line,
          width: 1.5,
          points: { show: (plot) => plot.data[0].length <= 60, size: 4, fill: line },
          value: (_, value) => short(value),
        },
      ],
      axes: [
        { ...axis, size: 28, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000], space: 44 },
        { ...axis, size: 52, space: 28, values: (_, ticks) => ticks.map(short) },
      ],
    };
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

  /** Whether an element has come near the window: two hundred curves are drawn as one scrolls. */
  function useSeen(box) {
    const [seen, setSeen] = useState(false);
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

  function useTheme() {
    const [changes, setChanges] = useState(0);
    useEffect(() => {
      const changed = () => setChanges((count) => count + 1);
      window.addEventListener("themechange", changed);
      return () => window.removeEventListener("themechange", changed);
    }, []);
    return changes;
  }

  viewer.MetricsPage = MetricsPage;
}
