"use strict";
/* The run at a glance; the same page, alone, is the file of `arpo-verl report`. */
{
  const { html, known, number, plural, whole, duration, percent, share, signed, usePolled, tone } = viewer.ui;
  const { Chart, Heading, Interval, Link, Message, Screenshot, Score, Waiting, episodeRoute, framesOf, short } = viewer.ui;

  const POLL_MS = 10_000;
  /** While nothing is recorded, a person waits for the run's start. */
  const POLL_START_MS = 2000;
  const CHANGED = 8;
  const TONES = { "all failed": "--series-2", mixed: "--series-3" };

  const moment = (seconds) =>
    known(seconds) && Math.abs(seconds) < 8.64e12 ? new Date(1000 * seconds).toLocaleString("en-GB") : "not recorded";

  function OverviewPage({ run }) {
    const { data: overview, error } = usePolled("api/overview", run.num_episodes ? POLL_MS : POLL_START_MS);
    return html`
      <${Heading} focusKey="overview">${viewer.source.kind === "report" ? `Report: ${run.name}` : "Overview"}<//>
      ${overview ? html`<${Overview} overview=${overview} />` : html`<${Waiting} error=${error} what="the overview" />`}
    `;
  }

  const Overview = ({ overview }) => html`
    ${
      viewer.source.kind === "report" &&
      html`<p class="muted">
        Made ${moment(overview.made_at)} by arpo-verl ${overview.version}.${overview.live && html`${" "}<b>The run still goes on.</b>`}
      </p>`
    }
    ${overview.start && html`<${Starting} start=${overview.start} />`}
    ${(!overview.start || overview.tasks.length > 0) && html`<${Recorded} overview=${overview} />`}
    <${Ran} overview=${overview} />
  `;

  const Recorded = ({ overview }) => html`
    <${Tiles} overview=${overview} />
    <${Missing} sentences=${overview.missing} />
    <${Charts} overview=${overview} />
    <${Episodes} title="Newest failures" episodes=${overview.samples.failures} none="No failure is recorded." />
    <${Episodes} title="Newest tasks solved for the first time" episodes=${overview.samples.first_successes} none="No success is recorded." />
    <${Changed} tasks=${overview.tasks} />
    <h2>Details</h2>
    ${[TaskTable, ...(overview.trains ? [StepTable, Validation, Replay] : []), StopReasons, Faults, Times].map(
      (Part) => html`<${Part} overview=${overview} />`,
    )}
  `;

  /** A run before its first training step: what it does, and what it wrote last. */
  const Starting = ({ start }) => html`
    <p class="message info" role="status">
      No training step yet: the run ${start.phase}.${known(start.quiet_s) && ` Its last output is ${duration(start.quiet_s)} old.`}
    </p>
    ${start.lines.length > 0 && html`
      <details open>
        <summary>The end of <code>output.log</code></summary>
        <pre class="end" tabindex="0" aria-label="The end of output.log"><bdi>${start.lines.join("\n")}</bdi></pre>
      </details>
    `}
  `;

  // --- At a glance -------------------------------------------------------------------------------------------------

  function Tiles({ overview }) {
    const { summary, left, replay, faults, trains } = overview;
    const solved = overview.tasks.reduce((sum, { training }) => sum + training.count, 0);
    const groups = Object.values(replay.groups).reduce((sum, count) => sum + count, 0);
    const tiles = [
      summary &&
        known(summary.first_steps_success) && [
          "success",
          summary.steps > 5
            ? `${share(summary.first_steps_success)} → ${share(summary.last_steps_success)}`
            : share(summary.last_steps_success),
          `${summary.steps > 5 ? "first and last five training steps" : "these training steps"}, before any replay`,
        ],
      summary &&
        known(summary.validation_before) && [
          "validation",
          [summary.validation_before, summary.validation_after].filter(known).map(share).join(" → "),
          known(summary.validation_after) ? "first and last" : "one so far",
        ],
      !trains && ["solved", `${whole(solved)} of ${whole(overview.num_training)}`],
      trains && [
        "training steps",
        `${whole(summary ? summary.steps : overview.success.length)}${known(left.total_steps) ? ` of ${whole(left.total_steps)}` : ""}`,
        summary && known(summary.seconds_per_step) && `${duration(summary.seconds_per_step)} each`,
      ],
      overview.live && left.seconds > 0 && ["time left", duration(left.seconds), "at the pace of the last five"],
      trains && ["replays injected", whole(replay.injected), known(replay.median_age) && `median age ${plural(replay.median_age, "training step")}`],
      groups > 0 && [
        "groups",
        whole(groups),
        `${whole(replay.groups.all_failed)} all failed, ${whole(replay.groups.mixed)} mixed, ${whole(replay.groups.all_solved)} all solved`,
      ],
      faults.kinds && ["faults", whole(faults.total), `${plural(faults.retried, "attempt")} retried, ${plural(summary?.dropped_sessions || 0, "session")} dropped`],
      [
        "recorded episodes",
        whole(overview.num_training),
        `${trains ? `and ${whole(overview.num_validation)} in validation; ` : "of "}${plural(overview.tasks.length, "task")}`,
      ],
    ];
    return html`<dl class="tiles">
      ${tiles.filter(Boolean).map(([name, value, more]) => html`<div class="card"><dt>${name}</dt><dd>${value}<small>${more}</small></dd></div>`)}
    </dl>`;
  }

  const Missing = ({ sentences }) =>
    sentences.length > 0 &&
    html`<details class="message note">
      <summary>This run did not record everything.</summary>
      <ul>${sentences.map((sentence) => html`<li>${sentence}</li>`)}</ul>
    </details>`;

  function Charts({ overview }) {
    if (!overview.trains) return null;
    const charts = ["groups", "replays", "time", "stops", "faults"].map((name) => overview.charts[name]);
    return html`<div class="charts">
      <${Success} overview=${overview} />
      ${charts
        .filter(({ series }) => Object.keys(series).length)
        .map(({ title, unit, series }) => {
          const bars = Object.entries(series).map(([label, values], i) => ({ label, values, tone: TONES[label] || tone(i), kind: "bars" }));
          return html`<${Chart} key=${title} title=${`${title}, ${unit}`} x=${overview.steps} series=${bars} />`;
        })}
    </div>`;
  }

  /** Training with the interval of its recorded episodes, and validations as points. */
  function Success({ overview }) {
    const x = [...new Set([...overview.success, ...overview.validations].map(({ step }) => step))].sort((a, b) => a - b);
    if (!x.length) return null;
    const at = (entries, value) => {
      const byStep = new Map(entries.map((entry) => [entry.step, value(entry)]));
      return x.map((step) => byStep.get(step) ?? null);
    };
    const mean = ({ measured, recorded }) => measured ?? recorded.share;
    const edge = (name) => (entry) => (entry.recorded.total ? entry.recorded[name] : null);
    const series = [
      { kind: "band", label: "95% interval", tone: "--series-1", low: at(overview.success, edge("low")), high: at(overview.success, edge("high")) },
      { kind: "line", label: "training", tone: "--series-1", values: at(overview.success, mean) },
      { kind: "points", label: "validation", tone: "--series-2", values: at(overview.validations, mean) },
    ];
    return html`<${Chart} title="Success" x=${x} series=${series} scale="share" show=${percent} />`;
  }

  // --- Episodes ----------------------------------------------------------------------------------------------------

  const Episodes = ({ title, episodes, none }) => html`
    <h2>${title}</h2>
    ${episodes.length === 0 && html`<p class="muted">${none}</p>`}
    <div class="samples">${episodes.map((episode) => html`<${Strip} key=${episode.id} episode=${episode} />`)}</div>
  `;

  function Strip({ episode }) {
    const facts = [
      episode.step > 0 && `training step ${episode.step}, session ${episode.session}`,
      plural(episode.num_turns, "turn"),
      `stopped: ${episode.stop_reason}`,
      `reward ${number(episode.reward)}`,
      known(episode.advantage) && `advantage ${signed(episode.advantage)}`,
      episode.replaced && "a replay took its place",
    ];
    return html`<article class="card">
      <h3><${Link} to=${episodeRoute(episode.id)}><bdi>${episode.task_id}</bdi><//> <${Score} row=${episode} /></h3>
      <p><bdi>${episode.instruction}</bdi> <span class="muted">${facts.filter(Boolean).join(" · ")}</span></p>
      <ol class="film large" tabindex="0" aria-label=${`Turns of ${episode.task_id}`}>
        ${framesOf(episode).map(
          (frame, i) => html`<li>
            <${Screenshot} src=${frame.src} alt=${frame.alt} marks=${frame.marks} marksAcross=${36} lazy />
            <span class="what" title=${frame.turn?.thought}><b>${i + 1}</b> <bdi>${frame.turn?.parse_error || viewer.actions.describeTurn(frame.turn)}</bdi></span>
          </li>`,
        )}
        ${episode.turns_left_out > 0 && html`<li class="muted">${whole(episode.turns_left_out)} more</li>`}
      </ol>
      ${episode.evaluator.map(
        ({ metric, result, expected }) => html`<p class="muted">
          Verdict: <code><bdi>${metric}</bdi></code> got <code><bdi>${result}</bdi></code>, expected <code><bdi>${expected}</bdi></code>
        </p>`,
      )}
      ${viewer.source.kind === "report" && html`<p class="muted">Open it with <code>arpo-verl view</code>: <code><bdi>${episode.id}</bdi></code></p>`}
    </article>`;
  }

  // --- Tables ------------------------------------------------------------------------------------------------------

  const Table = ({ caption, heads, rows }) => html`<div class="table-scroll" tabindex="0" role="group" aria-label=${caption}>
    <table class="figures">
      <caption>${caption}</caption>
      <thead><tr>${heads.map((head, i) => html`<th scope="col" class=${i ? "numeric" : ""}>${head}</th>`)}</tr></thead>
      <tbody>${rows.map(
        ([name, ...cells]) => html`<tr><th scope="row">${name}</th>${cells.map((cell) => html`<td class="numeric">${cell}</td>`)}</tr>`,
      )}</tbody>
    </table>
  </div>`;

  const Part = ({ title, children }) => html`<details><summary>${title}</summary>${children}</details>`;

  const RATE_HEADS = ["solved", "rate", "95% interval"];
  const rateCells = (rate) =>
    rate.total ? [`${rate.count} of ${rate.total}`, share(rate.share), html`<${Interval} ...${rate} />`] : ["0 of 0", "–", "–"];

  const TaskName = ({ task }) => html`<${Link} to=${{ page: "episodes", query: { task: task.task_id } }}><bdi>${task.task_id}</bdi><//>${" "}
    <span class="instruction"><bdi>${task.instruction}</bdi></span>`;

  const change = (before, after) => (before.total && after.total ? after.share - before.share : null);
  const Change = ({ before, after }) => {
    const by = change(before, after);
    return by === null ? "–" : html`<span class=${by > 0 ? "gained" : by < 0 ? "lost" : ""}>${percent(before.share)} → ${percent(after.share)}</span>`;
  };
  const changeCells = (task) => [
    html`<${Change} before=${task.earlier} after=${task.later} />`,
    html`<${Change} before=${task.first_validation} after=${task.last_validation} />`,
  ];
  const CHANGE_HEADS = ["training, earlier → later half", "validation, first → last"];

  function Changed({ tasks }) {
    const by = (task) => Math.abs(change(task.earlier, task.later) ?? change(task.first_validation, task.last_validation) ?? 0);
    const changed = tasks.filter(by).sort((a, b) => by(b) - by(a)).slice(0, CHANGED);
    if (!changed.length) return null;
    const rows = changed.map((task) => [html`<${TaskName} task=${task} />`, ...changeCells(task)]);
    return html`<h2>Tasks that changed most</h2>
      <${Table} caption="Share of episodes solved" heads=${["task", ...CHANGE_HEADS]} rows=${rows} />`;
  }

  const TaskTable = ({ overview }) => html`<${Part} title=${`Success by task: ${plural(overview.tasks.length, "task")}`}>
    <${Table}
      caption=${`${overview.trains ? "Training episodes" : "Episodes"} as the policy played them, hardest task first`}
      heads=${["task", ...RATE_HEADS, ...CHANGE_HEADS]}
      rows=${overview.tasks.map((task) => [html`<${TaskName} task=${task} />`, ...rateCells(task.training), ...changeCells(task)])}
    />
  <//>`;

  const StepTable = ({ overview }) => html`<${Part} title="Success by training step">
    ${overview.partial_scores > 0 && html`<p>Episodes with a part of the score: ${whole(overview.partial_scores)}. They count as not solved; means take them as they are.</p>`}
    <${Table}
      caption="Mean score of all episodes of the training step; the recorded ones that are solved"
      heads=${["training step", "mean score", ...RATE_HEADS]}
      rows=${overview.success.map((entry) => [entry.step, share(entry.measured), ...rateCells(entry.recorded)])}
    />
  <//>`;

  const Validation = ({ overview }) => html`<${Part} title=${`Validation: ${plural(overview.validations.length, "time")}`}>
    <${Table}
      caption="Mean score that the trainer logged, and the recorded episodes"
      heads=${["after training step", "mean score", ...RATE_HEADS]}
      rows=${overview.validations.map((entry) => [entry.step, share(entry.measured), ...rateCells(entry.recorded)])}
    />
  <//>`;

  function Replay({ overview }) {
    const { replay } = overview;
    const facts = [
      `Replays injected: ${whole(replay.injected)}, in ${plural(replay.steps_with_replay, "training step")}.`,
      `Groups that asked for a replay and got none: ${whole(replay.missed)}.`,
      known(replay.store_trajectories) && `Successes in the store at the end: ${whole(replay.store_trajectories)}.`,
      replay.ages.length > 0 && `Age in training steps: median ${short(replay.median_age)}, from ${replay.ages[0]} to ${replay.ages.at(-1)}.`,
      known(replay.ratio_mean) && `The policy gave a replayed token ${short(replay.ratio_mean)} times the probability that the policy which wrote it had given, on average.`,
    ];
    const differing = replay.teaching.flatMap(({ what, as_played, as_trained }) => [
      [`${what}, as played`, ...rateCells(as_played)],
      [`${what}, with replays`, ...rateCells(as_trained)],
    ]);
    return html`<${Part} title="What replay did">
      <p>${facts.filter(Boolean).join(" ")}</p>
      ${differing.length > 0 && html`<${Table} caption="Recorded groups whose rows differ: in the others every advantage is 0, but for that of a replay beside them" heads=${["differ in", "groups", "share", "95% interval"]} rows=${differing} />`}
      ${replay.tasks.length > 0 && html`<${Table} caption="Replays by task" heads=${["task", "groups", "replays"]} rows=${replay.tasks.map((task) => [html`<bdi>${task.task_id}</bdi>`, task.groups, task.replays])} />`}
      ${replay.compared.length > 0 && html`<${Table} caption="Means over the training steps with a replay" heads=${["metric", "all rows", "without replays"]} rows=${replay.compared.map((row) => [html`<code>${row.name}</code>`, short(row.with_replays), short(row.without)])} />`}
    <//>`;
  }

  const StopReasons = ({ overview }) => html`<${Part} title="Stop reasons">
    <${Table}
      caption="How the recorded episodes ended, and how many of them were solved"
      heads=${["reason", "share", ...RATE_HEADS]}
      rows=${overview.stop_reasons.map((stop) => [html`<bdi>${stop.reason || "not recorded"}</bdi>`, share(stop.share), ...rateCells(stop.success)])}
    />
  <//>`;

  function Faults({ overview }) {
    const { kinds, retried, broken } = overview.faults;
    const seen = (kinds || []).filter(({ count }) => count);
    const folders = Object.entries(broken);
    return html`<${Part} title="Faults">
      ${!kinds && html`<p>Not recorded: the run logged no <code>environment/*</code>.</p>`}
      ${kinds && seen.length === 0 && html`<p>None: no desktop failed and no session was dropped.</p>`}
      ${seen.length > 0 && html`<${Table} caption=${`A fault never becomes a reward. Attempts made again on a fresh desktop: ${whole(retried)}`} heads=${["fault", "times"]} rows=${seen.map(({ what, count }) => [what, whole(count)])} />`}
      ${folders.length > 0 && html`<p>${plural(folders.length, "recorded folder")} could not be read:</p>
        <ul>${folders.slice(0, 20).map(([id, why]) => html`<li><code><bdi>${id}</bdi></code>: <bdi>${why}</bdi></li>`)}</ul>`}
    <//>`;
  }

  const Times = ({ overview }) => html`<${Part} title="Where the time went">
    <${Table} caption="Parts of a training step: means over those that had them" heads=${["part", "mean", "longest", "share of all"]}
      rows=${overview.parts.map((part) => [html`${part.what} ${part.name && html`<code>${part.name}</code>`}`, duration(part.mean_s), part.name ? duration(part.max_s) : "–", share(part.share)])} />
    <${Table} caption="Calls of a desktop: means of the training steps' means" heads=${["call", "mean", "slowest training step"]}
      rows=${overview.calls.map((call) => [call.what, duration(call.mean_s), duration(call.max_s)])} />
    <${Table} caption="Slowest tasks: means of an episode, from lease to verdict" heads=${["task", "episodes", "episode", "generation", "desktop", "turns"]}
      rows=${overview.slowest.map((task) => [html`<bdi>${task.task_id}</bdi>`, whole(task.episodes), duration(task.wall_s), duration(task.generate_s), duration(task.desktop_s), number(task.num_turns, 1)])} />
  <//>`;

  function Ran({ overview }) {
    const { starts, times } = overview;
    const last = starts.at(-1);
    const versions = Object.entries(last?.versions || {}).filter(([, version]) => version);
    const resumed = starts.length > 1 ? `: interrupted and resumed, ${starts.map((start) => moment(start.time) + (start.fault ? ` (after a fault: ${start.fault})` : "")).join("; ")}` : "";
    const rows = [
      ["run", html`<code><bdi>${overview.run_dir}</bdi></code>`],
      ["began", moment(times.begin)],
      [times.end_is, moment(times.end)],
      ["starts", html`<bdi>${starts.length}${resumed}</bdi>`],
      ...versions.map(([name, version]) => [name, html`<bdi>${String(version)}</bdi>`]),
      ...Object.entries(last?.recipe || {}).map(([name, value]) => [
        html`<code><bdi>${name}</bdi></code>`,
        html`<code><bdi>${typeof value === "string" ? value : JSON.stringify(value)}</bdi></code>`,
      ]),
    ];
    return html`<${Part} title="What ran: versions and the recipe's values that matter"><${Table} caption="The last start" heads=${["what", "value"]} rows=${rows} /><//>`;
  }

  viewer.OverviewPage = OverviewPage;
}
