// Race: two to four models write at the same time from the same seed.
import { choice, chosen, labelled, nothingHere, number, numberOf, options, problem, usualSteps } from "./controls.js";
import { el, fill, figure } from "./dom.js";
import { timeline, TokenText, Transport } from "./player.js";
import { emptyPane, judged, record } from "./recording.js";
import { saveHtml } from "./save.js";

/** One model of a race: what it is asked, and what it writes. */
class Lane {
  constructor(race, studio, run, steps) {
    this.studio = studio;
    this.pane = emptyPane("");
    this.model = choice(studio.writers().map((each) => each.id));
    this.model.value = run.id;
    this.steps = number({ min: "1", max: "4096", step: "1", value: steps ?? "" });
    this.tail = choice(studio.choices.tail ?? [], "own");
    this.temperature = number({ min: "0.01", step: "0.05" });
    this.tokens = new TokenText({ label: "The text, token by token" });
    this.counter = el("p", { class: "counter" });
    this.facts = el("dl", { class: "facts" });
    this.problem = problem();
    this.command = el("details", { class: "small", hidden: true }, el("summary", {}, "Command"), el("pre", { class: "command" }));
    this.model.addEventListener("change", () => this.fit());
    this.node = el("section", { class: "pane" },
      el("div", { class: "lane" }, labelled("Model", this.model), labelled("Steps", this.steps), labelled("Tail", this.tail), labelled("Temp.", this.temperature)),
      this.counter, this.problem.node, this.tokens.node, this.facts, this.command,
      el("button", { type: "button", class: "quiet remove", "aria-label": "Remove this model from the race", title: "Remove", onclick: () => race.remove(this) }, "✕"));
    this.fit();
    this.show(0);
  }

  get run() {
    return this.studio.runs.find((run) => run.id === this.model.value);
  }

  fit() {
    this.steps.placeholder = String(usualSteps(this.run));
    this.temperature.placeholder = figure(this.run.generation.temperature);
    this.tail.options[0].textContent = `own (${this.run.generation.tail})`;
  }

  /** Write; what all lanes share is in `shared`. */
  async start(shared, signal, changed) {
    const run = this.run;
    const own = { run: run.id, steps: numberOf(this.steps), tail: chosen(this.tail), temperature: numberOf(this.temperature) };
    const body = Object.fromEntries(Object.entries({ ...shared, ...own }).filter(([, value]) => value !== null && value !== ""));
    const pane = (this.pane = emptyPane(`${run.id}, ${own.steps ?? usualSteps(run)} steps`));
    this.problem.say(null);
    this.show(0);
    try {
      await record(pane, body, (body.length ?? run.length) * (body.steps ?? usualSteps(run)), {
        signal,
        changed: (event) => {
          if (event.type === "step") this.show(pane.frames.length - 1);
          changed();
        },
      });
      if (this.studio.judge && pane.text) await judged(pane, signal);
    } catch (error) {
      if (!signal.aborted) this.problem.say(error.message);
    }
    this.node.dataset.finished = "yes";
    this.show(pane.frames.length - 1);
  }

  show(index) {
    const pane = this.pane;
    const frame = pane.frames[index];
    this.tokens.show(pane, index);
    this.counter.textContent = frame ? `step ${frame.step} of ${pane.steps}` : "ready";
    const ended = pane.seconds !== undefined && index === pane.frames.length - 1;
    const rows = [["network calls", ended ? pane.calls : frame ? frame.step : null], ["seconds", ended ? pane.seconds : frame ? frame.at / 1000 : null], ["entropy", ended ? pane.entropy : null]];
    if (this.studio.judge) rows.push([`perplexity`, ended ? pane.perplexity : null]);
    fill(this.facts, rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, figure(value)))));
    this.command.hidden = !pane.command;
    this.command.lastChild.textContent = pane.command;
  }
}

/** Lanes that show something: few steps before and after distillation, masked diffusion, one token at a time. */
function firstLanes(runs) {
  const of = (test) => runs.find(test);
  const wanted = [
    [of((run) => run.method === "Duo" && !run.distilled), 8],
    [of((run) => run.distilled), 8],
    [of((run) => run.method === "MDLM"), null],
    [of((run) => run.method === "AR"), null],
  ].filter(([run]) => run);
  const others = runs.filter((run) => !wanted.some(([each]) => each === run)).map((run) => [run, null]);
  const found = [...wanted, ...others].slice(0, 4);
  return found.length === 1 ? [found[0], [found[0][0], 32]] : found;
}

export class RaceView {
  constructor(studio) {
    this.studio = studio;
    this.lanes = [];
    const runs = studio.writers();
    if (!runs.length) {
      this.node = nothingHere();
      this.empty = true;
      return;
    }
    this.seed = number({ min: "0", step: "1", value: "0" });
    this.length = number({ min: "1", max: "2048", step: "1", placeholder: "own" });
    this.prompt = el("input", { type: "text", autocomplete: "off", placeholder: "The text begins with …" });
    this.go = el("button", { type: "submit", class: "primary" }, "Start");
    this.stop = el("button", { type: "button", onclick: () => this.abort?.abort(), hidden: true }, "Stop");
    this.add = el("button", { type: "button", onclick: () => this.insert(runs[0], null) }, "Add a model");
    this.save = el("button", { type: "button", hidden: true, onclick: () => this.saved() }, "Save as HTML");
    this.panes = el("div", { class: "panes" });
    this.problem = problem();
    this.transport = new Transport((moment) => {
      this.line.frames(moment).forEach((index, number) => this.lanes[number]?.show(Math.max(0, index)));
    });
    this.replay = el("div", { hidden: true }, this.transport.node);
    this.node = el("div", { class: "race" },
      el("form", { class: "bar-form", onsubmit: (event) => { event.preventDefault(); this.start(); } },
        labelled("Prompt", this.prompt), labelled("Seed", this.seed), labelled("Length", this.length), el("div", { class: "row" }, this.go, this.stop, this.add, this.save)),
      this.problem.node, this.replay, this.panes,
      el("p", { class: "hint" }, "All models begin at once and share this machine, each in a thread of its own; a model that is in two panes writes them one after the other. Entropy is that of the tokens of a sample in nats: it falls when a text repeats itself."));
    for (const [run, steps] of firstLanes(runs)) this.insert(run, steps);
  }

  /** The models as they are now. */
  renew() {
    for (const lane of this.lanes) options(lane.model, this.studio.writers().map((run) => run.id));
  }

  insert(run, steps) {
    const lane = new Lane(this, this.studio, run, steps);
    this.lanes.push(lane);
    this.panes.append(lane.node);
    this.#mark();
  }

  remove(lane) {
    this.lanes = this.lanes.filter((each) => each !== lane);
    lane.node.remove();
    this.#mark();
  }

  #mark() {
    this.add.disabled = this.lanes.length >= 4;
    this.lanes.forEach((lane, number) => lane.node.setAttribute("aria-label", `Model ${number + 1} of the race`));
    for (const lane of this.lanes) lane.node.querySelector(".remove").disabled = this.lanes.length <= 2;
    this.replay.hidden = true;
    this.save.hidden = true;
    this.transport.pause();
  }

  async start() {
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    this.#mark();
    this.stop.hidden = false;
    delete this.node.dataset.finished;
    const shared = { prompt: this.prompt.value, seed: numberOf(this.seed), length: numberOf(this.length) };
    const lanes = [...this.lanes];
    for (const lane of lanes) delete lane.node.dataset.finished;
    await Promise.all(lanes.map((lane) => lane.start(shared, abort.signal, () => {})));
    if (this.abort !== abort) return;
    this.stop.hidden = true;
    this.node.dataset.finished = "yes";
    const panes = this.lanes.map((lane) => lane.pane);
    if (abort.signal.aborted || panes.some((pane) => pane.text === null)) return;
    this.line = timeline(panes);
    this.transport.follow(this.line);
    this.transport.go(this.line.count - 1);
    this.replay.hidden = this.save.hidden = false;
    this.transport.takeFocus(this.go);
    this.studio.announce(`The race is over. ${panes.map((pane) => `${pane.name}: ${figure(pane.seconds)} seconds`).join("; ")}.`);
  }

  async saved() {
    try {
      await saveHtml("race", `A race: ${this.lanes.map((lane) => lane.pane.name).join(" · ")}`, this.lanes.map((lane) => lane.pane));
    } catch (error) {
      this.problem.say(error.message);
    }
  }

  hide() {
    this.transport?.pause();
  }

  key(event) {
    if (!this.transport || this.replay.hidden) return false;
    return this.transport.key(event);
  }
}
