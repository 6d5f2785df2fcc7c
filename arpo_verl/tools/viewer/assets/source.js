"use strict";
/*
 * Where documents come from: a server's JSON; in an exported folder the scripts below data/, each of which calls
 * ARPO_RUN(path, document), since a page opened from disk may load scripts, but not read files; in a report the page.
 */
{
  const { source: kind } = document.documentElement.dataset;
  const report = kind === "report" ? JSON.parse(document.getElementById("report").textContent) : null;
  const waiting = new Map();

  window.ARPO_RUN = (path, content) => waiting.get(path)?.(content);

  /** A path for a URL: folder names may hold any letter. */
  const encodePath = (path) => path.split("/").map(encodeURIComponent).join("/");

  function fromFile(path) {
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      const end = (settle, value) => {
        waiting.delete(path);
        script.remove();
        settle(value);
      };
      waiting.set(path, (content) => end(resolve, content));
      script.onerror = () => end(reject, new Error(`${path} is not in this export`));
      script.src = `data/${encodePath(path.replace(/^api\//, ""))}.js`;
      document.head.append(script);
    });
  }

  const fromReport = (path) =>
    Object.hasOwn(report.documents, path)
      ? Promise.resolve(report.documents[path])
      : Promise.reject(new Error(`${path} is not in this report`));

  /** A screenshot's address; of a report also the screen's width and height, or null where it is not in it. */
  const picture = (path) => (report ? (Object.hasOwn(report.pictures, path) && report.pictures[path]) || null : [path]);

  async function fromServer(path, query) {
    const response = await fetch(encodePath(path) + (query ? `?${new URLSearchParams(query)}` : ""), {
      cache: "no-cache",
    });
    if (response.ok) return response.json();
    const answer = await response.json().catch(() => ({}));
    throw new Error(
      typeof answer.detail === "string" ? answer.detail : `the server answered ${response.status} to ${path}`,
    );
  }

  const underway = new Map(); // two parts of a page that ask for one document ask once

  function get(path, query) {
    if (query) return fromServer(path, query);
    if (!underway.has(path)) {
      const ask = { server: fromServer, files: fromFile, report: fromReport }[kind];
      const request = ask(path).finally(() => underway.delete(path));
      underway.set(path, request);
    }
    return underway.get(path);
  }

  const SEARCH_MS = { first: 200, again: 500 };

  /**
   * Search one run after the other: `settle(path, answer)` is called again as long as a run's index grows, with {error}
   * where that failed. Returns what ends it.
   */
  function search(paths, q, settle) {
    let current = true;
    const rest = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
    const ask = async (path) => {
      const answer = await fromServer(path, { q }).catch((error) => ({ error }));
      if (current) settle(path, answer);
      return current && answer.indexed < answer.total;
    };
    const all = async () => {
      await rest(SEARCH_MS.first);
      for (const path of paths) while (current && (await ask(path))) await rest(SEARCH_MS.again);
    };
    all();
    return () => (current = false);
  }

  viewer.source = { get, search, encodePath, picture, kind, exported: kind !== "server" };
}
