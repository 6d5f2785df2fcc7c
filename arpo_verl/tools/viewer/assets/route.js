"use strict";
/* The page's address: #/page/path?query. Whatever can be seen can be linked. */
{
  const decode = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };

  /** "#/episode/step_000001/a__b_0?turn=2" -> {page: "episode", id: "step_000001/a__b_0", query: {turn: "2"}} */
  function parse(hash) {
    const [path, query = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
    const [page, ...rest] = path.split("/").map(decode);
    return { page: page || "overview", id: rest.join("/"), query: Object.fromEntries(new URLSearchParams(query)) };
  }

  /** The inverse of `parse`; empty values are left out. */
  function format({ page, id = "", query = {} }) {
    const kept = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
    const path = id ? `${page}/${viewer.source.encodePath(id)}` : page;
    return `#/${path}${kept.length ? `?${new URLSearchParams(kept)}` : ""}`;
  }

  /** Go there; `replace` leaves no entry to go back to: for what changes with every key. */
  function go(route, { replace = false } = {}) {
    const hash = format(route);
    if (hash === location.hash) return;
    if (!replace) {
      location.hash = hash;
      return;
    }
    history.replaceState(null, "", hash);
    window.dispatchEvent(new Event("hashchange"));
  }

  viewer.route = { parse, format, go, current: () => parse(location.hash) };
}
