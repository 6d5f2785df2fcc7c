"use strict";
/* A reply: its thought, its text with the words searched for, or its tokens coloured by how likely each was. */
{
  const { html, known, number, signed, Marked } = viewer.ui;
  const { useState } = preactHooks;

  // --- Tokens ------------------------------------------------------------------------------------------------------

  const percent = (p) => (p >= 0.995 || p < 0.0005 ? `${number(100 * p, 2)}%` : `${number(100 * p, 1)}%`);

  /** What colours a token: its value, how odd that is, from which oddness on the four shades begin, and in words. */
  const WAYS = {
    probability: { value: ({ p }) => p, hue: () => "", odd: (p) => -p, limits: [-0.9, -0.5, -0.2, -0.05], extremes: "Least likely", show: percent },
    ratio: { value: ({ ratio }) => ratio, hue: (ratio) => (ratio < 1 ? "less " : ""), odd: (ratio) => Math.abs(Math.log(ratio)), limits: [0.05, 0.2, 0.5, 1], extremes: "Furthest from 1", show: number },
  };

  function shadeOf({ value, hue, odd, limits }, token) {
    const shade = known(value(token)) ? limits.filter((limit) => odd(value(token)) > limit).length : 0;
    return `${hue(value(token))}shade-${shade}`;
  }

  /** Of each token of a reply its text, its probability and its ratio, in the training of this place or the newest. */
  function tokensOf({ texts, log_probs, trained }, place) {
    return texts.map((text, i) => {
      const [old, now] = [log_probs[i], trained.at(place ?? -1)?.log_probs[i]];
      return { text, p: known(old) ? Math.exp(old) : null, ratio: known(old) && known(now) ? Math.exp(now - old) : null, old, now };
    });
  }

  const quoted = (text) => `“${text.replace(/\n/g, "⏎")}”`;
  function factsOf({ text, p, ratio, old, now }) {
    const parts = [known(p) && `probability ${percent(p)} (log-prob ${number(old)})`];
    parts.push(known(ratio) && `when trained ${number(now)}, ratio ${number(ratio)}`);
    return `${quoted(text)}: ${parts.filter(Boolean).join("; ") || "not recorded"}`;
  }

  function Tokens({ tokens, by }) {
    const [picked, pick] = useState(null);
    const way = WAYS[by];
    const oddness = (token) => way.odd(way.value(token));
    const extremes = tokens.filter((token) => known(way.value(token))).sort((a, b) => oddness(b) - oddness(a)).slice(0, 3);
    const point = (event) => pick(event.target.dataset.place ?? null);
    return html`
      <pre tabindex="0" aria-label="Tokens of the reply" class="tokens" onPointerOver=${point} onClick=${point}>
        ${tokens.map((token, i) => html`<span data-place=${i} class=${shadeOf(way, token)}>${token.text}</span>`)}
      </pre>
      <p class="muted token-facts"><bdi>
        ${tokens[picked] ? factsOf(tokens[picked]) : `${way.extremes}: ${extremes.map((token) => `${quoted(token.text)} ${way.show(way.value(token))}`).join(", ")}`}
      </bdi></p>
    `;
  }

  /**
   * A reply.
   * @param {Object} tokens its entry of `api/tokens`, where there is one
   * @param {RegExp} pattern the words searched for
   */
  function Reply({ turn, tokens, advantage, pattern }) {
    const [wanted, want] = useState(null);
    const ways = [["text", "nothing"]];
    if (tokens?.texts && tokens.log_probs) {
      ways.push(["probability", "probability"]);
      tokens.trained.forEach(({ step }, i) => ways.push([`ratio ${i}`, `ratio, training step ${step}`]));
    }
    const first = pattern || ways.length === 1 ? "text" : "probability";
    const by = ways.some(([name]) => name === wanted) ? wanted : first;
    const [kind, place] = by.split(" ");
    const said = [tokens && `${tokens.num_tokens} tokens`, known(advantage) && `advantage ${signed(advantage)}`].filter(Boolean);
    return html`
      <h2>Thought</h2>
      ${turn.thought ? html`<p class="thought"><${Marked} text=${turn.thought} pattern=${pattern} /></p>` : html`<p class="muted">none</p>`}
      <div class="reply-head">
        <h2>Reply as written</h2>
        <span class="muted">${said.join(", ")}</span>
        ${
          ways.length > 1 &&
          html`<label class="muted">Colour by <select value=${by} onChange=${(event) => want(event.target.value)}>
          ${ways.map(([name, title]) => html`<option value=${name}>${title}</option>`)}
        </select></label>`
        }
      </div>
      ${
        kind === "text"
          ? html`<pre tabindex="0" aria-label="Reply as written"><${Marked} text=${turn.text} pattern=${pattern} /></pre>`
          : html`<${Tokens} tokens=${tokensOf(tokens, place)} by=${kind} />`
      }
      ${
        turn.request &&
        html`<details><summary>What the harness asked</summary><pre><bdi>${JSON.stringify(turn.request, null, 1)}</bdi></pre></details>`
      }
    `;
  }

  /** What the model saw, where that was not everything. */
  const Seen = ({ context }) => context && html`<p class="muted context">${viewer.context.describe(context)}</p>`;

  Object.assign(viewer.ui, { Reply, Seen });
}
