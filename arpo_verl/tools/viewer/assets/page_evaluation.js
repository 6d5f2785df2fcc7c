"use strict";
/* An evaluation: its table within a turn budget, and every task's runs, each of which opens its episode. */
{
  const { html, known, number, percent, plural, share, useDocument, Filters, Heading, Link, Select, Waiting } = viewer.ui;
  const { episodeRoute, titles } = viewer.ui;
  const { useMemo } = preactHooks;

  const SHADES = 10;
  const ORDERS = {
    given: ["as the task files", () => 0],
    hard: ["hardest first", (a, b) => a.mean - b.mean],
    easy: ["easiest first", (a, b) => b.mean - a.mean],
  };

  const distinct = (values) => [...new Set(values)].sort((a, b) => a - b);

  function EvaluationPage({ query }) {
    const { data, error } = useDocument("api/evaluation");
    const budgets = distinct((data?.table || []).map((row) => row.budget));
    const budget = budgets.includes(Number(query.budget)) ? Number(query.budget) : budgets.at(-1);
    const order = ORDERS[query.order] ? query.order : "given";
    const set = (change) => viewer.route.go({ page: "evaluation", query: { ...query, ...change } }, { replace: true });
    if (!data) return html`<${Waiting} error=${error} what="the evaluation" />`;
    return html`
      <${Heading} focusKey="evaluation">Evaluation<//>
      <${Filters} label="Choose">
        <${Select} label="Turns at most" value=${budget} options=${budgets.map((one) => [one])} onChange=${(budget) => set({ budget })} />
        <${Select} label="Order of tasks" value=${order} options=${titles(ORDERS)} onChange=${(order) => set({ order })} />
      <//>
      <${Domains} rows=${data.table.filter((row) => row.budget === budget)} />
      <${Tasks} tasks=${data.tasks} budget=${budget} order=${order} />
    `;
  }

  function Domains({ rows }) {
    const ks = distinct(rows.flatMap((row) => row.pass_at_k.map((one) => one.k)));
    const heads = ["tasks", "runs", "success", "95% interval", ...ks.map((k) => `pass@${k}`)];
    return html`<div class="table-scroll"><table class="evaluation">
      <caption class="hidden">Success by domain</caption>
      <thead><tr>
        <th scope="col">domain</th>
        ${[...heads, "turns", "format errors", "faults"].map((head) => html`<th scope="col" class="numeric">${head}</th>`)}
      </tr></thead>
      <tbody>${rows.map((row) => {
        const cells = [row.tasks, row.runs, share(row.success), row.interval ? row.interval.map(share).join(" to ") : "–"];
        cells.push(...ks.map((k) => share(row.pass_at_k.find((one) => one.k === k)?.value)));
        cells.push(number(row.turns, 1), row.format_errors, row.faults);
        return html`<tr class=${row.domain === null ? "overall" : ""}>
          <th scope="row"><bdi>${row.domain === null ? "all" : row.domain || "other"}</bdi></th>
          ${cells.map((cell) => html`<td class="numeric">${cell}</td>`)}
        </tr>`;
      })}</tbody>
    </table></div>`;
  }

  function Tasks({ tasks, budget, order }) {
    const rows = useMemo(() => rowsOf(tasks, budget, order), [tasks, budget, order]);
    const columns = distinct(rows.flatMap((row) => [...row.runs.keys()]));
    return html`
      <h2>Tasks</h2>
      <p class="counts">${plural(rows.length, "task")}. A cell is a run, with its score in percent, and opens its episode.</p>
      <div class="table-scroll heat-scroll"><table class="heat">
        <caption class="hidden">Score by task and run</caption>
        <thead><tr>
          <th scope="col">Task</th>
          ${columns.map((run) => html`<th scope="col">${run}</th>`)}
          <th scope="col">Mean</th><th scope="col">Runs</th>
        </tr></thead>
        <tbody>${rows.map(
          (row) => html`<tr key=${row.task_id}>
            <th scope="row" title=${row.domain}><bdi>${row.task_id}</bdi></th>
            ${columns.map((run) => cellOf(row, row.runs.get(run)))}
            <td class="mean">${row.runs.size ? percent(row.mean) : "–"}</td><td class="mean">${row.runs.size}</td>
          </tr>`,
        )}</tbody>
      </table></div>
    `;
  }

  function cellOf(row, run) {
    if (!run) return html`<td class="none"></td>`;
    const label = `${row.task_id}, run ${run.run}: score ${number(run.success)}, ${run.stop_reason}`;
    return html`<td class=${`shade${Math.round(SHADES * run.success)}`}>
      <${Link} to=${episodeRoute(run.episode_id)} aria-label=${label} title=${label}>${Math.round(100 * run.success)}<//>
    </td>`;
  }

  /** Tasks with their runs by number; those without one come last, whatever the order. */
  function rowsOf(tasks, budget, order) {
    const rows = tasks.map(({ task_id, domain, runs }) => {
      const scored = runs.filter((run) => run.budget === budget && known(run.success) && known(run.run));
      const mean = scored.reduce((sum, run) => sum + run.success, 0) / scored.length;
      return { task_id, domain, mean, runs: new Map(scored.map((run) => [run.run, run])) };
    });
    return rows.sort((a, b) => !a.runs.size - !b.runs.size || (a.runs.size ? ORDERS[order][1](a, b) : 0));
  }

  viewer.EvaluationPage = EvaluationPage;
}
