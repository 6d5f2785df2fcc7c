"use strict";
/* Two episodes of one task side by side, in lockstep or each on its own. */
{
  const {
    html,
    number,
    signed,
    plural,
    useDocument,
    useKeys,
    Link,
    episodeRoute,
    Score,
    Waiting,
    Heading,
    Screenshot,
    Actions,
    Reply,
    Seen,
    framesOf,
  } = viewer.ui;
  const { useMemo } = preactHooks;

  /** More would make the list of choices slow to open; a link can still name any episode. */
  const MAX_CHOICES = 500;

  function ComparePage({ id, rows, byId, query }) {
    const choices = useMemo(() => choicesFor(rows, byId.get(id)), [rows, id]);
    const right = query.with || suggestion(choices, byId.get(id));
    const [one, two] = [useFrames(id), useFrames(right)];
    const back = episodeRoute(id, viewer.episodes.filtersOf(query));
    const free = query.free === "1";
    const side = query.side === "b" ? "b" : "a";
    const turns = { a: clamp(query.a, one.frames.length), b: clamp(query.b, two.frames.length) };
    const set = (changes) =>
      viewer.route.go({ page: "compare", id, query: { ...query, with: right, ...changes } }, { replace: true });
    const longest = Math.max(one.frames.length, two.frames.length);
    // In lockstep the shorter one stays on its last turn.
    const locked = Math.max(clamp(query.a, longest), clamp(query.b, longest));
    const ready = one.data && (two.data || !right);
    const move = (to, which = side) =>
      ready && (free ? set({ [which]: to(turns[which]) }) : set({ a: to(locked), b: to(locked) }));
    const within = (turn) => Math.min(Math.max(turn, 1), longest || 1);
    const [later, earlier] = [(turn) => within(turn + 1), (turn) => within(turn - 1)];
    const toggle = () => set(free ? { free: "", a: turns[side], b: turns[side] } : { free: "1", ...turns });
    useKeys({
      ArrowRight: () => move(later),
      j: () => move(later),
      ArrowLeft: () => move(earlier),
      k: () => move(earlier),
      Home: () => move(() => 1),
      End: () => move(() => longest),
      l: toggle,
      s: () => set({ side: side === "a" ? "b" : "a" }),
      Escape: () => viewer.route.go(back),
    });
    const choose = (which) => (wanted) =>
      viewer.route.go({
        page: "compare",
        id: which === "a" ? wanted : id,
        query: { ...query, with: which === "a" ? right : wanted, a: "", b: "" },
      });
    const of = (which) => ({ turn: turns[which], active: free && side === which, choose: choose(which) });
    const common = { choices, free, move, set, later, earlier };
    return html`
      <nav class="crumbs" aria-label="Place"><${Link} to=${back}>← Episode<//></nav>
      <${Heading} focusKey="compare">Compare<//>
      <p class="task"><bdi>${one.data?.instruction}</bdi></p>
      <p class="compare-mode">
        <label><input type="checkbox" checked=${!free} onChange=${toggle} /> move both together</label>
        <span class="muted">
          ${free ? `The keys move the ${side === "a" ? "left" : "right"} one; s changes sides.` : `turn ${locked} of ${longest}`}
        </span>
      </p>
      <div class="compare">
        <${Side} which="a" name="Left" episode=${one} id=${id} ...${of("a")} ...${common} />
        ${
          right
            ? html`<${Side} which="b" name="Right" episode=${two} id=${right} ...${of("b")} ...${common} />`
            : html`<p class="empty">This run has no other episode of the task.</p>`
        }
      </div>
    `;
  }

  const clamp = (turn, total) => Math.min(Math.max(1, Number(turn) || 1), Math.max(1, total));

  function useFrames(id) {
    const { data, error } = useDocument(id ? `api/episode/${id}` : null);
    const frames = useMemo(() => (data ? framesOf(data) : []), [data]);
    return { data, error, frames };
  }

  /** The other episodes of a task, those of near steps first to stay when there are too many. */
  function choicesFor(rows, self) {
    if (!self) return [];
    const near = rows
      .filter((row) => row.task_id === self.task_id)
      .sort((a, b) => Math.abs(a.step - self.step) - Math.abs(b.step - self.step));
    return viewer.episodes.sort(near.slice(0, MAX_CHOICES), "step");
  }

  /** What one would like to see beside it: the nearest that ended otherwise. */
  function suggestion(choices, self) {
    const others = choices.filter((row) => row.id !== self.id);
    const near = others.sort((a, b) => Math.abs(a.step - self.step) - Math.abs(b.step - self.step));
    return (near.find((row) => viewer.episodes.isSuccess(row) !== viewer.episodes.isSuccess(self)) || near[0])?.id;
  }

  function Side({ which, name, episode, id, turn, active, choose, choices, free, move, set, later, earlier }) {
    const { data, error, frames } = episode;
    const activate = () => free && !active && set({ side: which });
    return html`<section class=${`side${active ? " active" : ""}`} aria-label=${`${name} episode`} onClick=${activate}>
      <label>${name}
        <select value=${id} onChange=${(event) => choose(event.target.value)}>
          ${!choices.some((row) => row.id === id) && html`<option value=${id}>${id}</option>`}
          ${choices.map((row) => html`<option value=${row.id}>${choiceName(row)}</option>`)}
        </select>
      </label>
      ${
        data
          ? html`<${Shown} ...${{ data, frames, turn, free, move, which, later, earlier }} />`
          : html`<${Waiting} error=${error} what="the episode" />`
      }
    </section>`;
  }

  const choiceName = (row) =>
    `training step ${row.step}, session ${row.session}: ${viewer.episodes.isSuccess(row) ? "success" : "failure"}, ${plural(row.num_turns, "turn")}`;

  function Shown({ data, frames, turn, free, move, which, later, earlier }) {
    const frame = frames[turn - 1];
    return html`
      <p class="badges">
        <${Score} row=${data} /> <span class="badge">${data.stop_reason}</span>
        <span class="muted">reward ${number(data.reward)}, advantage ${signed(data.advantage)}${data.replaced && " (of the replay)"}</span>
        <${Link} to=${episodeRoute(data.id, { turn })}>open<//>
      </p>
      <div class="stepper">
        ${free && html`<button type="button" disabled=${turn === 1} onClick=${() => move(earlier, which)} aria-label="Previous turn">←</button>`}
        <span>turn <b>${turn}</b> of ${frames.length}</span>
        ${free && html`<button type="button" disabled=${turn === frames.length} onClick=${() => move(later, which)} aria-label="Next turn">→</button>`}
      </div>
      ${
        frame &&
        html`<figure>
          <${Screenshot} src=${frame.src} alt=${frame.alt} marks=${frame.marks} marksAcross=${56} />
          <figcaption><${Actions} turn=${frame.turn} /></figcaption>
        </figure>
        <${Seen} context=${frame.context} />
        ${frame.turn && html`<${Reply} turn=${frame.turn} />`}`
      }
    `;
  }

  viewer.ComparePage = ComparePage;
}
