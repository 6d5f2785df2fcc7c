"use strict";
/* One episode: film strip, turn by turn, the verdict, its group and what replay did with it. */
{
  const { html, known, number, signed, duration, kindName, plural, useDocument, useKeys } = viewer.ui;
  const { Link, episodeRoute, Score, ReplayBadges, Waiting, Heading, Facts, Screenshot, Actions, framesOf } = viewer.ui;
  const { Marked, Reply, Seen, patternOf, whole } = viewer.ui;
  const { useEffect, useMemo, useRef, useState } = preactHooks;

  /** Two episodes side by side; without a second one, the page finds one that ended otherwise. */
  const compareRoute = (left, right, filters) => ({ page: "compare", id: left, query: { ...filters, with: right } });

  function EpisodePage({ id, rows, byId, tasks, query }) {
    const { data, error } = useDocument(`api/episode/${id}`);
    const filters = viewer.episodes.filtersOf(query);
    const selected = viewer.useSelected(rows, filters, tasks, viewer.useSearch(filters.q));
    const place = selected.findIndex((row) => row.id === id);
    const frames = useMemo(() => (data ? framesOf(data) : []), [data]);
    const pattern = useMemo(() => patternOf(filters.q), [filters.q]);
    const wanted = Number(query.turn) || firstHit(frames, pattern);
    const turn = Math.min(Math.max(1, wanted), Math.max(1, frames.length));
    const show = (wanted) => {
      if (wanted >= 1 && wanted <= frames.length)
        viewer.route.go({ page: "episode", id, query: { ...filters, turn: wanted } }, { replace: true });
    };
    const open = (index) => selected[index] && viewer.route.go(episodeRoute(selected[index].id, filters));
    const back = { page: "episodes", query: filters };
    const [next, previous] = [() => open(place + 1), () => open(place < 0 ? 0 : place - 1)];
    const [later, earlier] = [() => show(turn + 1), () => show(turn - 1)];
    const [playing, play] = usePlaying(turn, frames.length, show);
    useKeys({
      ArrowRight: later,
      j: later,
      ArrowLeft: earlier,
      k: earlier,
      Home: () => show(1),
      End: () => show(frames.length),
      ArrowDown: next,
      n: next,
      ArrowUp: previous,
      p: previous,
      Escape: () => viewer.route.go(back),
      " ": play,
      c: () => viewer.route.go(compareRoute(id, data?.replayed_by, filters)),
    });
    return html`
      <nav class="crumbs" aria-label="Place in the list">
        <${Link} to=${back}>← Episodes<//>
        <span class="muted">${place < 0 ? "not among the filtered" : `${place + 1} of ${plural(selected.length, "episode")}`}</span>
        <button type="button" disabled=${place < 1} onClick=${previous}>↑ Previous</button>
        <button type="button" disabled=${place + 1 >= selected.length} onClick=${next}>↓ Next</button>
      </nav>
      ${
        data
          ? html`<${Episode} episode=${data} ...${{ byId, frames, turn, show, filters, pattern, playing, play }} />`
          : html`<${Waiting} error=${error} what="the episode" />`
      }
    `;
  }

  const wordsOf = ({ turn }) => [turn?.text, turn?.thought, ...viewer.actions.list(turn?.actions).map((one) => one?.text)].join(" ");
  const isHit = (frame, pattern) => Boolean(pattern && frame.turn && wordsOf(frame).search(pattern) >= 0);

  /** The first turn in which a searched word is, from 1. */
  const firstHit = (frames, pattern) => Math.max(0, frames.findIndex((frame) => isHit(frame, pattern))) + 1;

  const SHOWN_MS = 1200;

  /** Play by itself to the end; from the end, anew. */
  function usePlaying(turn, total, show) {
    const [playing, setPlaying] = useState(false);
    const going = playing && turn < total;
    useEffect(() => {
      if (playing && !going) setPlaying(false);
      const timer = going && setTimeout(() => show(turn + 1), SHOWN_MS);
      return () => clearTimeout(timer);
    }, [going, turn]);
    const play = () => {
      if (!going && turn === total) show(1);
      setPlaying(!going);
    };
    return [going, play];
  }

  function Episode({ episode, byId, frames, turn, show, filters, pattern, playing, play }) {
    const row = byId.get(episode.id) || episode;
    const frame = frames[turn - 1];
    const recorded = useDocument(`api/tokens/${episode.id}`).data?.replies || [];
    // Of a harness, rows may leave replies out: then nothing says which is which.
    const replies = recorded.length === viewer.actions.list(episode.turns).length ? recorded : [];
    const tokens = replies[turn - 1] ?? null;
    return html`
      <div class="badges">
        <${Heading} focusKey=${episode.id}><bdi>${episode.task_id}</bdi><//>
        <${Score} row=${episode} /> <span class="badge">${episode.stop_reason}</span> <${ReplayBadges} row=${row} />
        <span class="muted">training step ${episode.step}, session ${episode.session}</span>
      </div>
      <p class="task"><${Marked} text=${episode.instruction} pattern=${pattern} /></p>
      <${ReplayNotes} episode=${episode} byId=${byId} filters=${filters} />
      <${FilmStrip} ...${{ frames, turn, show, pattern }} />
      <p class="hidden" role="status">${frame ? spoken(frame, turn, frames.length) : ""}</p>
      ${
        frame &&
        html`<${Turn} total=${frames.length} ...${{ episode, frame, turn, show, pattern, playing, play }}>
        ${frame.turn && html`<${Reply} turn=${frame.turn} advantage=${episode.advantage} ...${{ tokens, pattern }} />`}
        <${Verdict} episode=${episode} pattern=${pattern} />
      <//>`
      }
      <section class="details">
        ${!frame && html`<${Verdict} episode=${episode} pattern=${pattern} />`}
        <${ByTurn} ...${{ frames, replies, turn, show }} />
        <${Group} episode=${episode} byId=${byId} filters=${filters} />
        <${About} ...${{ episode, row, filters }} />
      </section>
    `;
  }

  /** The turn for who does not see it. */
  function spoken({ turn, context }, number, total) {
    const seen = context ? `. ${viewer.context.describe(context)}` : "";
    return `Turn ${number} of ${total}: ${viewer.actions.describeTurn(turn)}${seen}`;
  }

  function FilmStrip({ frames, turn, show, pattern }) {
    const current = useRef(null);
    useEffect(() => {
      const [item, strip] = [current.current, current.current?.parentElement];
      if (strip) strip.scrollLeft = item.offsetLeft - strip.offsetLeft - (strip.clientWidth - item.clientWidth) / 2;
    }, [turn, frames]);
    const context = frames[turn - 1]?.context;
    return html`<ol class="film" aria-label="Film strip">
      ${frames.map(
        (frame, i) => html`<li ref=${i + 1 === turn ? current : null} class=${frame.context?.begins ? "begins" : ""}>
          <button
            type="button"
            aria-current=${i + 1 === turn ? "step" : null}
            class=${`${frame.turn?.parse_error ? "fault " : ""}${viewer.context.placeOf(context, frame.number)}`}
            onClick=${() => show(i + 1)}
          >
            <${Screenshot} src=${frame.src} alt=${frame.alt} marks=${frame.marks} marksAcross=${26} lazy />
            <span class="what">
              <b>${i + 1}</b> ${isHit(frame, pattern) && html`<mark>found</mark>`} ${frame.context?.begins && html`<span class="muted">row ${frame.context.row + 1}</span>`}${" "}
              <bdi>${viewer.actions.describeTurn(frame.turn)}</bdi>
            </span>
          </button>
        </li>`,
      )}
    </ol>`;
  }

  function Turn({ episode, frame, turn, total, show, pattern, playing, play, children }) {
    const moving = `moving/${viewer.source.encodePath(episode.id)}`;
    return html`<section class="turn" aria-label=${`Turn ${turn} of ${total}`}>
      <figure>
        <${Screenshot} src=${frame.src} alt=${frame.alt} marks=${frame.marks} lens />
        <figcaption><${Actions} turn=${frame.turn} pattern=${pattern} /></figcaption>
      </figure>
      <div class="stepper">
        <button type="button" disabled=${turn === 1} onClick=${() => show(turn - 1)} aria-label="Previous turn">←</button>
        <span>turn <b>${turn}</b> of ${total}</span>
        <button type="button" disabled=${turn === total} onClick=${() => show(turn + 1)} aria-label="Next turn">→</button>
        <button type="button" disabled=${total < 2} onClick=${play}>${playing ? "Pause" : "Play"}</button>
        ${!viewer.source.exported && html`<a href=${moving} download=${`${episode.id.split("/")[1]}.gif`} title="All turns as an animated picture, with the clicks drawn">GIF</a>`}
      </div>
      <div class="beside">
        <${Seen} context=${frame.context} />
        ${children}
      </div>
    </section>`;
  }

  /** Where the time and the tokens went: each turn's reply and what its actions took on the desktop. */
  function ByTurn({ frames, replies, turn, show }) {
    const rows = frames.filter((frame) => frame.turn).map(({ turn }, i) => ({ ...turn, i, reply: replies[i] }));
    const took = ({ generate_s, desktop_s }) => [generate_s, desktop_s].map((seconds) => (known(seconds) ? seconds : 0));
    const longest = Math.max(...rows.map((row) => took(row)[0] + took(row)[1]));
    if (!(longest > 0) && !replies.length) return null;
    const bar = (row) => took(row).map((seconds) => `${(100 * seconds) / longest || 0}%`);
    const mean = (values) => (values?.length && values.every(known) ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
    return html`<div class="card by-turn">
      <h2>Time and tokens by turn</h2>
      <div class="table-scroll"><table>
        <thead><tr>
          <th scope="col">Turn</th><th scope="col" class="numeric">Reply</th><th scope="col" class="numeric">Desktop</th><th scope="col" class="bars"></th>
          <th scope="col" class="numeric">Tokens</th><th scope="col" class="numeric" title="Mean log-prob of its tokens when they were written">Log-prob</th>
        </tr></thead>
        <tbody>${rows.map((row) => html`<tr class=${row.i + 1 === turn ? "current" : ""}>
          <td><button type="button" class="quiet" onClick=${() => show(row.i + 1)} aria-label=${`Turn ${row.i + 1}`}>${row.i + 1}</button></td>
          <td class="numeric">${duration(row.generate_s)}</td><td class="numeric">${duration(row.desktop_s)}</td>
          <td class="bars" aria-hidden="true">${bar(row).map((width, i) => html`<i class=${`bar-${i}`} style=${{ width }}></i>`)}</td>
          <td class="numeric">${whole(row.reply?.num_tokens)}</td><td class="numeric">${signed(mean(row.reply?.log_probs))}</td>
        </tr>`)}</tbody>
      </table></div>
    </div>`;
  }

  /** The verdict and what led to it: what the desktop had, and what the task expects. */
  function Verdict({ episode, pattern }) {
    const calls = viewer.actions.list(episode.evaluator).filter(Boolean);
    const words = (text) => html`<code><${Marked} text=${text} pattern=${pattern} /></code>`;
    return html`<div class="card verdict">
      <h2>Evaluator's verdict</h2>
      <p><${Score} row=${episode} /> score ${number(episode.success)}, reward ${number(episode.reward)}</p>
      ${calls.length === 0 && html`<p class="muted">No metric was recorded.</p>`}
      ${calls.map(
        (call) => html`<dl class="metric">
          <div><dt>metric</dt><dd>${words(call.metric)} returned ${words(call.returned)}</dd></div>
          <div><dt>got</dt><dd>${words(call.result)}</dd></div>
          <div><dt>expected</dt><dd>${words(call.expected)}</dd></div>
        </dl>`,
      )}
    </div>`;
  }

  function Group({ episode, byId, filters }) {
    const members = episode.group || [];
    return html`<div class="card">
      <h2>Group</h2>
      ${members.length === 0 && html`<p class="muted">Not recorded.</p>`}
      ${
        members.length > 0 &&
        html`<div class="table-scroll"><table>
        <thead><tr>
          <th scope="col">Session</th>
          <th scope="col">Result</th>
          <th scope="col" class="numeric">Reward</th>
          <th scope="col" class="numeric">Advantage</th>
          <th scope="col">Look</th>
        </tr></thead>
        <tbody>${members.map((member) => html`<${Member} ...${{ episode, member, byId, filters }} />`)}</tbody>
      </table></div>`
      }
    </div>`;
  }

  function Member({ episode, member, byId, filters }) {
    const self = member.id === episode.id;
    const recorded = member.id && byId.has(member.id);
    const session = member.added ? "beside the group" : `session ${member.session}`;
    const trained = (member.replaced || member.added) && known(member.trained_reward);
    return html`<tr class=${self ? "self" : ""}>
      <th scope="row">
        ${self || !recorded ? session : html`<${Link} to=${episodeRoute(member.id, filters)}>${session}<//>`}
        ${self && ", this"}
      </th>
      <td><${Score} row=${member} /> <${Replacement} ...${{ member, byId, filters }} /></td>
      <td class="numeric" title=${trained && "its own reward → that of the episode trained on"}>
        ${number(member.reward)}${trained && ` → ${number(member.trained_reward)}`}
      </td>
      <td class="numeric">${signed(member.advantage)}</td>
      <td>${!self && recorded && html`<${CompareLink} ...${{ left: episode.id, right: member.id, filters }}>compare<//>`}</td>
    </tr>`;
  }

  /** What took a member's place in training, if anything did. */
  function Replacement({ member, byId, filters }) {
    if (member.added) return html`<span class="badge note">a past success</span>`;
    if (!member.replaced && !member.replay_of) return null;
    if (!byId.has(member.replay_of)) return html`<span class="badge note">replaced</span>`;
    const step = byId.get(member.replay_of).step;
    return html`<${Link} class="badge note" to=${episodeRoute(member.replay_of, filters)}>replaced by training step ${step}<//>`;
  }

  const CompareLink = ({ left, right, filters, children }) =>
    html`<${Link} to=${compareRoute(left, right, filters)}>${children}<//>`;

  /** Which success took this episode's place in training, whose places it took itself, and which groups it joined. */
  function ReplayNotes({ episode, byId, filters }) {
    const by = episode.replayed_by;
    const name = (id) => (byId.has(id) ? `the episode of training step ${byId.get(id).step}` : id);
    const link = (id) => html`<${Link} to=${episodeRoute(id, filters)}>${name(id)}<//>`;
    const into = episode.replayed_into || [];
    const beside = episode.replayed_beside || [];
    return html`
      ${
        (by || episode.replaced) &&
        html`<p class="message note">
        In training, this episode was replaced by ${by ? link(by) : "a success that is not in this run"}.${" "}
        ${by && html`<${CompareLink} ...${{ left: episode.id, right: by, filters }}>Compare with the success that took its place<//>`}
      </p>`
      }
      ${
        into.length > 0 &&
        html`<p class="message info">
        This success took the place of ${plural(into.length, "episode")}:${" "}
        ${into.map((id, i) => html`${i > 0 && ", "}${link(id)} (<${CompareLink} ...${{ left: id, right: episode.id, filters }}>compare<//>)`)}
      </p>`
      }
      ${
        beside.length > 0 &&
        html`<p class="message info">
        This success was replayed beside ${plural(beside.length, "group")}, that of:${" "}
        ${beside.map((id, i) => html`${i > 0 && ", "}${link(id)}`)}
      </p>`
      }
    `;
  }

  /** "1234 in the prompt, 567 in the response"; of several rows their sums. */
  function tokens({ prompt_tokens, response_tokens, rows }) {
    const count = viewer.actions.list(rows).length;
    const together = count > 1 ? `, ${count} rows together` : "";
    return `${prompt_tokens ?? "–"} in the prompt, ${response_tokens ?? "–"} in the response${together}`;
  }

  function About({ episode, row, filters }) {
    return html`<div class="card">
      <h2>About</h2>
      <${Facts}
        of=${[
          ["training step", episode.step],
          ["kind", kindName(episode.validation)],
          ["group", html`<code><bdi>${episode.uid}</bdi></code>, session ${episode.session}`],
          ["stopped", `${episode.stop_reason}${episode.format_error ? ", with a format error" : ""}`],
          ["advantage", episode.replaced ? "none: a replay took its place" : signed(episode.advantage)],
          episode.started_at && ["started", new Date(1000 * episode.started_at).toLocaleString("en-GB")],
          ["took", duration(episode.wall_s ?? row.wall_s)],
          ["writing replies", duration(episode.generate_s)],
          ["the desktop", duration(episode.desktop_s)],
          ["tokens", tokens(episode)],
          ["programs", viewer.actions.list(row.programs).join(", ") || "–"],
          ["ran on", html`<bdi>${episode.desktop || "–"}</bdi>`],
          ["model's image", viewer.actions.list(episode.image_size).join(" × ") || "–"],
          [
            "compare",
            html`<${CompareLink} left=${episode.id} filters=${filters}>with another episode of this task<//>`,
          ],
        ]}
      />
    </div>`;
  }

  viewer.EpisodePage = EpisodePage;
}
