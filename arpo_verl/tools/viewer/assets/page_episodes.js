"use strict";
/* The list of episodes: filters, counts, sorting, a page of rows at a time. */
{
  const { html, number, signed, whole, percent, plural, duration, kindName, useDocument, useKeys, Link, episodeRoute } = viewer.ui;
  const { Score, ReplayBadges, Heading, Marked, patternOf, Search, Select, moveFocus } = viewer.ui;
  const { useLayoutEffect, useMemo, useRef } = preactHooks;
  const { count, filtersOf, meanSuccess, FAULTS } = viewer.episodes;

  const PAGE_ROWS = 100;
  /** Characters of an address that every server takes. */
  const MOST_ADDRESS = 8000;

  const COLUMNS = [
    { name: "success", title: "Result", cell: (row) => html`<${Score} row=${row} />` },
    { name: "task_id", title: "Task", cell: null },
    { name: "step", title: "Training step", numeric: true, cell: (row) => row.step },
    { name: "kind", title: "Kind", wide: true, cell: (row) => kindName(row.validation) },
    { name: "num_turns", title: "Turns", numeric: true, cell: (row) => row.num_turns },
    {
      name: "stop_reason",
      title: "Stopped",
      cell: (row) => html`${row.stop_reason}${row.format_error && html` <span class="badge bad">format</span>`}`,
    },
    { name: "reward", title: "Reward", numeric: true, cell: (row) => number(row.reward) },
    {
      name: "advantage",
      title: "Advantage",
      numeric: true,
      wide: true,
      cell: (row) => (row.replaced ? html`<${ReplaysAdvantage} row=${row} />` : signed(row.advantage)),
    },
    { name: "replay", title: "Replay", cell: (row) => html`<${ReplayBadges} row=${row} />` },
    { name: "wall_s", title: "Time", numeric: true, wide: true, cell: (row) => duration(row.wall_s) },
  ];

  const ReplaysAdvantage = ({ row }) =>
    html`<span class="muted" title="of the replay that took its place">(${signed(row.advantage)})</span>`;

  const SUCCESS = [
    ["", "any"],
    ["yes", "success"],
    ["no", "failure"],
    ["none", "not scored"],
  ];
  const FAULT_NAMES = { format: "format error", unscored: "not scored" };
  const KINDS = [["", "any"], ["training"], ["validation"]];
  const REPLAY = [
    ["", "any"],
    ["took", "took a place"],
    ["replaced", "was replaced"],
    ["none", "neither"],
  ];

  function EpisodesPage({ run, rows, tasks, query }) {
    const filters = filtersOf(query);
    const found = viewer.useSearch(filters.q);
    const selected = viewer.useSelected(rows, filters, tasks, found);
    const pages = Math.max(1, Math.ceil(selected.length / PAGE_ROWS));
    const page = Math.min(Math.max(1, Number(query.page) || 1), pages);
    const list = useRef(null);
    const search = useRef(null);
    const set = (changes) =>
      viewer.route.go({ page: "episodes", query: { ...filters, ...changes } }, { replace: true });
    const turnTo = (wanted) => {
      set({ page: wanted === 1 ? "" : wanted });
      scrollTo(0, 0);
    };
    const step = (by) => moveFocus(list.current, by);
    useKeys({
      "/": () => search.current.focus(),
      j: () => step(1),
      k: () => step(-1),
      ArrowDown: () => step(1),
      ArrowUp: () => step(-1),
      n: () => page < pages && turnTo(page + 1),
      p: () => page > 1 && turnTo(page - 1),
    });
    useLayoutEffect(() => {
      // Who comes back from an episode goes on from its row.
      list.current.querySelector(`a[data-id="${CSS.escape(viewer.lastOpened || "")}"]`)?.focus({ preventScroll: true });
    }, []);
    const shown = selected.slice((page - 1) * PAGE_ROWS, page * PAGE_ROWS);
    const asked = found.found && shown.length ? [["q", filters.q], ...shown.map(({ id }) => ["id", id])] : null;
    while (asked && String(new URLSearchParams(asked)).length > MOST_ADDRESS) asked.length = Math.ceil(asked.length / 2);
    const hits = useDocument(asked && "api/hits", asked).data?.hits || {};
    const pattern = useMemo(() => patternOf(filters.q), [filters.q]);
    return html`
      <${Heading} focusKey="episodes">Episodes<//>
      <${Filters} rows=${rows} tasks=${tasks} filters=${filters} set=${set} search=${search} />
      ${run.num_broken > 0 && html`<${Broken} run=${run} />`}
      <${Found} query=${filters.q} search=${found} />
      <${Counts} rows=${rows} selected=${selected} filters=${filters} />
      <table class="episodes" ref=${list}>
        <caption class="hidden">Episodes, ${PAGE_ROWS} to a page; a heading sorts by its column.</caption>
        <thead><tr>${COLUMNS.map((column) => html`<${SortHeader} column=${column} sort=${query.sort || "-step"} set=${set} />`)}</tr></thead>
        <tbody>${shown.map((row) => html`<${Row} key=${row.id} hit=${hits[row.id]} ...${{ row, tasks, filters, pattern }} />`)}</tbody>
      </table>
      ${selected.length === 0 && html`<p class="empty">No episode passes these filters.</p>`}
      ${pages > 1 && html`<${Pager} page=${page} pages=${pages} turnTo=${turnTo} />`}
    `;
  }

  /** How far the server's search is. */
  function Found({ query, search }) {
    if (!query || viewer.source.exported) return null;
    if (search.error) return html`<p class="message bad" role="alert">The search failed: ${search.error.message}</p>`;
    if (!search.found) return html`<p class="muted" role="status">Searching …</p>`;
    if (search.indexed < search.total)
      return html`<p class="muted" role="status">Searched ${whole(search.indexed)} of ${plural(search.total, "episode")} so far.</p>`;
    return null;
  }

  function Filters({ rows, tasks, filters, set, search }) {
    const stops = useMemo(() => [...count(rows, (row) => row.stop_reason)].sort(), [rows]);
    const actions = useMemo(() => count(rows.flatMap((row) => row.actions || []), (name) => name), [rows]);
    const programs = useMemo(() => count(rows.flatMap((row) => row.programs || []), (name) => name), [rows]);
    const faults = useMemo(
      () => Object.fromEntries(Object.entries(FAULTS).map(([name, test]) => [name, rows.filter(test).length])),
      [rows],
    );
    const perTask = useMemo(() => count(rows, (row) => row.task_id), [rows]);
    const names = useMemo(() => [...new Set([...tasks.keys(), ...perTask.keys()])].sort(), [tasks, perTask]);
    const select = (name, label, options) =>
      html`<${Select} label=${label} value=${filters[name] || ""} kind=${filters[name] && "set"} options=${options} onChange=${(value) => set({ [name]: value })} />`;
    const active = Object.keys(filters).some((name) => name !== "sort");
    return html`
      <${viewer.ui.Filters} label="Filter episodes">
        <${Search} input=${search} value=${filters.q} onInput=${(q) => set({ q })} placeholder=${viewer.source.exported ? "task or instruction" : "task, reply, thought, typed text, verdict"} />
        ${select("task", "Task", [["", "any"], ...names.map((name) => [name, `${name} (${whole(perTask.get(name) || 0)})`])])}
        <label class="short">Training steps<input value=${filters.step || ""} onInput=${(event) => set({ step: event.target.value })} placeholder="3 or 3-10" /></label>
        ${select("success", "Result", SUCCESS)} ${select("replay", "Replay", REPLAY)}
        ${select("stop", "Stopped", [["", "any"], ...stops.map(([name, many]) => [name, `${name} (${whole(many)})`])])}
        ${select("action", "Action", [["", "any"], ...[...actions].sort().map(([name, many]) => [name, `${name} (${whole(many)})`])])}
        ${programs.size > 0 && select("program", "Program", [["", "any"], ...[...programs].sort().map(([name, many]) => [name, `${name} (${whole(many)})`])])}
        ${select("fault", "Fault", [["", "any"], ...Object.entries(FAULT_NAMES).map(([name, title]) => [name, `${title} (${whole(faults[name])})`])])}
        ${select("kind", "Kind", KINDS)}
        <button type="button" disabled=${!active} onClick=${() => viewer.route.go({ page: "episodes" }, { replace: true })}>Clear</button>
      <//>
    `;
  }

  function Counts({ rows, selected, filters }) {
    const parts = useMemo(() => {
      const good = selected.filter(viewer.episodes.isSuccess).length;
      const bad = selected.filter(viewer.episodes.isFailure).length;
      const replaced = selected.filter((row) => row.replaced).length;
      return [
        `${plural(selected.length, "episode")}${selected.length < rows.length ? ` of ${whole(rows.length)}` : ""}`,
        `${whole(good)} succeeded`,
        `${whole(bad)} failed`,
        `mean success ${percent(meanSuccess(selected))}`,
        `${whole(replaced)} replaced by replays`,
      ];
    }, [rows, selected]);
    const invalid = filters.step && !viewer.episodes.parseRange(filters.step);
    return html`
      <p class="counts" role="status">${parts.join(" · ")}</p>
      ${
        invalid &&
        html`<p class="message note">
        Training steps must be a number or a range such as 3-10; “${filters.step}” is neither and filters nothing.
      </p>`
      }
    `;
  }

  function SortHeader({ column, sort, set }) {
    const by = sort.replace(/^-/, "") === column.name ? (sort.startsWith("-") ? "descending" : "ascending") : "none";
    const next = by === "descending" ? column.name : `-${column.name}`;
    return html`<th scope="col" aria-sort=${by} class=${classOf(column)}>
      <button type="button" onClick=${() => set({ sort: next === "-step" ? "" : next })}>
        ${column.title}<span class="arrow" aria-hidden="true">${{ ascending: "▲", descending: "▼", none: "" }[by]}</span>
      </button>
    </th>`;
  }

  const Broken = ({ run }) => html`<details class="message note">
    <summary>${plural(run.num_broken, "folder is", "folders are")} no episode that can be read.</summary>
    <ul>${(run.broken || []).map(({ id, reason }) => html`<li><code><bdi>${id}</bdi></code>: <bdi>${reason}</bdi></li>`)}</ul>
  </details>`;

  const classOf = (column) =>
    [column.numeric && "numeric", column.wide && "wide", `of-${column.name}`].filter(Boolean).join(" ");

  /** Where a search found its words, the row opens that turn. */
  function Row({ row, tasks, filters, hit, pattern }) {
    const task = html`<td class="of-task_id">
      <${Link} to=${episodeRoute(row.id, { ...filters, turn: hit?.turn })} data-id=${row.id}><bdi>${row.task_id}</bdi><//>${" "}
      <span class="instruction"><bdi>${tasks.get(row.task_id)}</bdi></span>
      ${hit && html`<span class="hit">${hit.turn ? `turn ${hit.turn}` : "verdict"}: <${Marked} text=${hit.text} pattern=${pattern} /></span>`}
    </td>`;
    return html`<tr>${COLUMNS.map((column) => (column.cell ? html`<td class=${classOf(column)}>${column.cell(row)}</td>` : task))}</tr>`;
  }

  const Pager = ({ page, pages, turnTo }) => html`
    <nav class="pager" aria-label="Pages of the list">
      <button type="button" disabled=${page === 1} onClick=${() => turnTo(1)}>First</button>
      <button type="button" disabled=${page === 1} onClick=${() => turnTo(page - 1)}>Previous</button>
      <span>page ${whole(page)} of ${whole(pages)}</span>
      <button type="button" disabled=${page === pages} onClick=${() => turnTo(page + 1)}>Next</button>
      <button type="button" disabled=${page === pages} onClick=${() => turnTo(pages)}>Last</button>
    </nav>
  `;

  viewer.EpisodesPage = EpisodesPage;
}
