"use strict";
/* A screenshot with what the action did drawn on it. A point is a pixel of the screen, which the
 * image shows whole; a mark is centred on that pixel, hence the half in the viewBox. */
{
  const { html, Marked, Message } = viewer.ui;
  const { list } = viewer.actions;
  const { useEffect, useState } = preactHooks;

  /** Each line twice, dark on light, so that it is seen on any screenshot. */
  const Line = ({ unit, dashed, children }) => html`
    <g fill="none" stroke-linejoin="round" stroke-linecap="round" stroke-dasharray=${dashed ? `${unit} ${unit}` : null}>
      <g class="mark-halo" stroke-width=${unit * 0.62}>${children()}</g>
      <g class="mark-line" stroke-width=${unit * 0.28}>${children()}</g>
    </g>
  `;

  /** A word beside a mark, on the side where there is room. */
  function Label({ x, y, unit, width, height, text }) {
    const left = x > width * 0.75;
    return html`<text
      class="mark-label"
      x=${x + (left ? -1.9 : 1.9) * unit}
      y=${Math.min(Math.max(y - 1.2 * unit, 1.6 * unit), height - 0.6 * unit)}
      text-anchor=${left ? "end" : "start"}
      font-size=${1.9 * unit}
      stroke-width=${unit * 0.5}
    >${text}</text>`;
  }

  /** The head of an arrow from one point to another, as a path. */
  function arrowHead([x0, y0], [x1, y1], size) {
    const angle = Math.atan2(y1 - y0, x1 - x0);
    const side = (turn) => `${x1 - size * Math.cos(angle + turn)} ${y1 - size * Math.sin(angle + turn)}`;
    return `M ${side(0.5)} L ${x1} ${y1} L ${side(-0.5)}`;
  }

  const cross = (x, y, r) => html`<path d=${`M ${x - r} ${y} H ${x + r} M ${x} ${y - r} V ${y + r}`} />`;
  const diamond = (x, y, r) => html`<path d=${`M ${x} ${y - r} L ${x + r} ${y} L ${x} ${y + r} L ${x - r} ${y} Z`} />`;
  const square = (x, y, r) => html`<rect x=${x - r * 0.85} y=${y - r * 0.85} width=${r * 1.7} height=${r * 1.7} />`;
  const ring = (x, y, r) => html`<circle cx=${x} cy=${y} r=${r} />`;
  /** The button by its shape: left a ring, right a square, middle a diamond; one outline more for each further click. */
  const OUTLINES = { left: ring, right: square, middle: diamond };

  function ClickMark({ mark, unit, ...room }) {
    const [x, y] = mark.at;
    const outline = OUTLINES[mark.button] || ring;
    const radii = Array.from({ length: Math.min(mark.count || 1, 3) }, (_, i) => (1.3 + 0.8 * i) * unit);
    const name = `${mark.count > 1 ? `${mark.count}× ` : ""}${mark.button === "left" && !(mark.count > 1) ? "" : mark.button}`;
    return html`
      <${Line} unit=${unit} dashed=${mark.assumed}>${() => radii.map((r) => outline(x, y, r))}<//>
      <${Label} x=${x + (radii.length - 1) * 0.8 * unit} y=${y} unit=${unit} ...${room} text=${withNumber(mark, name)} />
    `;
  }

  function ArrowMark({ mark, from, to, name, unit, ...room }) {
    return html`
      <${Line} unit=${unit}>
        ${() => html`<path d=${`M ${from.join(" ")} L ${to.join(" ")}`} /><path d=${arrowHead(from, to, 1.8 * unit)} />`}
      <//>
      <${Line} unit=${unit} dashed=${mark.assumed}>${() => ring(from[0], from[1], 0.9 * unit)}<//>
      <${Label} x=${from[0]} y=${from[1]} unit=${unit} ...${room} text=${withNumber(mark, name)} />
    `;
  }

  const WHEEL = { up: [0, -1], down: [0, 1], left: [-1, 0], right: [1, 0] };

  function ScrollMark({ mark, unit, ...room }) {
    const [dx, dy] = WHEEL[mark.direction] || [0, 0];
    const to = [mark.at[0] + 6 * unit * dx, mark.at[1] + 6 * unit * dy];
    return html`<${ArrowMark} mark=${mark} from=${mark.at} to=${to} name=${`scroll ${mark.notches}`} unit=${unit} ...${room} />`;
  }

  function DragMark({ mark, unit, ...room }) {
    if (mark.at)
      return html`<${ArrowMark} mark=${mark} from=${mark.at} to=${mark.to} name="drag" unit=${unit} ...${room} />`;
    return html`
      <${Line} unit=${unit}>${() => ring(mark.to[0], mark.to[1], 1.3 * unit)}<//>
      <${Label} x=${mark.to[0]} y=${mark.to[1]} unit=${unit} ...${room} text=${withNumber(mark, "drag to")} />
    `;
  }

  function MoveMark({ mark, unit, ...room }) {
    const [x, y] = mark.at;
    return html`
      <${Line} unit=${unit}>${() => cross(x, y, 1.4 * unit)}<//>
      <${Label} x=${x} y=${y} unit=${unit} ...${room} text=${withNumber(mark, "move")} />
    `;
  }

  const withNumber = (mark, name) => [mark.number && `${mark.number}.`, name].filter(Boolean).join(" ");

  const MARKS = { click: ClickMark, drag: DragMark, move: MoveMark, scroll: ScrollMark };

  const ZOOM = 3;

  /** What lies under the pointer or, before it comes, under the first mark: enlarged, and without the mark upon it. */
  const Lens = ({ address, at, alt }) => html`<div class="lens">
    <img src=${address} alt=${`Enlarged: ${alt}`} style=${{ transform: `scale(${ZOOM}) translate(${-at[0] - 0.5}px, ${-at[1] - 0.5}px)` }} />
    <svg viewBox="-50 -50 100 100" aria-hidden="true"><${Line} unit=${6}>${() => html`<path d="M-50 0H-14M14 0H50M0 -50V-14M0 14V50" />`}<//></svg>
  </div>`;

  /**
   * One screenshot, or a notice in its place.
   * @param {string|null} src null where the recording has none
   * @param {Array} marks of `marksOfTurns`
   * @param {string} without what stands in its place
   * @param {number} marksAcross how many marks' units make up the width: fewer for a small picture
   * @param {boolean} lens whether a lens is below it
   */
  function Screenshot({ src, alt, marks = [], marksAcross = 72, lazy = false, lens = false, without = "screenshot not kept" }) {
    const [natural, setNatural] = useState(null);
    const [failed, setFailed] = useState(null);
    const [pointer, setPointer] = useState(null);
    useEffect(() => setFailed(null), [src]);
    const [address, ...screen] = (src && viewer.source.picture(src)) || [];
    if (!address || failed === src)
      return html`<div class="shot missing" role="img" aria-label=${`${alt} (${without})`}><span>${without}</span></div>`;
    const size = screen.length ? screen : natural;
    const [width, height] = size || [4, 3];
    const unit = width / marksAcross;
    const at = pointer || marks[0]?.at || marks[0]?.to;
    const point = ({ currentTarget, clientX, clientY }) => {
      const box = currentTarget.getBoundingClientRect();
      setPointer([((clientX - box.left) / box.width) * width, ((clientY - box.top) / box.height) * height]);
    };
    const pointed = lens && { onPointerMove: point, onPointerDown: point, onPointerLeave: () => setPointer(null) };
    return html`
      <div class="shot" style=${{ aspectRatio: `${width} / ${height}`, "--shape": width / height }} ...${pointed}>
        <img
          src=${address}
          alt=${alt}
          loading=${lazy ? "lazy" : "eager"}
          decoding=${lazy ? "async" : "sync"}
          onLoad=${({ target }) => setNatural([target.naturalWidth, target.naturalHeight])}
          onError=${() => setFailed(src)}
        />
        ${
          size &&
          html`<svg viewBox=${`-0.5 -0.5 ${width} ${height}`} aria-hidden="true">
          ${marks.map((mark) => html`<${MARKS[mark.kind]} mark=${mark} unit=${unit} width=${width} height=${height} />`)}
        </svg>`
        }
      </div>
      ${lens && size && at && html`<${Lens} address=${address} at=${at} alt=${alt} />`}
    `;
  }

  const NAMED = new Set(["Click", "Drag", "Move", "Scroll"]);

  /** The actions of a turn as a list under its screenshot. */
  function Actions({ turn, pattern }) {
    if (!turn) return html`<p class="actions muted">after the last action</p>`;
    if (turn.parse_error)
      return html`<${Message} kind="bad">The reply could not be parsed: <bdi>${turn.parse_error}</bdi><//>`;
    const actions = list(turn.actions);
    if (!actions.length) return html`<p class="actions muted">no action</p>`;
    return html`<ol class=${`actions${actions.length > 1 ? "" : " single"}`}>
      ${actions.map((action) => html`<li><${ActionText} action=${action} pattern=${pattern} /></li>`)}
    </ol>`;
  }

  function ActionText({ action, pattern }) {
    const [what, detail] = viewer.actions.words(action);
    if (action?.action === "Hotkey")
      return html`<b>${what}</b> ${list(action.keys).map((key, i) => html`${i > 0 && " + "}<kbd>${key}</kbd>`)}`;
    if (action?.action === "TypeText") return html`<b>${what}</b> <q class="typed"><${Marked} text=${detail} pattern=${pattern} /></q>`;
    return html`<b class=${NAMED.has(action?.action) ? "" : "ending"}>${what}</b> <bdi>${detail}</bdi>`;
  }

  // --- An episode's frames -----------------------------------------------------------------------------------------

  /**
   * What one steps through: a frame a turn, then screenshots that no turn acted on.
   * @returns {Array<{turn, number, src, marks, alt, context}>} `number` is the screenshot's, from 0; `src` is null
   *   where the file is not there, `context` where there is nothing to tell (`viewer.context`).
   */
  function framesOf(episode) {
    const turns = list(episode.turns);
    const marks = viewer.actions.marksOfTurns(turns);
    const contexts = viewer.context.contextsOf(episode);
    const names = list(episode.screenshots);
    const files = new Set(episode.folder_files);
    const src = (name) =>
      name && files.has(name) ? `shots/${viewer.source.encodePath(episode.id)}/${encodeURIComponent(name)}` : null;
    const shown = new Set(turns.map((turn) => turn?.screenshot));
    const frames = turns.map((turn, i) => {
      const number = turn?.screenshot;
      return { turn, number, src: src(names[number]), marks: marks[i], context: contexts[i] || null };
    });
    names.forEach(
      (name, i) => shown.has(i) || frames.push({ turn: null, number: i, src: src(name), marks: [], context: null }),
    );
    return frames.map((frame, i) => ({
      ...frame,
      alt: `Screenshot ${i + 1} of ${frames.length} of task ${episode.task_id}: ${viewer.actions.describeTurn(frame.turn)}`,
    }));
  }

  Object.assign(viewer.ui, { Screenshot, Actions, framesOf });
}
