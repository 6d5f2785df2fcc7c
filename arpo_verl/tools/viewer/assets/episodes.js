"use strict";
/* The run's episodes as a table that grows: merging what is new, filtering, sorting, counting. Pure. */
{
  /** From which score an episode counts as a success: the default of `replay.success_threshold`. */
  const SUCCESS_THRESHOLD = 0.5;

  const FILTERS = ["task", "step", "success", "replay", "stop", "action", "program", "fault", "kind", "q", "sort"];

  const isSuccess = (row) => typeof row.success === "number" && row.success >= SUCCESS_THRESHOLD;
  const isFailure = (row) => typeof row.success === "number" && row.success < SUCCESS_THRESHOLD;
  const tookPlaces = (row) => (row.replayed_into || []).length;

  /** Add the rows of an `api/episodes` document to a map by id; the same id again is the newer state. */
  function merge(byId, { columns, rows }) {
    for (const values of rows) {
      const row = {};
      columns.forEach((column, i) => (row[column] = values[i]));
      byId.set(row.id, row);
    }
    return byId;
  }

  /** "3-10", "3", "3-" or "-10" -> [3, 10]; open ends are infinite; null for anything else. */
  function parseRange(text) {
    const match = /^(\d*)(-?)(\d*)$/.exec(text.trim());
    if (!match || text.trim() === "" || text.trim() === "-") return null;
    const [, first, dash, last] = match;
    const low = first === "" ? -Infinity : Number(first);
    return [low, dash === "" ? low : last === "" ? Infinity : Number(last)];
  }

  /** What of an episode is no policy's success or failure, or no proper reply. */
  const FAULTS = {
    format: (row) => row.format_error,
    unscored: (row) => typeof row.success !== "number",
  };

  const TESTS = {
    action: (wanted) => (row) => (row.actions || []).includes(wanted),
    program: (wanted) => (row) => (row.programs || []).includes(wanted),
    fault: (wanted) => (Object.hasOwn(FAULTS, wanted) ? FAULTS[wanted] : () => true),
    task: (wanted) => (row) => row.task_id === wanted,
    step: (wanted) => {
      const range = parseRange(wanted);
      return range ? (row) => row.step >= range[0] && row.step <= range[1] : () => true;
    },
    success: (wanted) => (wanted === "yes" ? isSuccess : wanted === "no" ? isFailure : (row) => row.success === null),
    replay: (wanted) =>
      ({
        took: (row) => tookPlaces(row) > 0,
        replaced: (row) => row.replaced,
        none: (row) => !row.replaced && !tookPlaces(row),
      })[wanted] || (() => true),
    stop: (wanted) => (row) => row.stop_reason === wanted,
    kind: (wanted) => (row) => (wanted === "validation" ? row.validation === true : row.validation !== true),
    q: (wanted, tasks) => {
      const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
      const found = new Map(); // a run has few tasks and many episodes
      const has = (task) => {
        const text = `${task}\n${tasks.get(task) || ""}`.toLowerCase();
        return words.every((word) => text.includes(word));
      };
      return (row) => {
        if (!found.has(row.task_id)) found.set(row.task_id, has(row.task_id));
        return found.get(row.task_id);
      };
    },
  };

  /**
   * The rows that pass every filter, in order.
   * @param {Array} rows all of them
   * @param {Object} query the filters as they stand in the address
   * @param {Map} tasks task_id -> instruction
   * @param {Set|null} found ids of the episodes in which the server found the words; without it, tasks are searched
   */
  function select(rows, query, tasks, found = null) {
    const tests = Object.entries(query)
      .filter(([name, value]) => TESTS[name] && value && !(name === "q" && found))
      .map(([name, value]) => TESTS[name](value, tasks));
    return sort(
      rows.filter((row) => (!found || !query.q || found.has(row.id)) && tests.every((test) => test(row))),
      query.sort || "-step",
    );
  }

  const SORT_VALUES = {
    replay: (row) => (row.replaced ? 1 : 0) + 2 * tookPlaces(row),
    kind: (row) => (row.validation ? 1 : 0),
  };

  /** Sort by a column, "-column" for descending; what has no value comes last, equal rows by step and id. */
  function sort(rows, by) {
    const sign = by.startsWith("-") ? -1 : 1;
    const column = by.replace(/^-/, "");
    const value = SORT_VALUES[column] || ((row) => row[column]);
    const empty = (x) => x === null || x === undefined;
    const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    return rows.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (empty(x) || empty(y)) return empty(x) - empty(y) || order(a.id, b.id);
      return sign * order(x, y) || order(a.step, b.step) * sign || order(a.id, b.id);
    });
  }

  /** Value -> how many rows have it. */
  function count(rows, value) {
    const counts = new Map();
    for (const row of rows) counts.set(value(row), (counts.get(value(row)) || 0) + 1);
    return counts;
  }

  /** Mean success of the rows that have one, or null. */
  function meanSuccess(rows) {
    const known = rows.filter((row) => typeof row.success === "number");
    return known.length ? known.reduce((sum, row) => sum + row.success, 0) / known.length : null;
  }

  /** The filters of an address, without what belongs to one page. */
  const filtersOf = (query) =>
    Object.fromEntries(FILTERS.filter((name) => query[name]).map((name) => [name, query[name]]));

  viewer.episodes = {
    merge,
    select,
    sort,
    count,
    meanSuccess,
    parseRange,
    filtersOf,
    FAULTS,
    isSuccess,
    isFailure,
    tookPlaces,
  };
}
