"use strict";
/* Frontier sampling: what is thought of each task, and how often it is drawn. */
{
  const { html, number, plural, usePolling, Heading, Interval, Waiting } = viewer.ui;
  const { useMemo, useState } = preactHooks;

  const POLL_MS = 3000;
  const ORDERS = [
    ["share", "share of draws"],
    ["drawn", "most drawn"],
    ["easy", "easiest first"],
    ["hard", "hardest first"],
    ["name", "name"],
  ];
  const byName = (a, b) => (a.task_id < b.task_id ? -1 : 1);
  const BY = {
    share: (a, b) => b.share - a.share || byName(a, b),
    drawn: (a, b) => b.drawn - a.drawn || byName(a, b),
    easy: (a, b) => b.rate - a.rate || byName(a, b),
    hard: (a, b) => a.rate - b.rate || byName(a, b),
    name: byName,
  };

  function FrontierPage({ query }) {
    const [found, setFound] = useState({});
    usePolling(
      () =>
        viewer.source.get("api/frontier").then(
          (data) => setFound({ data }),
          (error) => setFound((before) => ({ ...before, error })),
        ),
      viewer.source.exported ? 1e9 : POLL_MS,
      true,
    );
    const order = BY[query.order] ? query.order : "share";
    const tasks = useMemo(() => [...(found.data?.tasks || [])].sort(BY[order]), [found.data, order]);
    const chosen = (event) =>
      viewer.route.go({ page: "frontier", query: { ...query, order: event.target.value } }, { replace: true });
    if (!found.data) return html`<${Heading} focusKey="frontier">Frontier<//><${Waiting} error=${found.error} what="the frontier" />`;
    if (!tasks.length)
      return html`<${Heading} focusKey="frontier">Frontier<//>
        <p class="empty">This run draws its tasks in veRL's own order: data.tasks.sampling is uniform.</p>`;
    const drawn = tasks.reduce((sum, task) => sum + task.drawn, 0);
    return html`
      <${Heading} focusKey="frontier">Frontier<//>
      <form class="filters" onSubmit=${(event) => event.preventDefault()}>
        <label>Order<select value=${order} onChange=${chosen}>
          ${ORDERS.map(([name, title]) => html`<option value=${name}>${title}</option>`)}
        </select></label>
      </form>
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
