"use strict";
/* The frame around the pages: what is read of the run, which page is shown, help and theme. */
{
  const { html, plural, useKeys, usePolling, Link, Waiting, Message } = viewer.ui;
  const { useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState } = preactHooks;

  const POLL_MS = 3000;
  const { place } = document.documentElement.dataset;
  /** The name in the address -> what it is called and what draws it; the last two belong to the episodes. */
  const PAGES = {
    overview: ["Overview", viewer.OverviewPage],
    episodes: ["Episodes", viewer.EpisodesPage],
    heatmap: ["Tasks", viewer.HeatmapPage],
    frontier: ["Frontier", viewer.FrontierPage],
    metrics: ["Metrics", viewer.MetricsPage],
    live: ["Live", viewer.LivePage],
    evaluation: ["Evaluation", viewer.EvaluationPage],
    episode: ["Episode", viewer.EpisodePage],
    compare: ["Compare", viewer.ComparePage],
  };

  const HELP = {
    Runs: { "j, k or ↓, ↑": "next, previous run" },
    Episodes: {
      "j, k or ↓, ↑": "next, previous episode",
      Enter: "open it",
      "n, p": "next, previous page of the list",
      "/": "search",
    },
    Episode: {
      "→, ← or j, k": "next, previous turn",
      Space: "play, pause",
      c: "compare with another",
      "Home, End": "first, last turn",
      "↓, ↑ or n, p": "next, previous episode of the filter",
      Esc: "back to the list",
    },
    Compare: {
      "→, ← or j, k": "next, previous turn",
      d: "to the first difference",
      l: "move together or each alone",
      s: "the other side, when alone",
      Esc: "back to the episode",
    },
    Tasks: { arrows: "move between cells", Enter: "open the cell's episodes" },
    Everywhere: { "?": "this help", t: "light, dark or as the system" },
  };

  function useRoute() {
    const [route, setRoute] = useState(viewer.route.current());
    useLayoutEffect(() => {
      const changed = () => setRoute(viewer.route.current());
      window.addEventListener("hashchange", changed);
      return () => window.removeEventListener("hashchange", changed);
    }, []);
    return route;
  }

  /** The run and its episodes: read whole once, then what has changed since. */
  function useRun() {
    const [state, setState] = useState({ run: null, rows: [], byId: new Map(), error: null, lost: false });
    const cursor = useRef(null);
    const byId = useRef(new Map());
    const take = (document, run) => {
      cursor.current = document.cursor;
      if (document.complete !== false) byId.current = new Map(); // these are all: what else was here is gone
      viewer.episodes.merge(byId.current, document);
      setState({ run, rows: [...byId.current.values()], byId: byId.current, error: null, lost: false });
    };
    useEffect(() => {
      Promise.all([viewer.source.get("api/run"), viewer.source.get("api/episodes")]).then(
        ([run, episodes]) => take(episodes, run),
        (error) => setState((before) => ({ ...before, error })),
      );
    }, []);
    const poll = async () => {
      try {
        const episodes = await viewer.source.get("api/episodes", { cursor: cursor.current });
        const run = await viewer.source.get("api/run");
        if (episodes.rows.length || episodes.complete || run.live !== state.run.live) take(episodes, run);
        else if (state.lost) setState((before) => ({ ...before, lost: false }));
      } catch {
        setState((before) => ({ ...before, lost: true }));
      }
    };
    usePolling(poll, POLL_MS, Boolean(state.run) && !viewer.source.exported);
    return state;
  }

  /** The rows that pass the filters, in order; the list and an episode's next and previous share it. */
  viewer.useSelected = (rows, filters, tasks, search) =>
    useMemo(
      () => viewer.episodes.select(rows, filters, tasks, search.found),
      [rows, JSON.stringify(filters), tasks, search.found],
    );

  /** What the server finds in all that the agent wrote: {found, indexed, total}. `found` is null until it answers. */
  viewer.useSearch = (query) => {
    const [state, setState] = useState({ found: null });
    useEffect(() => {
      if (!query || viewer.source.exported) return setState({ found: null });
      return viewer.source.search(["api/search"], query, (_, answer) =>
        setState({ ...answer, found: answer.ids ? new Set(answer.ids) : null }),
      );
    }, [query]);
    return state;
  };

  function App() {
    const { run, rows, byId, error, lost } = useRun();
    const route = useRoute();
    const tasks = useMemo(() => new Map((run?.tasks || []).map((task) => [task.task_id, task.instruction])), [run]);
    const [title, Page] = PAGES[viewer.source.kind === "report" ? "overview" : route.page] || [];
    useScrollPlaces(run && route.page);
    if (route.page === "episode") viewer.lastOpened = route.id;
    useEffect(() => {
      const subject = route.page === "episode" || route.page === "compare" ? byId.get(route.id)?.task_id : null;
      document.title = [subject, title, run?.name].filter(Boolean).join(" – ") || "ARPO run";
    }, [route, run]);
    return html`<${Frame}
      title=${run?.name || "ARPO run"}
      facts=${run && html`${run.live && html`<span class="badge good">live</span> `}<span class="muted">${plural(run.num_episodes, "episode")}</span>`}
      tabs=${html`<${Tabs} run=${run} page=${route.page} />`}
    >
      ${lost && html`<${Message} kind="bad">The server does not answer. What is shown was read before.<//>`}
      ${!run && html`<${Waiting} error=${error} what="the run" />`}
      ${run && !Page && html`<${NoPage} name=${route.page} />`}
      ${
        run &&
        Page &&
        html`<${Guard} key=${`${route.page} ${route.id}`}>
          <${Page} ...${{ run, rows, byId, tasks, id: route.id, query: route.query }} />
        <//>`
      }
    <//>`;
  }

  /** The page of a folder of runs. */
  function RunsApp() {
    const route = useRoute();
    return html`<${Frame} title="ARPO runs"><${Guard}><${viewer.RunsPage} query=${route.query} /><//><//>`;
  }

  /** What is around every page. */
  function Frame({ title, facts, tabs, children }) {
    const help = useRef(null);
    const showHelp = () => help.current.showModal();
    useKeys({ "?": showHelp, t: nextTheme });
    return html`
      <a class="skip" href="#main" onClick=${skipToMain}>Skip to the page</a>
      <header>
        ${place === "run" && html`<a href="../../">All runs</a>`}
        <p class="run"><bdi>${title}</bdi> ${facts}</p>
        ${tabs}
        <span class="buttons">
          <${ThemeButton} />
          <button type="button" class="quiet" onClick=${showHelp} aria-label="Keyboard help" title="Keyboard help (?)">?</button>
        </span>
      </header>
      <main id="main" tabindex="-1">${children}</main>
      <${Help} dialog=${help} />
    `;
  }

  const NoPage = ({ name }) => html`<${Message} kind="bad">
    There is no page “${name}”. <${Link} to=${{ page: "overview" }}>Go to the overview<//>
  <//>`;

  /** A record that a page cannot show leaves the other pages as they are. */
  function Guard({ children }) {
    const [error] = useErrorBoundary((fault) => console.warn(fault));
    return error ? html`<${Message} kind="bad">This could not be shown: ${error.message}<//>` : children;
  }

  const KEPT_PLACES = ["overview", "episodes", "heatmap"];

  /** A page opens at its top, a list where it was left. */
  function useScrollPlaces(page) {
    const places = useRef({});
    useLayoutEffect(() => {
      scrollTo(0, (KEPT_PLACES.includes(page) && places.current[page]) || 0);
      const note = () => (places.current[page] = scrollY);
      window.addEventListener("scroll", note);
      return () => window.removeEventListener("scroll", note);
    }, [page]);
  }

  /** A link to #main would be taken for a page's address. */
  function skipToMain(event) {
    event.preventDefault();
    document.getElementById("main").focus();
  }

  function Tabs({ run, page }) {
    const missing = { episode: true, compare: true, live: viewer.source.exported, evaluation: !run?.evaluation, frontier: !run?.frontier };
    const current = page === "episode" || page === "compare" ? "episodes" : page;
    if (viewer.source.kind === "report") return null;
    return html`<nav aria-label="Pages">
      ${Object.entries(PAGES).filter(([name]) => !missing[name]).map(
        ([name, [title]]) =>
          html`<${Link} to=${{ page: name }} aria-current=${name === current ? "page" : null}>${title}<//>`,
      )}
    </nav>`;
  }

  const THEMES = { auto: "as the system", light: "light", dark: "dark" };

  function nextTheme() {
    const names = Object.keys(THEMES);
    viewer.setTheme(names[(names.indexOf(viewer.theme()) + 1) % names.length]);
  }

  function ThemeButton() {
    const [theme, setTheme] = useState(viewer.theme());
    useEffect(() => {
      const changed = () => setTheme(viewer.theme());
      window.addEventListener("themechange", changed);
      return () => window.removeEventListener("themechange", changed);
    }, []);
    const title = "Light, dark or as the system (t)";
    return html`<button type="button" class="quiet" onClick=${nextTheme} aria-label=${`Theme: ${THEMES[theme]}`} title=${title}>
      <span aria-hidden="true">${{ auto: "◐", light: "☀", dark: "☾" }[theme]}</span>
    </button>`;
  }

  const Help = ({ dialog }) => html`<dialog ref=${dialog} aria-labelledby="help-title">
    <h2 id="help-title">Keys</h2>
    ${Object.entries(HELP).map(
      ([page, keys]) => html`<h3>${page}</h3>
        <dl class="keys">${Object.entries(keys).map(([key, what]) => html`<div><dt>${key}</dt><dd>${what}</dd></div>`)}</dl>`,
    )}
    <h3>Marks on a screenshot</h3>
    <p>
      A ring is a left click, a square a right click, a diamond a middle click; a second outline is a double click. An
      arrow is a drag or a scroll. Dashed: the action named no place, so it happened where the pointer was left.
    </p>
    <form method="dialog"><button>Close</button></form>
  </dialog>`;

  // The cookie has the token from here on; in the address it would be copied along with a link.
  if (new URLSearchParams(location.search).has("token"))
    history.replaceState(null, "", location.pathname + location.hash);
  preact.render(html`<${place === "runs" ? RunsApp : App} />`, document.getElementById("app"));
}
