"use strict";
/* What the desktops show now, and the pool's state. */
{
  const { html, plural, duration, usePolled, Heading, Message, Screenshot } = viewer.ui;

  const POLL_MS = 1500;

  /** How long ago, without fractions that change with every look. */
  function since(now, then) {
    const seconds = Math.max(0, Math.round(now - then));
    return !then ? "–" : seconds < 60 ? `${seconds} s` : duration(seconds);
  }

  function LivePage({ run }) {
    const { data: live, error } = usePolled(viewer.source.exported ? null : "api/live", POLL_MS);
    return html`
      <${Heading} focusKey="live">Live<//>
      ${viewer.source.exported && html`<${Message}>An export shows what had ended when it was made.<//>`}
      ${!run.live && !viewer.source.exported && html`<${Message}>Nothing has been written to this run for a while; it may have ended.<//>`}
      ${error && html`<${Message} kind="bad">The state could not be read: ${error.message}<//>`}
      ${live && html`<${Pool} pool=${live.pool} now=${live.time} />`}
      ${live && html`<h2>${plural(live.running.length, "episode")} under way</h2>`}
      ${live && live.running.length === 0 && html`<p class="empty">No desktop is in an episode now.</p>`}
      <ul class="running">
        ${(live?.running || []).map((episode) => html`<${Running} key=${episode.id} episode=${episode} now=${live.time} />`)}
      </ul>
    `;
  }

  function Running({ episode, now }) {
    const alt = `Newest screenshot of task ${episode.task_id}, turn ${episode.num_turns}`;
    const src = episode.screenshot ? `${viewer.source.encodePath(episode.screenshot)}?n=${episode.num_turns}` : null;
    return html`<li class="card">
      <h3><bdi>${episode.task_id}</bdi></h3>
      <p class="instruction"><bdi>${episode.instruction}</bdi></p>
      <${Screenshot} src=${src} alt=${alt} without="no screenshot yet" />
      <p class="muted">
        training step ${episode.step}, session ${episode.session} · turn ${episode.num_turns} · ${since(now, episode.started_at)} ·${" "}
        <bdi>${episode.desktop}</bdi>
      </p>
      <p class="badges">
        ${(episode.last_actions || []).map((action) => html`<span class="badge"><bdi>${viewer.actions.describe(action)}</bdi></span>`)}
      </p>
      ${episode.last_reply && html`<pre tabindex="0" aria-label="Last reply"><bdi>${episode.last_reply}</bdi></pre>`}
    </li>`;
  }

  function Pool({ pool, now }) {
    if (!pool) return html`<p class="muted">The pool has written no state.</p>`;
    const states = [...viewer.episodes.count(pool.desktops || [], (desktop) => desktop.state)].sort();
    const dropped = Object.entries(pool.dropped || {});
    return html`
      <p class="counts" role="status">
        ${plural((pool.desktops || []).length, "desktop")}: ${states.map(([state, many]) => `${many} ${state}`).join(", ") || "none"} ·
        ${" "}${plural(pool.waiting || 0, "episode waits", "episodes wait")} for one · as of ${since(now, pool.time)} ago
      </p>
      ${dropped.map(([host, why]) => html`<p key=${host} class="counts">Dropped host <bdi>${host}</bdi>: <bdi>${why}</bdi></p>`)}
      <details>
        <summary>Desktops</summary>
        <table>
          <thead><tr>
            <th scope="col">Desktop</th>
            <th scope="col">Host</th>
            <th scope="col">State</th>
            <th scope="col">Task</th>
            <th scope="col" class="numeric">For</th>
          </tr></thead>
          <tbody>
            ${(pool.desktops || []).map(
              (desktop) => html`<tr key=${desktop.name}>
                <th scope="row"><bdi>${desktop.name}</bdi></th><td><bdi>${desktop.host}</bdi></td><td>${desktop.state}</td>
                <td><bdi>${desktop.task_id}</bdi></td><td class="numeric">${since(now, desktop.since)}</td>
              </tr>`,
            )}
          </tbody>
        </table>
      </details>
    `;
  }

  viewer.LivePage = LivePage;
}
