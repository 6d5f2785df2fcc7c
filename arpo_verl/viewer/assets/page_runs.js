"use strict";
/* A folder's runs: their list, what is picked of them in one plot, and two of them paired by task. */
{
  const { html, known, plural, whole, useKeys, usePolling, Chart, Heading, Message, Waiting, tone } = viewer.ui;
  const { useEffect, useRef, useState } = preactHooks;

  const POLL_MS = 10_000;
  const MOST = 12;
  const SUCCESS = "rollout/success_mean";
  const AXES = { steps: "training step", environment_steps: "environment steps", hours: "hours" };

  const share = (value) => (known(value) ? `${(100 * value).toFixed(1)}%` : "–");
  const arrow = (...values) => values.filter(known).map(share).join(" → ") || "–";
  const runAddress = (name) => `run/${encodeURIComponent(name)}/`;
  const pickedOf = (query) => (query.runs ? query.runs.split("/") : []);

  function RunsPage({ query }) {
    const [found, setFound] = useState({});
    usePolling(
      () => viewer.source.get("api/runs").then((data) => setFound({ data }), (error) => setFound((before) => ({ ...before, error }))),
      POLL_MS,
      true,
    );
    const list = useRef(null);
    const move = (by) => {
      const links = [...list.current.querySelectorAll("tbody a")];
      links[Math.min(Math.max(links.indexOf(document.activeElement) + by, 0), links.length - 1)]?.focus();
    };
    useKeys({ j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1) });
    const set = (changes) => viewer.route.go({ page: "runs", query: { ...query, ...changes } }, { replace: true });
    const names = (found.data?.runs || []).map(({ name }) => name);
    const picked = pickedOf(query).filter((name) => names.includes(name)).slice(0, MOST);
    const pick = (name, on) =>
      set({ runs: (on ? [...picked, name] : picked.filter((other) => other !== name)).join("/") });
    useEffect(() => {
      if (found.data) document.title = `${found.data.name} – ARPO runs`;
    }, [found.data]);
    if (!found.data) return html`<${Heading} focusKey="runs">Runs<//><${Waiting} error=${found.error} what="the runs" />`;
    return html`
      <${Heading} focusKey="runs">Runs in <bdi>${found.data.name}</bdi><//>
      <p class="counts" role="status">${plural(names.length, "run")}. Pick some to see them in one plot, and two of them paired by task.</p>
      <div class="table-scroll" ref=${list}><${RunsTable} runs=${found.data.runs} picked=${picked} pick=${pick} /></div>
      ${picked.length > 0 && html`<${Curves} picked=${picked} query=${query} set=${set} />`}
      ${picked.length > 1 && html`<${Pair} picked=${picked} query=${query} set=${set} />`}
    `;
  }

  const RunsTable = ({ runs, picked, pick }) => html`<table class="runs">
    <caption class="hidden">Runs of the folder</caption>
    <thead><tr>
      <th scope="col">Plot</th><th scope="col">Run</th>
      <th scope="col" class="numeric">Success</th><th scope="col" class="numeric">Validation</th>
      <th scope="col" class="numeric wide">Training steps</th><th scope="col" class="numeric wide">Episodes</th>
    </tr></thead>
    <tbody>${runs.map((run) => html`<${RunRow} key=${run.name} run=${run} picked=${picked} pick=${pick} />`)}</tbody>
  </table>`;

  function RunRow({ run, picked, pick }) {
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
      <td class="numeric">
        ${evaluation ? html`${share(evaluation.success)} <small class="muted">${evaluation.interval ? evaluation.interval.map(share).join(" to ") : ""}</small>` : arrow(run.first_steps_success, run.last_steps_success)}
      </td>
      <td class="numeric">${arrow(run.validation_before, run.validation_after)}</td>
      <td class="numeric wide">${evaluation ? "–" : steps}</td>
      <td class="numeric wide">${whole(run.num_episodes)}</td>
    </tr>`;
  }

  /** A document that depends on a query; asked anew where that changes. */
  function useAsked(path, parameters) {
    const [state, setState] = useState({});
    const asked = JSON.stringify([path, parameters]);
    useEffect(() => {
      let current = true;
      const settle = (found) => current && setState({ asked, ...found });
      viewer.source.get(path, parameters).then((data) => settle({ data }), (error) => settle({ error }));
      return () => (current = false);
    }, [asked]);
    return state.asked === asked ? state : { data: state.data };
  }

  function Curves({ picked, query, set }) {
    const metric = query.metric || SUCCESS;
    const axis = AXES[query.x] ? query.x : "steps";
    const { data, error } = useAsked("api/curves", [...picked.map((name) => ["run", name]), ["metric", metric]]);
    if (!data) return html`<${Waiting} error=${error} what="the curves" />`;
    const runs = data.runs.filter((run) => run[axis] && run.values.length);
    const missing = data.runs.filter((run) => !runs.includes(run)).map(({ name }) => name);
    const [x, ...columns] = runs.length ? uPlot.join(runs.map((run) => [...ascending(run[axis], run.values)])) : [[]];
    const series = runs.map(({ name, values }, i) => ({ label: name, values: columns[i], tone: tone(picked.indexOf(name)), kind: "line", last: values.at(-1) }));
    const names = data.metrics.includes(metric) ? data.metrics : [metric, ...data.metrics];
    return html`
      <form class="filters" aria-label="Choose the plot" onSubmit=${(event) => event.preventDefault()}>
        <label class="grow">Metric<select value=${metric} onChange=${(event) => set({ metric: event.target.value })}>
          ${names.map((name) => html`<option value=${name}>${name}</option>`)}
        </select></label>
        <label>Along<select value=${axis} onChange=${(event) => set({ x: event.target.value })}>
          ${Object.entries(AXES).map(([name, title]) => html`<option value=${name}>${title}</option>`)}
        </select></label>
      </form>
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
    const { data, error } = useAsked("api/pair", [["first", first], ["second", second]]);
    const choice = (which, value) => html`<label>${which}<select value=${value} onChange=${(event) => set({ [which.toLowerCase()]: event.target.value })}>
      ${picked.map((name) => html`<option value=${name}>${name}</option>`)}
    </select></label>`;
    return html`
      <h2>Two runs, paired by task</h2>
      <form class="filters" aria-label="Choose two runs" onSubmit=${(event) => event.preventDefault()}>${choice("First", first)} ${choice("Second", second)}</form>
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
