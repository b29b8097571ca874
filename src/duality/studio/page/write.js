// Write: a model writes, step by step; its steps are played; tokens are pinned and the rest is written again.
import { about, choice, chosen, command, labelled, nothingHere, number, numberOf, options, problem, redrawn, usualSteps } from "./controls.js";
import { el, fill, figure, still } from "./dom.js";
import { Inspector, timeline, TokenText, Transport } from "./player.js";
import { emptyPane, record } from "./recording.js";
import { saveHtml, saveTrace } from "./save.js";

/** Where the settings of a request come from: one control for each field of the interface. */
class Settings {
  constructor(studio) {
    this.prompt = el("textarea", { rows: "2", placeholder: "The text begins with …", spellcheck: "false" });
    this.suffix = el("textarea", { rows: "1", placeholder: "… and ends with", spellcheck: "false" });
    this.steps = number({ min: "1", max: "4096", step: "1" });
    this.seed = number({ min: "0", step: "1", value: "0" });
    this.temperature = number({ min: "0.01", step: "0.05" });
    this.top_p = number({ min: "0.01", max: "1", step: "0.01", placeholder: "1" });
    this.length = number({ min: "1", max: "2048", step: "1" });
    this.tail = choice(studio.choices.tail ?? [], "the model's own");
    this.sampler = choice(studio.choices.sampler ?? [], "the model's own");
    this.eta = number({ min: "0", max: "1", step: "0.01", placeholder: "own" });
    this.grid = choice(studio.choices.grid ?? [], "own");
    this.label = choice([], "none");
    this.guidance = number({ min: "0", step: "0.5", placeholder: "1" });
    const other = el("button", { type: "button", class: "quiet", title: "Another seed", "aria-label": "Another seed", onclick: () => (this.seed.value = String(Math.floor(Math.random() * 100_000))) }, "⚄");
    this.withLabels = el("div", { class: "pair" }, labelled("Class", this.label), labelled("Guidance", this.guidance));
    this.node = el("details", { class: "settings", open: !window.matchMedia("(max-width: 60rem)").matches },
      el("summary", {}, "Settings"),
      el("div", { class: "pair" }, labelled("Steps", this.steps), el("div", { class: "with-button" }, labelled("Seed", this.seed), other)),
      el("div", { class: "pair" }, labelled("Temperature", this.temperature), labelled("Top-p", this.top_p)),
      labelled("Tail", this.tail, "how the last step chooses the tokens"),
      this.withLabels,
      labelled("Sampler", this.sampler),
      el("div", { class: "pair" }, labelled("Eta", this.eta, "for psi samplers"), labelled("Grid", this.grid)),
      labelled("Length", this.length, "tokens"));
  }

  /** What this run does where nothing is chosen, and what it cannot do. */
  fit(run) {
    this.steps.placeholder = String(usualSteps(run));
    this.temperature.placeholder = figure(run.generation.temperature);
    this.length.placeholder = String(run.length);
    this.tail.options[0].textContent = `the model's own (${run.generation.tail})`;
    options(this.label, run.labels, "none");
    this.withLabels.hidden = run.labels.length === 0;
    this.suffix.disabled = !run.infills;
    if (!run.infills) this.suffix.value = "";
    this.suffix.title = run.infills ? "" : `${run.method} writes what follows a text, and cannot fill in`;
  }

  /** The fields of a request. */
  body(run) {
    const numbers = { steps: this.steps, seed: this.seed, temperature: this.temperature, top_p: this.top_p, eta: this.eta, length: this.length };
    const found = { run: run.id, prompt: this.prompt.value, suffix: this.suffix.value, tail: chosen(this.tail), sampler: chosen(this.sampler), grid: chosen(this.grid) };
    for (const [name, input] of Object.entries(numbers)) found[name] = numberOf(input);
    if (run.labels.length) Object.assign(found, { label: chosen(this.label), guidance: numberOf(this.guidance) });
    return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== null && value !== ""));
  }
}

/** The runs as a list to choose from. */
function listModels(list, runs, chosenId, onchoose) {
  return fill(list, el("legend", {}, "Model"),
    runs.map((run) => el("label", {},
      el("input", { type: "radio", name: "model", value: run.id, checked: run.id === chosenId, onchange: () => onchoose(run) }),
      el("span", {}, el("strong", {}, run.id), el("small", {}, about(run))))));
}

/** The most useful first: those that need few steps, then diffusion, then the others. */
function inOrder(runs) {
  const rank = (run) => (run.method === "Duo" ? 0 : run.infills ? 2 : 4) + (run.distilled ? 0 : 1);
  return [...runs].sort((a, b) => rank(a) - rank(b) || a.id.localeCompare(b.id));
}

export class WriteView {
  constructor(studio) {
    this.studio = studio;
    this.pins = new Map();
    this.pane = emptyPane("");
    this.abort = null;
    const runs = inOrder(studio.writers());
    if (!runs.length) {
      this.node = nothingHere();
      this.empty = true;
      return;
    }
    this.settings = new Settings(studio);
    this.inspector = new Inspector();
    this.tokens = new TokenText({
      label: "The text, token by token. Arrow keys move, Enter pins.",
      pins: this.pins,
      inspect: (place) => this.inspector.show(this.pane, this.index, place),
    });
    this.tokens.onpin = () => this.#mark();
    this.transport = new Transport((moment) => this.#draw(moment));
    this.transport.node.hidden = true;
    this.problem = problem();
    this.command = command();
    this.counter = el("p", { class: "counter" });
    this.go = el("button", { type: "submit", class: "primary" }, "Write");
    this.stop = el("button", { type: "button", onclick: () => this.abort?.abort(), hidden: true }, "Stop");
    this.again = el("button", { type: "button", onclick: () => this.write(true) }, "Write the rest again");
    this.unpin = el("button", { type: "button", class: "quiet", onclick: () => this.#unpinned() }, "Unpin all");
    this.pinned = el("div", { class: "row pinned-row", hidden: true }, el("span"), this.again, this.unpin);
    this.saving = el("div", { class: "row saving", hidden: true },
      el("button", { type: "button", onclick: () => this.#save(() => navigator.clipboard.writeText(this.pane.text)) }, "Copy the text"),
      el("button", { type: "button", onclick: () => this.#save(() => saveHtml(this.#name(), this.#title(), [this.pane])) }, "Save as HTML"),
      el("button", { type: "button", onclick: () => this.#save(() => saveTrace(this.#name(), this.pane)) }, "Save the trace"));
    this.welcome = el("p", { class: "welcome" }, "A diffusion model writes all tokens of a text at once, and improves them step by step. Press Write, and watch.");
    this.node = this.#layout(runs);
    this.choose(runs[0]);
    this.#mark();
  }

  #layout(runs) {
    const form = el("form", { class: "compose", onsubmit: (event) => { event.preventDefault(); this.write(false); } },
      labelled("Prompt", this.settings.prompt), labelled("Suffix", this.settings.suffix), el("div", { class: "row" }, this.go, this.stop));
    form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.write(false);
    });
    this.models = listModels(el("fieldset", { class: "models" }), runs, runs[0].id, (run) => this.choose(run));
    return el("div", { class: "two-columns" },
      el("aside", { class: "side", "aria-label": "Model and settings" }, this.models, this.settings.node),
      el("div", { class: "stage" },
        form, this.problem.node,
        el("section", { class: "sheet", "aria-label": "What the model writes" }, this.counter, this.welcome, this.tokens.node, this.transport.node, this.#legend(), this.pinned),
        this.inspector.node, this.command.node, this.saving));
  }

  #legend() {
    return el("p", { class: "legend" }, el("span", { class: "token changed" }, "changed in this step"), " ",
      el("span", { class: "token unsure" }, "the model is unsure"), " ", el("span", { class: "token pinned" }, "pinned: click a token"));
  }

  /** The models as they are now; the chosen one stays. */
  renew() {
    redrawn(this.models, () => listModels(this.models, inOrder(this.studio.writers()), this.run.id, (run) => this.choose(run)));
  }

  /** Take another model; tokens of another one mean nothing to it. */
  choose(run) {
    this.run = run;
    this.settings.fit(run);
    this.pins.clear();
    this.tokens.pins = run.infills ? this.pins : null;
    this.#mark();
  }

  /** Write a text; with `rest`, the pinned tokens stay. */
  async write(rest) {
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    const run = this.run;
    const body = this.settings.body(run);
    if (rest && this.pins.size) body.keep = [...this.pins].sort(([a], [b]) => a - b);
    else this.pins.clear();
    const pane = (this.pane = emptyPane(run.id));
    this.#begin();
    const size = (body.length ?? run.length) * (body.steps ?? usualSteps(run));
    try {
      await record(pane, body, size, { signal: abort.signal, changed: (event) => this.#received(pane, event) });
      if (this.pane === pane) this.studio.announce(`Written in ${pane.frames.length - 1} steps and ${figure(pane.seconds)} seconds: ${pane.text}`);
    } catch (error) {
      if (this.pane === pane && !abort.signal.aborted) this.problem.say(error.message);
    }
    if (this.pane === pane) this.#end();
  }

  #begin() {
    this.problem.say(null);
    this.command.set("");
    this.welcome.hidden = true;
    this.transport.node.hidden = false;
    this.transport.takeFocus(this.go);
    this.transport.takeFocus(this.again);
    this.transport.pause();
    this.transport.moment = 0;
    this.transport.waiting = true;
    this.stop.hidden = false;
    this.go.textContent = "Write again";
    this.saving.hidden = true;
    this.node.setAttribute("aria-busy", "true");
    this.inspector.show(null, 0, null);
    this.transport.follow(timeline([this.pane]));
    this.tokens.show(this.pane, 0);
    this.#mark();
  }

  /** A step has come: it is shown when its turn is. */
  #received(pane, event) {
    if (this.pane !== pane) return;
    if (event.type === "start") this.command.set(event.command);
    if (event.type !== "step") return;
    const steps = timeline([{ frames: Array(event.steps + 1).fill(pane.frames[0]) }]).pause();
    this.transport.follow({ ...timeline([pane]), pause: () => steps });
    if (pane.frames.length === 1) this.#draw(0);
    if (pane.frames.length === 2 && !still()) this.transport.play();
    if (still()) this.transport.go(pane.frames.length - 1);
  }

  #end() {
    this.stop.hidden = true;
    this.node.removeAttribute("aria-busy");
    this.transport.waiting = false;
    if (this.transport.playing && this.transport.moment >= this.transport.line.count - 1) this.transport.pause();
    this.saving.hidden = this.pane.text === null;
    this.node.dataset.written = String(Number(this.node.dataset.written ?? 0) + 1);
    this.#mark();
  }

  get index() {
    return Math.max(0, Math.min(this.transport.moment, this.pane.frames.length - 1));
  }

  #draw(moment) {
    this.tokens.show(this.pane, moment);
    this.inspector.show(this.pane, moment);
    const frame = this.pane.frames[moment];
    if (!frame) return;
    const facts = [`step ${frame.step} of ${this.pane.steps}`, `signal ${figure(frame.alpha, 2)}`, frame.step ? `${frame.changed.length} changed` : "noise"];
    if (frame.step === this.pane.steps && this.pane.seconds) facts.push(`${figure(this.pane.seconds)} s`);
    this.counter.textContent = facts.join(" · ");
  }

  #mark() {
    const count = this.pins.size;
    this.pinned.hidden = count === 0;
    this.pinned.firstChild.textContent = `${count} token${count === 1 ? "" : "s"} pinned`;
    if (this.pane.frames.length) this.#draw(this.index);
  }

  #unpinned() {
    this.pins.clear();
    this.#mark();
  }

  #name() {
    return `${this.pane.name.replaceAll("/", "-")}-${this.pane.steps}-steps`;
  }

  #title() {
    return `${this.pane.name} writes in ${this.pane.steps} steps`;
  }

  async #save(work) {
    try {
      await work();
    } catch (error) {
      this.problem.say(error.message);
    }
  }

  hide() {
    this.transport?.pause();
  }

  key(event) {
    if (!this.transport) return false;
    if (event.key === " " && !this.pane.frames.length) {
      event.preventDefault();
      this.write(false);
      return true;
    }
    return this.transport.key(event);
  }
}
