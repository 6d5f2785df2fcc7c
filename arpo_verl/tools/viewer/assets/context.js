"use strict";
/* What of its history the model saw when it wrote a reply, and in which of the episode's rows of tokens. Pure. */
{
  const { list } = viewer.actions;
  const isCount = (value) => Number.isInteger(value) && value >= 0;

  /**
   * Of each turn {first, newest, row, numRows, begins}: it saw the screenshots from `first` to `newest`, and wrote its
   * reply in `row`, which `begins` with it. Numbers are from 0; `row` is null where no rows were recorded.
   * None where every reply saw everything in one row, as all did when runs did not record this.
   */
  function contextsOf(episode) {
    const ends = endsOf(list(episode.rows));
    let row = 0;
    let previous = null;
    const contexts = list(episode.turns).map((turn) => {
      const newest = turn?.screenshot;
      if (!isCount(newest)) return null;
      const first = isCount(turn.first_screenshot) ? Math.min(turn.first_screenshot, newest) : 0;
      while (row < ends.length && newest >= ends[row]) row += 1;
      const own = row < ends.length && newest >= (ends[row - 1] ?? 0) ? row : null;
      const begins = own !== null && own !== previous;
      previous = own;
      return { first, newest, row: own, numRows: ends.length, begins };
    });
    return ends.length > 1 || contexts.some((context) => context?.first > 0) ? contexts : [];
  }

  /** Behind the newest screenshot of each row: a row has the replies to those that the row before lacks. */
  function endsOf(rows) {
    const ends = rows.map((row) => row?.first_screenshot + row?.num_screenshots);
    return ends.every((end, i) => isCount(end) && end > (ends[i - 1] ?? 0)) ? ends : [];
  }

  /** Of a screenshot, for the reply of a context: "seen", "left" (it had left the context), or "" (it came later). */
  function placeOf(context, number) {
    if (!context || !isCount(number) || number > context.newest) return "";
    return number < context.first ? "left" : "seen";
  }

  const span = (one, many, first, last) =>
    first === last ? `${one} ${last + 1}` : `${many} ${first + 1}–${last + 1}`;

  /** In the page's numbers, from 1: "The model saw screenshots 6–10 of 10, and replies 1–5 as text; row 3 of 7." */
  function describe({ first, newest, row, numRows }) {
    const seen = span("screenshot", "screenshots", first, newest);
    const earlier = first > 0 ? `, and ${span("reply", "replies", 0, first - 1)} as text` : "";
    const inRow = row === null ? "" : `; row ${row + 1} of ${numRows}`;
    return `The model saw ${seen} of ${newest + 1}${earlier}${inRow}.`;
  }

  viewer.context = { contextsOf, placeOf, describe };
}
