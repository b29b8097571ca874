// Train: what the runs have logged, live while they train; their samples by step; their recipes and the differences.
import { get, runPath } from "./requests.js";
import { choice, labelled, nothingHere, options, problem, redrawn } from "./controls.js";
import { el, fill, figure } from "./dom.js";
import { Chart } from "./chart.js";

const EVERY = 2000; // milliseconds between two looks at what is training
const CHARTS = [
  ["loss", "Loss, nats per token", false],
  ["validation_nats", "Validation, nats per token", true],
  ["tokens_per_second", "Tokens per second", false],
  ["gradient_norm", "Gradient norm", false],
];

/** A recipe as paths and values: {"training.steps": "2600", ...}. */
export function flat(value, path = "", found = {}) {
  if (value !== null && typeof value === "object" && Object.keys(value).length) {
    for (const [name, part] of Object.entries(value)) flat(part, path ? `${path}.${name}` : name, found);
  } else {
    found[path] = JSON.stringify(value);
  }
  return found;
}

/** The paths at which two recipes differ: [path, one, other]. */
export function differences(one, other) {
  const [a, b] = [flat(one), flat(other)];
  return [...new Set([...Object.keys(a), ...Object.keys(b)])].filter((path) => a[path] !== b[path]).map((path) => [path, a[path] ?? "–", b[path] ?? "–"]);
}

/** A number of a row; the loss in the unit of a validation. */
const shown = (row, field) => (field === "loss" ? row.nats_per_token ?? row.loss : row[field]);

/** How far a run is. */
function progress(run) {
  if (run.state === "unreadable") return run.problem ?? "cannot be read";
  const words = [run.method ?? run.recipe, run.state, `${figure(run.step ?? 0)} of ${figure(run.steps)} steps`];
  if (Number.isFinite(run.validation_nats)) words.push(`${figure(run.validation_nats)} nats`);
  return words.filter(Boolean).join(" · ");
}

export class TrainView {
  constructor(studio) {
    this.studio = studio;
    this.rows = new Map(); // run to logged rows
    this.written = []; // the samples of the run that is looked at
    this.chosen = new Set(studio.runs.slice(0, 4).map((run) => run.id));
    this.colours = new Map();
    this.list = el("fieldset", { class: "models many" });
    this.charts = CHARTS.map(([, title]) => new Chart(`${title}, by step`));
    this.problem = problem();
    this.run = choice([]);
    this.other = choice([], "nothing");
    this.step = el("input", { type: "range", min: "0", max: "0", step: "1", value: "0" });
    this.stepName = el("output", { class: "when" });
    this.samples = el("div", { class: "samples" });
    this.recipe = el("div", { class: "recipe" });
    this.step.addEventListener("input", () => this.#showSamples());
    this.run.addEventListener("change", () => this.#looked());
    this.other.addEventListener("change", () => this.#looked());
    this.node = el("div", { class: "train" }, this.list, this.problem.node,
      el("div", { class: "charts" }, this.charts.map((chart) => chart.node)),
      el("div", { class: "row" }, labelled("Look at", this.run), labelled("Compare its recipe with", this.other)),
      el("section", { "aria-label": "Samples" }, el("h2", {}, "Samples while it trained"), el("div", { class: "transport" }, this.step, this.stepName), this.samples),
      el("section", { "aria-label": "Recipe" }, el("h2", {}, "Recipe"), this.recipe));
    this.step.setAttribute("aria-label", "Training step of the samples");
    this.empty = !studio.runs.length;
    if (this.empty) this.node = nothingHere();
  }

  show() {
    this.looks = 0;
    this.timer ??= setInterval(() => this.look(), EVERY);
    this.look().then(() => this.#looked());
  }

  hide() {
    clearInterval(this.timer);
    this.timer = null;
  }

  /** Read what is new; now and then all of it, as a run that is continued takes some steps again. */
  async look() {
    if (this.busy) return;
    this.busy = true;
    try {
      const runs = await this.studio.refresh();
      this.#list(runs);
      const all = this.looks++ % 10 === 0;
      await Promise.all(runs.filter((run) => this.chosen.has(run.id)).map((run) => this.#read(run, all)));
      this.problem.say(null);
      this.#draw();
    } catch (error) {
      this.problem.say(error.message);
    }
    this.busy = false;
  }

  async #read(run, all) {
    const known = this.rows.get(run.id);
    if (known && !all && run.state !== "running") return;
    const after = known && !all ? (known.at(-1)?.step ?? -1) : -1;
    const { rows } = await get(`${runPath(run.id, "metrics")}?after=${after}`);
    this.rows.set(run.id, after < 0 ? rows : [...known, ...rows]);
  }

  #list(runs) {
    const state = JSON.stringify(runs.map((run) => [run.id, run.state, run.step, run.validation_nats]));
    if (state === this.state) return;
    this.state = state;
    runs.forEach((run) => this.colours.has(run.id) || this.colours.set(run.id, this.colours.size % 8));
    options(this.run, runs.map((run) => run.id));
    options(this.other, runs.map((run) => run.id), "nothing");
    redrawn(this.list, () => fill(this.list, el("legend", {}, "Runs"), runs.map((run) => el("label", {},
      el("input", { type: "checkbox", value: run.id, checked: this.chosen.has(run.id), onchange: (event) => this.#toggled(run.id, event.target.checked) }),
      el("span", {}, el("strong", { class: `key s${this.colours.get(run.id)}` }, run.id), el("small", {}, progress(run)))))));
  }

  #toggled(run, on) {
    if (on) this.chosen.add(run);
    else this.chosen.delete(run);
    this.looks = 0;
    this.look();
  }

  #draw() {
    CHARTS.forEach(([field, , dots], number) => {
      const series = [...this.chosen].map((run) => ({
        name: run,
        colour: this.colours.get(run),
        dots,
        points: (this.rows.get(run) ?? []).map((row) => [row.step, shown(row, field)]).filter(([, value]) => Number.isFinite(value)),
      }));
      this.charts[number].set(series);
    });
  }

  /** The samples and the recipe of the run that is looked at. */
  async #looked() {
    const [run, other] = [this.run.value, this.other.value];
    if (!run) return;
    const asked = (this.asked = {});
    try {
      const [{ rows }, recipe, compared] = await Promise.all([get(runPath(run, "samples")), get(runPath(run, "recipe")), other ? get(runPath(other, "recipe")) : null]);
      if (this.asked !== asked) return; // another run was chosen meanwhile
      this.written = rows;
      this.step.max = String(Math.max(0, rows.length - 1));
      this.step.value = this.step.max;
      this.#showSamples();
      this.#showRecipe(recipe, compared, run, other);
    } catch (error) {
      this.problem.say(error.message);
    }
  }

  #showSamples() {
    const row = this.written[Number(this.step.value)];
    this.stepName.textContent = row ? `step ${row.step}` : "";
    fill(this.samples, row ? row.texts.slice(0, 8).map((text) => el("blockquote", {}, text)) : el("p", { class: "hint" }, "This run has written no samples yet."));
  }

  #showRecipe(recipe, compared, run, other) {
    const rows = compared ? differences(recipe, compared) : Object.entries(flat(recipe));
    const head = compared ? ["field", run, other] : ["field", "value"];
    fill(this.recipe, compared && !rows.length ? el("p", { class: "hint" }, "The recipes are the same.") : el("div", { class: "table", tabindex: "0", role: "region", "aria-label": "The fields of the recipe" },
      el("table", {}, el("thead", {}, el("tr", {}, head.map((each) => el("th", { scope: "col" }, each)))),
        el("tbody", {}, rows.map((row) => el("tr", {}, row.map((each, number) => el(number ? "td" : "th", number ? {} : { scope: "row" }, each))))))));
  }
}
