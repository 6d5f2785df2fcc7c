"use strict";
/* Frontier sampling: what is thought of each task, and how often it is drawn. */
{
  const { html, number, plural, usePolled, Filters, Heading, Interval, Select, Waiting, titles } = viewer.ui;
  const { useMemo } = preactHooks;

  const POLL_MS = 3000;
  const byName = (a, b) => (a.task_id < b.task_id ? -1 : 1);
  const ORDERS = {
    share: ["share of draws", (a, b) => b.share - a.share || byName(a, b)],
    drawn: ["most drawn", (a, b) => b.drawn - a.drawn || byName(a, b)],
    easy: ["easiest first", (a, b) => b.rate - a.rate || byName(a, b)],
    hard: ["hardest first", (a, b) => a.rate - b.rate || byName(a, b)],
    name: ["name", byName],
  };

  function FrontierPage({ query }) {
    const found = usePolled("api/frontier", POLL_MS);
    const order = ORDERS[query.order] ? query.order : "share";
    const tasks = useMemo(() => [...(found.data?.tasks || [])].sort(ORDERS[order][1]), [found.data, order]);
    const choose = (order) => viewer.route.go({ page: "frontier", query: { ...query, order } }, { replace: true });
    if (!found.data) return html`<${Heading} focusKey="frontier">Frontier<//><${Waiting} error=${found.error} what="the frontier" />`;
    const drawn = tasks.reduce((sum, task) => sum + task.drawn, 0);
    return html`
      <${Heading} focusKey="frontier">Frontier<//>
      <${Filters} label="Choose"><${Select} label="Order" value=${order} options=${titles(ORDERS)} onChange=${choose} /><//>
      <p class="counts">
        ${plural(tasks.length, "task")}, ${plural(drawn, "group")} drawn. A dot is a task's estimated success, its line the
        95% interval by the evidence that is left; as it was when the task was last drawn or played.
      </p>
      <div class="table-scroll"><table class="frontier">
        <thead><tr>
          <th scope="col">Task</th><th scope="col">Estimated success, 0 to 1</th><th scope="col" class="right">Estimate</th>
          <th scope="col" class="right">Drawn</th><th scope="col" class="right">Share of draws to come</th><th scope="col" class="right">As of training step</th>
        </tr></thead>
        <tbody>${tasks.map((task) => html`<${TaskRow} key=${task.task_id} task=${task} />`)}</tbody>
      </table></div>
    `;
  }

  const TaskRow = ({ task }) => html`<tr>
    <th scope="row"><a href=${viewer.route.format({ page: "episodes", query: { task: task.task_id, kind: "training" } })}><bdi>${task.task_id}</bdi></a></th>
    <td><${Interval} share=${task.rate} low=${task.low} high=${task.high} /></td>
    <td class="right">${number(task.rate)} <span class="muted">(${number(task.low)} to ${number(task.high)})</span></td>
    <td class="right">${task.drawn}</td>
    <td class="right">${number(100 * task.share, 1)}%</td>
    <td class="right">${task.step}</td>
  </tr>`;

  viewer.FrontierPage = FrontierPage;
}
