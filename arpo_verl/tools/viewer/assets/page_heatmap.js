"use strict";
/* Tasks x training steps: mean success a cell. Training and validation apart. */
{
  const { html, number, percent, plural, Filters, Heading, Search, Select, titles } = viewer.ui;
  const { h } = preact;
  const { useMemo, useState } = preactHooks;
  const { meanSuccess } = viewer.episodes;

  /** As many columns as a wide screen shows without scrolling; more steps share columns. */
  const MAX_BINS = 40;
  /** Up to here a cell has room for its value. */
  const MAX_BINS_WITH_TEXT = 26;
  const SHADES = 10;

  const byName = (a, b) => (a.task < b.task ? -1 : 1);
  const ORDERS = {
    name: ["name", byName],
    hard: ["hardest first", (a, b) => a.mean - b.mean || byName(a, b)],
    easy: ["easiest first", (a, b) => b.mean - a.mean || byName(a, b)],
    gain: ["most gained", (a, b) => b.gain - a.gain || byName(a, b)],
    jump: ["jumped to 100% first", (a, b) => (b.jump?.step ?? -1) - (a.jump?.step ?? -1) || byName(a, b)],
  };

  /** Step ranges of a round width that cover the run: [[1, 5], [6, 10], ...] */
  function binsOf(steps) {
    if (!steps.length) return [];
    const [first, last] = [Math.min(...steps), Math.max(...steps)];
    const span = last - first + 1;
    let [width, scale] = [1, 1];
    while (span / width > MAX_BINS) {
      width = [2, 5, 10].map((digit) => digit * scale).find((wider) => wider > width);
      if (width === 10 * scale) scale = width;
    }
    const count = Math.ceil(span / width);
    return Array.from({ length: count }, (_, i) => [first + i * width, Math.min(first + (i + 1) * width - 1, last)]);
  }

  /** One row a task: its cells by bin, null where nothing ran, its mean success, and the step of its jump to 100%. */
  function tableOf(rows, bins, jumps) {
    const width = bins.length ? bins[0][1] - bins[0][0] + 1 : 1;
    const byTask = new Map();
    for (const row of rows) {
      if (!byTask.has(row.task_id))
        byTask.set(
          row.task_id,
          bins.map(() => []),
        );
      byTask.get(row.task_id)[Math.floor((row.step - bins[0][0]) / width)].push(row);
    }
    return [...byTask].map(([task, cells]) => {
      const means = cells.map((cell) => (cell.length ? { mean: meanSuccess(cell), count: cell.length } : null));
      const seen = means.filter((cell) => cell && cell.mean !== null);
      return {
        task,
        cells: means,
        mean: meanSuccess(cells.flat()) ?? 0,
        jump: jumps.get(task),
        gain: seen.length ? seen.at(-1).mean - seen[0].mean : 0,
      };
    });
  }

  const rangeText = ([first, last]) => (first === last ? `${first}` : `${first}-${last}`);

  function HeatmapPage({ run, rows, tasks, query }) {
    const kind = query.kind === "validation" ? "validation" : "training";
    const order = ORDERS[query.order] ? query.order : "name";
    const wanted = useMemo(
      () => viewer.episodes.select(rows, { kind, q: query.q }, tasks),
      [rows, kind, query.q, tasks],
    );
    const bins = useMemo(() => binsOf([...new Set(wanted.map((row) => row.step))]), [wanted]);
    const jumps = useMemo(() => new Map((run?.tasks || []).map((task) => [task.task_id, task.jump])), [run]);
    const table = useMemo(() => tableOf(wanted, bins, jumps).sort(ORDERS[order][1]), [wanted, bins, jumps, order]);
    const set = (changes) => viewer.route.go({ page: "heatmap", query: { ...query, ...changes } }, { replace: true });
    return html`
      <${Heading} focusKey="heatmap">Tasks × training steps<//>
      <${Filters} label="Choose">
        <${Search} value=${query.q} onInput=${(q) => set({ q })} placeholder="task or instruction" />
        <${Select} label="Kind" value=${kind} options=${[["training"], ["validation"]]} onChange=${(kind) => set({ kind })} />
        <${Select} label="Order" value=${order} options=${titles(ORDERS)} onChange=${(order) => set({ order })} />
        <${Legend} />
      <//>
      ${
        table.length === 0
          ? html`<p class="empty">No ${kind} episode${query.q ? " of such a task" : ""} so far.</p>`
          : html`<${ToldGrid} table=${table} bins=${bins} kind=${kind} />`
      }
    `;
  }

  /** The grid, and a line that tells the cell under pointer or focus. Ten thousand cells are not drawn anew for it. */
  function ToldGrid({ table, bins, kind }) {
    const [told, setTold] = useState(null);
    const tell = (event) => {
      const link = event.target.closest("td a, th a");
      if (link) setTold(link.getAttribute("aria-label"));
    };
    const grid = useMemo(() => html`<${Grid} table=${table} bins=${bins} kind=${kind} />`, [table, bins, kind]);
    return html`
      <p class="counts" aria-live="polite">
        ${told || "Mean success of the episodes of a cell. A cell opens its episodes; arrow keys move between cells."}
      </p>
      <div class="table-scroll heat-scroll" onMouseOver=${tell} onFocusIn=${tell}>${grid}</div>
    `;
  }

  const Legend = () => html`
    <div class="legend" role="img" aria-label="Colour scale: dark is no success, bright is success in every episode">
      <span>0</span>
      <span class="scale">${Array.from({ length: SHADES + 1 }, (_, i) => html`<i class=${`shade${i}`}></i>`)}</span>
      <span>1</span>
    </div>
  `;

  function Grid({ table, bins, kind }) {
    const text = bins.length <= MAX_BINS_WITH_TEXT;
    const firstCell = table[0].cells.findIndex(Boolean);
    return html`<table class=${`heat${text ? "" : " dense"}`} role="grid" onKeyDown=${moveInGrid}>
      <caption class="hidden">Mean success by task and training step, ${kind}</caption>
      <thead><tr>
        <th scope="col">Task</th>
        ${bins.map(
          (bin, i) =>
            html`<th scope="col"><span class=${text || i % 5 === 0 ? "" : "hidden"}>${text ? rangeText(bin) : bin[0]}</span></th>`,
        )}
        <th scope="col">All</th>
      </tr></thead>
      <tbody>${table.map(
        (row, i) => html`<tr key=${row.task}>
          <th scope="row"><${JumpMark} task=${row.task} jump=${row.jump} /><bdi>${row.task}</bdi></th>
          ${row.cells.map((cell, j) =>
            cell ? cellOf(row.task, cell, bins[j], kind, text, i === 0 && j === firstCell) : h("td", { class: "none" }),
          )}
          <td class="mean">${percent(row.mean)}</td>
        </tr>`,
      )}</tbody>
    </table>`;
  }

  /** Of a task whose success jumped to 100% within a step: a link to the first such success. */
  function JumpMark({ task, jump }) {
    if (!jump) return null;
    const told = `${task}: all attempts of training step ${jump.step} succeed, after ${jump.earlier} of which hardly any did. Look whether the first one does the task`;
    const page = jump.first
      ? { page: "episode", id: jump.first, query: {} }
      : { page: "episodes", query: { task, step: `${jump.step}`, kind: "training" } };
    return html`<a class="jump" href=${viewer.route.format(page)} title=${told} aria-label=${told}>▲ ${jump.step}</a> `;
  }

  /** Plain elements, since there may be ten thousand. */
  function cellOf(task, cell, bin, kind, text, tabbable) {
    const step = rangeText(bin);
    const known = cell.mean !== null;
    const mean = `mean success ${known ? number(cell.mean) : "not scored"} of ${plural(cell.count, "episode")}`;
    const label = `${task}, ${bin[0] === bin[1] ? "training step" : "training steps"} ${step}: ${mean}`;
    const href = viewer.route.format({ page: "episodes", query: { task, step, kind } });
    const link = h(
      "a",
      { href, "aria-label": label, tabIndex: tabbable ? 0 : -1 },
      text && known ? Math.round(100 * cell.mean) : "\u00a0",
    );
    return h("td", { class: known ? `shade${Math.round(SHADES * cell.mean)}` : "none" }, link);
  }

  const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

  /** Arrow keys go to the next cell that has episodes; only one cell is a stop of the Tab key. */
  function moveInGrid(event) {
    const move = MOVES[event.key];
    const cell = event.target.closest("td");
    if (!move || !cell) return;
    event.preventDefault();
    const rows = [...event.currentTarget.tBodies[0].rows];
    let [row, column] = [rows.indexOf(cell.parentElement), cell.cellIndex];
    let link = null;
    while (!link) {
      [row, column] = [row + move[0], column + move[1]];
      if (!rows[row]?.cells[column]) return;
      link = rows[row].cells[column].querySelector("a");
    }
    event.target.tabIndex = -1;
    link.tabIndex = 0;
    link.focus();
  }

  viewer.HeatmapPage = HeatmapPage;
  viewer.binsOf = binsOf;
}
