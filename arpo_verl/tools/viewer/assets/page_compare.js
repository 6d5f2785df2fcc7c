"use strict";
/* Two episodes of one task side by side: in step, aligned by what their screens show, or each on its own. */
{
  const { html, number, signed, plural, useDocument, useKeys, Link, episodeRoute, Score, Waiting, Heading } = viewer.ui;
  const { Screenshot, Actions, Reply, Seen, framesOf } = viewer.ui;
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
    const ready = one.data && (two.data || !right);
    const pairs = usePairs(id, right, one.frames, two.frames);
    const place = clamp(query.at, pairs.length);
    const at = free || !pairs.length ? [query.a, query.b] : pairs[place - 1].map((turn) => turn + 1);
    const turns = { a: clamp(at[0], one.frames.length), b: clamp(at[1], two.frames.length) };
    const first = useMemo(() => firstDifference(pairs, one.frames, two.frames), [pairs]);
    const set = (changes) =>
      viewer.route.go({ page: "compare", id, query: { ...query, with: right, ...changes } }, { replace: true });
    const longest = Math.max(one.frames.length, two.frames.length);
    const go = (to) => set({ at: clamp(to, pairs.length) });
    const move = (to, which = side) =>
      ready && (free ? set({ [which]: clamp(to(turns[which]), longest) }) : go(to(place)));
    const [later, earlier] = [(turn) => turn + 1, (turn) => turn - 1];
    const nearest = () => pairs.findIndex((pair) => pair["ab".indexOf(side)] + 1 === turns[side]) + 1;
    const toggle = () => set(free ? { free: "", a: "", b: "", at: nearest() } : { free: "1", at: "", ...turns });
    const toDifference = () => first && !free && go(first.place + 1);
    useKeys({
      ArrowRight: () => move(later),
      j: () => move(later),
      ArrowLeft: () => move(earlier),
      k: () => move(earlier),
      Home: () => move(() => 1),
      End: () => move(() => Infinity),
      d: toDifference,
      l: toggle,
      s: () => set({ side: side === "a" ? "b" : "a" }),
      Escape: () => viewer.route.go(back),
    });
    const choose = (which) => (wanted) =>
      viewer.route.go({
        page: "compare",
        id: which === "a" ? wanted : id,
        query: { ...query, with: which === "a" ? right : wanted, a: "", b: "", at: "" },
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
          ${free && `The keys move the ${side === "a" ? "left" : "right"} one; s changes sides.`}
        </span>
      </p>
      ${ready && right && html`<${Aligned} ...${{ pairs, place, first, free, go, toDifference }} />`}
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

  /**
   * Turns that belong together: [[left, right, same], ...], numbers from 0; `same` is whether both screens show the same,
   * null where nobody compared them. Without screens, as in an export, turns go together by their numbers.
   */
  function usePairs(left, right, one, two) {
    const { data } = useDocument(right && !viewer.source.exported ? "api/align" : null, { first: left, second: right });
    return useMemo(() => {
      const total = Math.max(one.length, two.length);
      const [first, second] = [one, two].map((frames) => frames.map(({ number }) => number));
      const inOrder = [first, second].every((numbers) => numbers.every((number, i) => number === i));
      const last = (frames, i) => Math.max(0, Math.min(i, frames.length - 1));
      const aligned = inOrder && data ? data.pairs : [];
      const [a, b] = aligned.at(-1) || [-1, -1];
      const rest = Array.from({ length: Math.max(0, one.length - 1 - a, two.length - 1 - b) }, (_, i) => [last(one, a + 1 + i), last(two, b + 1 + i), null]);
      return total ? [...aligned, ...rest] : [];
    }, [data, one, two]);
  }

  /** Where two attempts part: {place, why}; null where they do not. */
  function firstDifference(pairs, one, two) {
    for (const [place, [a, b, same]] of pairs.entries()) {
      if (same === false) return { place, why: "the screens differ, after the same actions" };
      const [left, right] = [one[a]?.turn, two[b]?.turn];
      if (two.length && !viewer.actions.alike(left, right)) return { place, why: same ? "the same screen, another action" : "another action" };
    }
    return null;
  }

  function Aligned({ pairs, place, first, free, go, toDifference }) {
    const words = { true: "the same screen", false: "another screen", null: "not compared" };
    const [a, b] = first ? pairs[first.place] : [];
    return html`
      <p>
        ${first ? html`First difference: left turn <b>${a + 1}</b>, right turn <b>${b + 1}</b>: ${first.why}. <button type="button" disabled=${free} onClick=${toDifference}>Go there</button>` : "They do not differ."}
      </p>
      ${
        !free &&
        html`<ol class="aligned" aria-label="Turns side by side, left and right">${pairs.map(
          ([left, right, same], i) => html`<li><button
            type="button"
            class=${`same-${same}${i === first?.place ? " parts" : ""}`}
            aria-current=${i + 1 === place ? "step" : null}
            aria-label=${`left turn ${left + 1}, right turn ${right + 1}: ${words[same]}${i === first?.place ? ", the first difference" : ""}`}
            title=${words[same]}
            onClick=${() => go(i + 1)}
          >${left + 1}${{ true: " = ", false: " ≠ " }[same] || " · "}${right + 1}</button></li>`,
        )}</ol>`
      }
    `;
  }

  const clamp = (turn, total) => Math.max(1, Math.min(Number(turn) || 1, total));

  function useFrames(id) {
    const { data, error } = useDocument(id ? `api/episode/${id}` : null);
    const frames = useMemo(() => (data ? framesOf(data) : []), [data]);
    return { data, error, frames };
  }

  /** The episodes of a task, those of near steps first. */
  function near(rows, self) {
    const distance = (row) => Math.abs(row.step - self.step);
    return rows.filter((row) => row.task_id === self.task_id).sort((a, b) => distance(a) - distance(b));
  }

  const choicesFor = (rows, self) =>
    self ? viewer.episodes.sort(near(rows, self).slice(0, MAX_CHOICES), "step") : [];

  /** What one would like to see beside it: the nearest that ended otherwise. */
  function suggestion(choices, self) {
    const others = near(choices, self).filter((row) => row.id !== self.id);
    return (others.find((row) => viewer.episodes.isSuccess(row) !== viewer.episodes.isSuccess(self)) || others[0])?.id;
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
        <span class="muted">reward ${number(data.reward)}, ${data.replaced ? "a replay took its place" : `advantage ${signed(data.advantage)}`}</span>
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
