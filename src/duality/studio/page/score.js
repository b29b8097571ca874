// Score: a text under several models, the surprisal of each token as its shade.
import { post } from "./requests.js";
import { about, labelled, nothingHere, number, numberOf, problem, redrawn } from "./controls.js";
import { el, fill, figure } from "./dom.js";

const EXAMPLE = "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a wife.";
const MOST = 10; // nats of the darkest shade

/** A text whose tokens are shaded by their surprisal. */
function shaded(found) {
  const looked = el("p", { class: "counter" }, "Point at a token for its nats.");
  const tokens = found.tokens.map((token) => {
    const words = `${figure(token.nats)} ± ${figure(token.stderr)} nats`;
    const node = el("span", { class: "token scored", tabindex: "0", title: words, "aria-label": `${token.text}: ${words}` }, token.text);
    node.style.setProperty("--share", String(Math.min(1, Math.max(0, token.nats) / MOST)));
    for (const name of ["pointerover", "focus"]) node.addEventListener(name, () => (looked.textContent = `“${token.text}” ${words}`));
    return node;
  });
  return [el("div", { class: "tokens" }, tokens), looked];
}

const KINDS = { bound: "an upper bound", exact: "exact", "pseudo-likelihood": "a pseudo-likelihood: not comparable with the others" };

function result(run, found) {
  return el("section", { class: "pane", "aria-label": run }, el("h2", {}, run),
    el("p", { class: "counter" }, KINDS[found.kind] ?? found.kind), shaded(found),
    el("dl", { class: "facts" },
      [["nats", found.nats], ["nats per token", found.nats / found.tokens.length], ["bits per character", found.bits_per_character], ["tokens", found.tokens.length]].map(([name, value]) =>
        el("div", {}, el("dt", {}, name), el("dd", {}, figure(value))))));
}

export class ScoreView {
  constructor(studio) {
    const runs = studio.writers();
    this.studio = studio;
    if (!runs.length) {
      this.node = nothingHere();
      this.empty = true;
      return;
    }
    this.text = el("textarea", { rows: "4" }, EXAMPLE);
    this.draws = number({ min: "1", max: "256", step: "1", value: "16" });
    this.models = el("fieldset", { class: "models many" });
    this.#list(new Set(runs.slice(0, 4).map((run) => run.id)));
    this.problem = problem();
    this.panes = el("div", { class: "panes wide" });
    this.node = el("div", { class: "score" },
      el("form", { onsubmit: (event) => { event.preventDefault(); this.score(); } },
        labelled("Text", this.text), this.models,
        el("div", { class: "row" }, labelled("Draws", this.draws, "of time and noise, for a bound"), el("button", { type: "submit", class: "primary" }, "Score"))),
      this.problem.node, this.panes,
      el("p", { class: "legend scale" }, "surprisal ", el("span", { class: "gradient" }), ` 0 to ${MOST} nats and more`));
  }

  #list(chosen) {
    fill(this.models, el("legend", {}, "Models"), this.studio.writers().map((run) => el("label", {},
      el("input", { type: "checkbox", value: run.id, checked: chosen.has(run.id) }), el("span", {}, el("strong", {}, run.id), el("small", {}, about(run))))));
  }

  /** The models as they are now. */
  renew() {
    const chosen = new Set([...this.models.querySelectorAll("input:checked")].map((input) => input.value));
    redrawn(this.models, () => this.#list(chosen));
  }

  /** Ask all chosen models; each is shown when it has answered, in the order of the list. */
  async score() {
    this.problem.say(null);
    const chosen = [...this.models.querySelectorAll("input:checked")].map((input) => input.value);
    if (!chosen.length) return this.problem.say("Choose a model.");
    const places = chosen.map((run) => el("section", { class: "pane" }, el("h2", {}, run), el("p", { class: "hint" }, "reading …")));
    fill(this.panes, places);
    this.panes.setAttribute("aria-busy", "true");
    await Promise.all(chosen.map(async (run, number) => {
      try {
        const found = await post("/api/likelihood", { run, text: this.text.value, draws: numberOf(this.draws) ?? 16 });
        places[number].replaceWith(result(run, found));
      } catch (error) {
        fill(places[number], el("h2", {}, run), el("p", { class: "error", role: "alert" }, error.message));
      }
    }));
    this.panes.removeAttribute("aria-busy");
  }
}
