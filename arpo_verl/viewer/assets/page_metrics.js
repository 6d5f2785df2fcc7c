"use strict";
/* The run's metrics as curves: a default set, all by group, or what a search finds. */
{
  const { html, useDocument, usePolling, Waiting, Heading, plural, Chart } = viewer.ui;
  const { useMemo, useState } = preactHooks;

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
        ${plural(shown.length, "curve")} of ${names.length}; ${plural(metrics.steps.length, "training step")}. Drag across a curve to
        enlarge, double-click to see all.
      </p>
      ${names.length === 0 && html`<p class="empty">No metrics.jsonl in this run: veRL writes it with trainer.logger=[file].</p>`}
      <div class="charts">
        ${shown.map((name) => html`<${Curve} key=${name} ...${{ name, steps: metrics.steps, values: metrics.series[name] }} />`)}
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

  function Curve({ name, steps, values }) {
    const known = steps.map((step, i) => [step, values[i]]).filter(([, value]) => typeof value === "number");
    const numbers = known.map(([, value]) => value);
    const series = [{ label: "value", values: numbers, tone: "--series-1", kind: "line" }];
    return html`<${Chart} title=${name} x=${known.map(([step]) => step)} series=${series} last=${numbers.at(-1)} />`;
  }

  viewer.MetricsPage = MetricsPage;
}
