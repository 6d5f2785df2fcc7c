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
  const share = (value) => (known(value) ? `${(100 * value).toFixed(1)}%` : "–");
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

  /**
   * A document of the source: {data, error}; both null while it loads, where not the one before is kept. `path` null asks
   * for nothing.
   */
  function useDocument(path, query, keeps = false) {
    const [state, setState] = useState({});
    const asked = JSON.stringify([path, query]);
    useEffect(() => {
      let current = true;
      const settle = (found) => current && setState({ asked, ...found });
      if (path) viewer.source.get(path, query).then((data) => settle({ data }), (error) => settle({ error }));
      return () => (current = false);
    }, [asked]);
    const fresh = state.asked === asked;
    return { data: ((fresh || keeps) && state.data) || null, error: (fresh && state.error) || null };
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

  /** A document that is asked for again and again, in an export once; where that fails, what was read before stays. */
  function usePolled(path, period_ms) {
    const [state, setState] = useState({ data: null, error: null });
    const poll = async () =>
      viewer.source.get(path).then((data) => setState({ data, error: null }), (error) => setState((before) => ({ ...before, error })));
    usePolling(poll, viewer.source.exported ? 1e9 : period_ms, Boolean(path));
    return state;
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

  /** The words of a search as a pattern of what begins so; null where there are none. */
  function patternOf(query) {
    const words = String(query || "").match(/[\p{L}\p{N}_]+/gu) || [];
    return words.length ? new RegExp(`(?<![\\p{L}\\p{N}_])(?:${words.slice(0, 12).join("|")})[\\p{L}\\p{N}_]*`, "giu") : null;
  }

  /** A text with what matches marked. */
  function Marked({ text, pattern }) {
    const shown = String(text ?? "");
    if (!pattern) return html`<bdi>${shown}</bdi>`;
    const parts = [];
    let end = 0;
    for (const match of shown.matchAll(pattern)) {
      parts.push(shown.slice(end, match.index), html`<mark>${match[0]}</mark>`);
      end = match.index + match[0].length;
    }
    return html`<bdi>${parts}${shown.slice(end)}</bdi>`;
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

  /** The controls above a list. */
  const Filters = ({ label, children }) =>
    html`<form class="filters" role="search" aria-label=${label} onSubmit=${(event) => event.preventDefault()}>${children}</form>`;

  const Search = ({ label = "Search", input, value, onInput, placeholder }) => html`<label class="grow">${label}
    <input type="search" ref=${input} value=${value || ""} onInput=${(event) => onInput(event.target.value)} placeholder=${placeholder} />
  </label>`;

  /** A choice among `options`, pairs of a value and its title; a value from the address may be none of them. */
  const Select = ({ label, value, options, onChange, kind }) => html`<label class=${kind}>${label}
    <select value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${options.map(([name, title = name]) => html`<option value=${name}>${title}</option>`)}
      ${!options.some(([name]) => name === value) && html`<option value=${value}>${value}</option>`}
    </select>
  </label>`;

  /** From an object of orders, name -> [title, comparison], what `Select` offers. */
  const titles = (orders) => Object.entries(orders).map(([name, [title]]) => [name, title]);

  /** The focus to the next of a table's links, or the one before. */
  function moveFocus(table, by) {
    const links = [...table.querySelectorAll("tbody a")];
    links[Math.min(Math.max(links.indexOf(document.activeElement) + by, 0), links.length - 1)]?.focus();
  }

  viewer.ui = { html, number, signed, whole, share, percent, plural, duration, kindName, known };
  Object.assign(viewer.ui, { useDocument, usePolling, usePolled, useKeys, Link, episodeRoute, Score, ReplayBadges, Message });
  Object.assign(viewer.ui, { Waiting, Heading, Facts, Interval, Marked, patternOf, Filters, Search, Select, titles, moveFocus });
}
