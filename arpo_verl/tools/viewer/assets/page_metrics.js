"use strict";
/* The run's metrics as curves: a default set, all by group, or what a search finds. */
{
  const { html, usePolled, Filters, Search, Select, Waiting, Heading, plural, Chart } = viewer.ui;
  const { useMemo } = preactHooks;

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
  const POLL_MS = 5000;
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

  function MetricsPage({ query }) {
    const { data: metrics, error } = usePolled("api/metrics", POLL_MS);
    const names = useMemo(() => (metrics ? Object.keys(metrics.series).sort(inOrder) : []), [metrics]);
    const groups = useMemo(() => viewer.episodes.count(names, groupOf), [names]);
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
      <${Filters} label="Choose metrics">
        <${Search} value=${query.q} onInput=${(q) => set({ q })} placeholder="part of a name" />
        <${Select} label="Group" value=${words.length ? "" : group} onChange=${(group) => set({ group, q: "" })} options=${[
          ...(words.length ? [["", "all groups"]] : []),
          [OVERVIEW_GROUP],
          ...[...groups].map(([name, many]) => [name, `${name} (${many})`]),
        ]} />
      <//>
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

  function Curve({ name, steps, values }) {
    const known = steps.map((step, i) => [step, values[i]]).filter(([, value]) => typeof value === "number");
    const numbers = known.map(([, value]) => value);
    const series = [{ label: "value", values: numbers, tone: "--series-1", kind: "line" }];
    return html`<${Chart} title=${name} x=${known.map(([step]) => step)} series=${series} last=${numbers.at(-1)} />`;
  }

  viewer.MetricsPage = MetricsPage;
}
