"use strict";
/* A folder's runs: their list, what is picked of them in one plot, and two of them paired by task. */
{
  const { html, known, plural, share, whole, useDocument, useKeys, usePolled, Chart, Heading, Message, Waiting, tone } = viewer.ui;
  const { Filters, Search, Select, moveFocus } = viewer.ui;
  const { useEffect, useRef, useState } = preactHooks;

  const POLL_MS = 10_000;
  const MOST = 12;
  const SUCCESS = "rollout/success_mean";
  const AXES = { steps: "training step", environment_steps: "environment steps", hours: "hours" };

  const arrow = (...values) => values.filter(known).map(share).join(" → ") || "–";
  const runAddress = (name) => `run/${encodeURIComponent(name)}/`;
  const searchOf = (name) => `run/${name}/api/search`;
  const pickedOf = (query) => (query.runs ? query.runs.split("/") : []);

  function RunsPage({ query }) {
    const found = usePolled("api/runs", POLL_MS);
    const list = useRef(null);
    const move = (by) => moveFocus(list.current, by);
    useKeys({ j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1) });
    const set = (changes) => viewer.route.go({ page: "runs", query: { ...query, ...changes } }, { replace: true });
    const names = (found.data?.runs || []).map(({ name }) => name);
    const picked = pickedOf(query).filter((name) => names.includes(name)).slice(0, MOST);
    const pick = (name, on) =>
      set({ runs: (on ? [...picked, name] : picked.filter((other) => other !== name)).join("/") });
    useEffect(() => {
      if (found.data) document.title = `${found.data.name} – ARPO runs`;
    }, [found.data]);
    const hits = useFound(names.map(searchOf), query.q);
    if (!found.data) return html`<${Heading} focusKey="runs">Runs<//><${Waiting} error=${found.error} what="the runs" />`;
    return html`
      <${Heading} focusKey="runs">Runs in <bdi>${found.data.name}</bdi><//>
      <p class="counts" role="status">${plural(names.length, "run")}. Pick some to see them in one plot, and two of them paired by task.</p>
      <${Filters} label="Find episodes">
        <${Search} label="Search all runs" value=${query.q} onInput=${(q) => set({ q })} placeholder="task, reply, thought, typed text, verdict" />
      <//>
      <div class="table-scroll" ref=${list}><${RunsTable} runs=${found.data.runs} ...${{ picked, pick, hits, q: query.q }} /></div>
      ${picked.length > 0 && html`<${Curves} picked=${picked} query=${query} set=${set} />`}
      ${picked.length > 1 && html`<${Pair} picked=${picked} query=${query} set=${set} />`}
    `;
  }

  /** What a search finds in each run, by the path of its search. */
  function useFound(paths, q) {
    const [state, setState] = useState({});
    useEffect(() => {
      setState({});
      if (!q) return undefined;
      return viewer.source.search(paths, q, (path, answer) => setState((before) => ({ ...before, [path]: answer })));
    }, [q, paths.join()]);
    return state;
  }

  function Hits({ name, q, found }) {
    if (!found?.ids) return html`<span class="muted">${found ? "the search failed" : "…"}</span>`;
    const far = found.indexed < found.total ? ` of ${whole(found.indexed)} so far` : "";
    return html`<a href=${`${runAddress(name)}${viewer.route.format({ page: "episodes", query: { q } })}`}>${plural(found.ids.length, "episode")}</a>${far}`;
  }

  const RunsTable = ({ runs, picked, pick, hits, q }) => html`<table class="runs">
    <caption class="hidden">Runs of the folder</caption>
    <thead><tr>
      <th scope="col">Plot</th><th scope="col">Run</th>${q && html`<th scope="col">Found</th>`}
      <th scope="col" class="numeric">Success</th><th scope="col" class="numeric">Validation</th>
      <th scope="col" class="numeric wide">Training steps</th><th scope="col" class="numeric wide">Episodes</th>
    </tr></thead>
    <tbody>${runs.map((run) => html`<${RunRow} key=${run.name} ...${{ run, picked, pick, q, found: hits[searchOf(run.name)] }} />`)}</tbody>
  </table>`;

  function RunRow({ run, picked, pick, q, found }) {
    const on = picked.includes(run.name);
    const evaluation = run.evaluation;
    const steps = `${whole(run.steps)}${known(run.total_steps) ? ` of ${whole(run.total_steps)}` : ""}`;
    return html`<tr>
      <td>
        <input
          type="checkbox"
          checked=${on}
          disabled=${!on && picked.length >= MOST}
          aria-label=${`Plot ${run.name}`}
          onChange=${(event) => pick(run.name, event.target.checked)}
        />
        ${on && html`<i class="swatch" style=${{ background: `var(${tone(picked.indexOf(run.name))})` }}></i>`}
      </td>
      <th scope="row"><a href=${runAddress(run.name)}><bdi>${run.name}</bdi></a> <span class="badge">${run.kind}</span> <span class=${run.live ? "badge good" : "badge"}>${run.live ? "running" : "ended"}</span></th>
      ${q && html`<td><${Hits} name=${run.name} q=${q} found=${found} /></td>`}
      <td class="numeric">
        ${evaluation ? html`${share(evaluation.success)} <small class="muted">${evaluation.interval ? evaluation.interval.map(share).join(" to ") : ""}</small>` : arrow(run.steps > 5 ? run.first_steps_success : null, run.last_steps_success)}
      </td>
      <td class="numeric">${arrow(run.validation_before, run.validation_after)}</td>
      <td class="numeric wide">${evaluation ? "–" : steps}</td>
      <td class="numeric wide">${whole(run.num_episodes)}</td>
    </tr>`;
  }

  function Curves({ picked, query, set }) {
    const metric = query.metric || SUCCESS;
    const axis = AXES[query.x] ? query.x : "steps";
    const { data, error } = useDocument("api/curves", [...picked.map((name) => ["run", name]), ["metric", metric]], true);
    if (!data) return html`<${Waiting} error=${error} what="the curves" />`;
    const runs = data.runs.filter((run) => run[axis] && run.values.length);
    const missing = data.runs.filter((run) => !runs.includes(run)).map(({ name }) => name);
    const [x, ...columns] = runs.length ? uPlot.join(runs.map((run) => [...ascending(run[axis], run.values)])) : [[]];
    const series = runs.map(({ name, values }, i) => ({ label: name, values: columns[i], tone: tone(picked.indexOf(name)), kind: "line", last: values.at(-1) }));
    return html`
      <${Filters} label="Choose the plot">
        <${Select} label="Metric" kind="grow" value=${metric} options=${data.metrics.map((name) => [name])} onChange=${(metric) => set({ metric })} />
        <${Select} label="Along" value=${axis} options=${Object.entries(AXES)} onChange=${(x) => set({ x })} />
      <//>
      ${error && html`<${Message} kind="bad">Could not read the curves: ${error.message}<//>`}
      ${series.length > 0 && html`<div class="charts one"><${Chart} title=${metric} x=${x} series=${series} xLabel=${AXES[axis]} whole=${axis !== "hours"} /></div>`}
      ${missing.length > 0 && html`<p class="muted">Not recorded by <bdi>${missing.join(", ")}</bdi>.</p>`}
    `;
  }

  /** Two training steps may end at one place of an axis, and a plot has one value there: the later one. */
  function ascending(x, values) {
    const last = new Map(x.map((place, i) => [place, values[i]]));
    return [[...last.keys()], [...last.values()]];
  }

  function Pair({ picked, query, set }) {
    const first = picked.includes(query.first) ? query.first : picked[0];
    const second = picked.includes(query.second) && query.second !== first ? query.second : picked.find((name) => name !== first);
    const { data, error } = useDocument("api/pair", { first, second }, true);
    const choice = (which, value) =>
      html`<${Select} label=${which} value=${value} options=${picked.map((name) => [name])} onChange=${(name) => set({ [which.toLowerCase()]: name })} />`;
    return html`
      <h2>Two runs, paired by task</h2>
      <${Filters} label="Choose two runs">${choice("First", first)} ${choice("Second", second)}<//>
      ${data ? html`<${Paired} data=${data} />` : html`<${Waiting} error=${error} what="the comparison" />`}
    `;
  }

  function Paired({ data }) {
    const what = [data.first, data.second].map((one) => html`<li><bdi>${one.name}</bdi>: ${one.what}, ${plural(one.tasks, "task")}</li>`);
    const result = data.paired;
    if (!result) return html`<ul>${what}</ul><p class="muted">They have no task in common.</p>`;
    const points = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(100 * value).toFixed(1)}`;
    const verdict = !result.told_apart ? "no clear difference" : result.difference > 0 ? "the second is better" : "the second is worse";
    return html`
      <ul>${what}</ul>
      <p>
        ${plural(result.tasks, "task")} of both: ${share(result.first)} and ${share(result.second)},${" "}
        <b>${points(result.difference)} points</b> (${result.interval ? `95% interval ${result.interval.map(points).join(" to ")}` : "no interval for one task"};${" "}
        p = ${result.p_value.toFixed(3)}). The second is better on ${whole(result.better)}, worse on ${whole(result.worse)}: <b>${verdict}</b>.
        ${data.left_out > 0 && ` ${plural(data.left_out, "more task is", "more tasks are")} left out.`}
      </p>
      <details><summary>By task, most different first</summary><div class="table-scroll"><table class="figures">
        <thead><tr><th scope="col">task</th><th scope="col" class="numeric">first</th><th scope="col" class="numeric">second</th></tr></thead>
        <tbody>${data.tasks.map((task) => html`<tr>
          <th scope="row"><bdi>${task.task_id}</bdi></th><td class="numeric">${share(task.first)}</td><td class="numeric">${share(task.second)}</td>
        </tr>`)}</tbody>
      </table></div></details>
    `;
  }

  viewer.RunsPage = RunsPage;
}
