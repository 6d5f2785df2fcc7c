"use strict";
/* What every page uses: templates, hooks, and the small parts that recur. Text is always text: no markup is set. */
{
  const { h } = preact;
  const { useEffect, useLayoutEffect, useRef, useState } = preactHooks;
  const html = htm.bind(h);

  // --- Numbers and names -------------------------------------------------------------------------------------------

  const known = (value) => typeof value === "number" && Number.isFinite(value);
  const number = (value, digits = 2) => (known(value) ? value.toFixed(digits) : "–");
  const signed = (value) =>
    known(value) ? `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(value).toFixed(2)}` : "–";
  const separated = new Intl.NumberFormat("en");
  const whole = (value) => (known(value) ? separated.format(value) : "–");
  const percent = (value) => (known(value) ? `${Math.round(100 * value)}%` : "–");
  const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

  /** "2.50 s", "14.2 s", "3 min 05 s", "2 h 10 min" */
  function duration(seconds) {
    if (!known(seconds)) return "–";
    if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
    const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
    return hours
      ? `${hours} h ${minutes} min`
      : `${minutes} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  }
  const kindName = (validation) =>
    validation === true ? "validation" : validation === false ? "training" : "not known";

  // --- Hooks -------------------------------------------------------------------------------------------------------

  /** A document of the source: {data, error}; both null while it loads. `path` null asks for nothing. */
  function useDocument(path) {
    const [state, setState] = useState({});
    useEffect(() => {
      let current = true;
      const settle = (found) => current && setState({ path, ...found });
      if (path) {
        viewer.source.get(path).then(
          (data) => settle({ data }),
          (error) => settle({ error }),
        );
      }
      return () => (current = false);
    }, [path]);
    const fresh = state.path === path;
    return { data: (fresh && state.data) || null, error: (fresh && state.error) || null };
  }

  /** Call `poll` now and `period_ms` after each answer, only while the page is seen. */
  function usePolling(poll, period_ms, enabled) {
    const latest = useRef(poll);
    latest.current = poll;
    useEffect(() => {
      if (!enabled) return undefined;
      let timer = null;
      let busy = false;
      let ended = false;
      const tick = async () => {
        clearTimeout(timer);
        if (document.hidden || busy || ended) return;
        busy = true;
        await latest.current();
        busy = false;
        if (!ended) timer = setTimeout(tick, period_ms);
      };
      tick();
      document.addEventListener("visibilitychange", tick);
      return () => {
        ended = true;
        clearTimeout(timer);
        document.removeEventListener("visibilitychange", tick);
      };
    }, [period_ms, enabled]);
  }

  /** Where keys mean something already: typing, scrolling, pressing. */
  const TYPED_INTO = "input:not([type=checkbox]), select, textarea, pre";
  const PRESSED = "button, a, summary, input";

  /** Keys of a page: name of the key -> what it does. None while one types, or with Ctrl, Alt or Meta. */
  function useKeys(keys) {
    const latest = useRef(keys);
    latest.current = keys;
    useLayoutEffect(() => {
      const pressed = (event) => {
        if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
        if (event.target.closest?.(TYPED_INTO)) {
          if (event.key === "Escape") event.target.blur();
          return;
        }
        if (event.key === " " && event.target.closest?.(PRESSED)) return;
        const action = latest.current[event.key];
        if (!action || event.defaultPrevented) return;
        event.preventDefault();
        action();
      };
      document.addEventListener("keydown", pressed);
      return () => document.removeEventListener("keydown", pressed);
    }, []);
  }

  // --- Parts -------------------------------------------------------------------------------------------------------

  /** A report has one page: elsewhere it leads nowhere. */
  const Link = ({ to, children, ...rest }) =>
    viewer.source.kind === "report"
      ? html`<span>${children}</span>`
      : html`<a href=${viewer.route.format(to)} ...${rest}>${children}</a>`;

  const episodeRoute = (id, query = {}) => ({ page: "episode", id, query });

  /** The evaluator's score, never by colour alone. */
  function Score({ row }) {
    if (!known(row.success)) return html`<span class="badge">not scored</span>`;
    const good = viewer.episodes.isSuccess(row);
    return html`<span class=${`badge ${good ? "good" : "bad"}`}
      ><span aria-hidden="true">${good ? "✓" : "✗"}</span> ${good ? "success" : "failure"}${" "}
      ${row.success === 0 || row.success === 1 ? "" : number(row.success)}</span
    >`;
  }

  /** What replay did with an episode, in two words. */
  function ReplayBadges({ row }) {
    const places = viewer.episodes.tookPlaces(row);
    return html`
      ${row.replaced && html`<span class="badge note" title="In training, a replayed success took this episode's place">replaced</span>`}
      ${
        places > 0 &&
        html`<span class="badge info" title=${`This success took ${plural(places, "place")} in later groups`}>replayed ×${places}</span>`
      }
    `;
  }

  const Message = ({ kind = "note", children }) =>
    html`<p class=${`message ${kind}`} role=${kind === "bad" ? "alert" : "status"}>${children}</p>`;

  /** What stands in a page's place until its document is there. */
  const Waiting = ({ error, what }) =>
    error
      ? html`<${Message} kind="bad">Could not read ${what}: ${error.message}<//>`
      : html`<p class="waiting" role="status">Reading ${what} …</p>`;

  /** A heading that takes the focus when its page opens, so that a screen reader begins there. */
  function Heading({ children, focusKey }) {
    const ref = useRef(null);
    useLayoutEffect(() => {
      ref.current.focus({ preventScroll: true });
    }, [focusKey]);
    return html`<h1 tabindex="-1" ref=${ref}>${children}</h1>`;
  }

  const Facts = ({ of }) =>
    html`<dl class="facts">
      ${of.filter(Boolean).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
    </dl>`;

  /** A share with its 95% interval, from 0 at the left to 1 at the right. */
  const Interval = ({ share, low, high }) => html`<svg class="interval" viewBox="0 0 208 14" role="img"
    aria-label=${`${number(share)}, between ${number(low)} and ${number(high)}`}>
    <path class="axis" d="M4 2v10M104 2v10M204 2v10M4 7h200" />
    <path class="range" d=${`M${4 + 200 * low} 7H${4 + 200 * high}`} />
    <circle cx=${4 + 200 * share} cy="7" r="4" />
  </svg>`;

  viewer.ui = { html, number, signed, whole, percent, plural, duration, kindName, known };
  Object.assign(viewer.ui, {
    useDocument,
    usePolling,
    useKeys,
    Link,
    episodeRoute,
    Score,
    ReplayBadges,
    Message,
    Waiting,
    Heading,
    Facts,
    Interval,
  });
}
