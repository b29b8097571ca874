// Duality: one position of a Gaussian diffusion, and the discrete diffusion that its argmax is.
//
// The latent is w_t = a_t x + sqrt(1 - a_t^2) noise, a vector with one number for each of K tokens, x the clean token.
// Its path is one of the Gaussian process: w_t = r w_s + sqrt(1 - r^2) e with r = a_t / a_s. The argmax of w_t follows a
// uniform-state process whose signal is T(a_t), which the studio computes.
import { get } from "./requests.js";
import { labelled } from "./controls.js";
import { el, fill, figure, icon, still, svg } from "./dom.js";
import { Chart } from "./chart.js";

const WORDS = ["cat", "dog", "fox", "owl", "hen", "bee", "elk", "ant", "cow", "rat", "bat", "pig"];
const MOMENTS = 240;
const PATHS = 2000;

/** Random numbers that a seed repeats (mulberry32). */
export function uniforms(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

export function normals(seed) {
  const next = uniforms(seed);
  return () => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next());
}

/** The signal a_t of the Gaussian diffusion: a cosine of time. */
export function signal(moment) {
  return Math.cos((Math.PI / 2) * (moment / (MOMENTS - 1)));
}

/** A path of the Gaussian process from the clean token 0: a vector of K numbers at every moment. */
export function path(states, seed) {
  const normal = normals(seed);
  let w = Array.from({ length: states }, (_, k) => (k === 0 ? 1 : 0));
  const found = [w];
  for (let moment = 1; moment < MOMENTS; moment += 1) {
    const r = signal(moment) / signal(moment - 1);
    w = w.map((value) => r * value + Math.sqrt(1 - r * r) * normal());
    found.push(w);
  }
  return found;
}

export function argmax(w) {
  return w.indexOf(Math.max(...w));
}

export function softmax(w, tau) {
  const highest = Math.max(...w);
  const found = w.map((value) => Math.exp((value - highest) / tau));
  const total = found.reduce((a, b) => a + b, 0);
  return found.map((value) => value / total);
}

/** The signal of the argmax, counted over many paths: the share that still has the clean token, as T has it. */
export function counted(states, count = PATHS) {
  const normal = normals(7);
  return Array.from({ length: 19 }, (_, index) => {
    const a = (index + 1) / 20;
    let kept = 0;
    for (let each = 0; each < count; each += 1) {
      const w = Array.from({ length: states }, (_, k) => (k === 0 ? a : 0) + Math.sqrt(1 - a * a) * normal());
      kept += argmax(w) === 0 ? 1 : 0;
    }
    return [a, (kept / count - 1 / states) / (1 - 1 / states)];
  });
}

export class DualityView {
  constructor() {
    this.moment = 90;
    this.seed = 3;
    this.states = el("input", { type: "range", min: "2", max: "12", step: "1", value: "6" });
    this.tau = el("input", { type: "range", min: "-3", max: "0", step: "0.05", value: "-0.7" });
    this.time = el("input", { type: "range", min: "0", max: String(MOMENTS - 1), step: "1", value: String(this.moment), "aria-label": "Time" });
    this.play = el("button", { type: "button", class: "play", onclick: () => this.toggle() });
    this.statesName = el("output", { class: "when" });
    this.tauName = el("output", { class: "when" });
    this.timeName = el("output", { class: "when" });
    this.latent = new Chart("The Gaussian latent w of one position, by time", { height: 230, describe: () => `The ${this.states.value} numbers of the latent over time` });
    this.operator = new Chart("The operator T: signal of the argmax, by signal of the Gaussian", { height: 230, bounds: [0, 1, 0, 1], describe: () => this.summary.textContent });
    this.strip = svg("svg", { class: "strip", role: "img", "aria-label": "Which token is the argmax, over time", height: 46 });
    this.soft = el("ol", { class: "bars" });
    this.hard = el("ol", { class: "bars" });
    this.summary = el("p", { class: "counter" });
    for (const [input, changed] of [[this.states, () => this.load()], [this.tau, () => this.draw()], [this.time, () => this.go(Number(this.time.value))]]) input.addEventListener("input", changed);
    new ResizeObserver(() => this.draw()).observe(this.latent.node);
    this.node = this.#layout();
    this.load();
  }

  #layout() {
    const row = (label, input, output) => el("div", { class: "slider" }, labelled(label, input), output);
    return el("div", { class: "duality" },
      el("div", { class: "intro" }, el("h1", {}, "A uniform-state diffusion is the argmax of a Gaussian one"),
        el("p", {}, "One position of a text begins as the token ", el("strong", { class: "key s0" }, WORDS[0]), ": the one-hot vector of K numbers. Gaussian noise moves all of them. Whenever another number becomes the largest, the argmax flips to another token: that is uniform-state noise, and T says how much signal it has left.")),
      el("div", { class: "knobs" }, row("Tokens K", this.states, this.statesName), row("Temperature τ", this.tau, this.tauName),
        el("button", { type: "button", onclick: () => { this.seed += 1; this.load(); } }, "Another path")),
      el("div", { class: "transport", role: "group", "aria-label": "Time" }, this.play, this.time, this.timeName),
      this.summary,
      el("div", { class: "charts" },
        el("div", {}, this.latent.node, el("p", { class: "hint above" }, "its argmax"), this.strip),
        this.operator.node,
        el("section", { class: "chart" }, el("h2", {}, "Its argmax: what a model of discrete diffusion reads"), this.hard),
        el("section", { class: "chart" }, el("h2", {}, "softmax(w / τ): what the curriculum lets it read"), this.soft)),
      el("p", { class: "hint" }, `Dots on T: the share of ${PATHS.toLocaleString("en-US")} draws of this page whose argmax is the clean token, corrected for chance.`));
  }

  /** Another number of tokens or another path. */
  async load() {
    const states = Number(this.states.value);
    this.path = path(states, this.seed);
    this.points = counted(states);
    this.table = null;
    this.draw();
    try {
      const table = await get(`/api/operator?states=${states}`);
      if (table.states === Number(this.states.value)) this.table = table;
      this.draw();
    } catch (error) {
      fill(this.summary, error.message);
    }
  }

  /** T at a signal of the Gaussian, between the points of the table. */
  T(a) {
    const { gaussian, discrete } = this.table;
    const place = Math.min(Math.floor(a * (gaussian.length - 1)), gaussian.length - 2);
    const share = (a - gaussian[place]) / (gaussian[place + 1] - gaussian[place]);
    return discrete[place] + share * (discrete[place + 1] - discrete[place]);
  }

  go(moment) {
    this.pause();
    this.moment = Math.min(Math.max(moment, 0), MOMENTS - 1);
    this.draw();
  }

  toggle() {
    if (this.timer) return this.pause();
    if (this.moment >= MOMENTS - 1) this.moment = 0;
    const pace = still() ? 500 : 40;
    this.timer = setInterval(() => {
      this.moment += still() ? 12 : 1;
      if (this.moment >= MOMENTS - 1) this.go(MOMENTS - 1);
      this.draw();
    }, pace);
    this.draw();
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.draw();
  }

  draw() {
    const states = Number(this.states.value);
    const [a, tau] = [signal(this.moment), 10 ** Number(this.tau.value)];
    const w = this.path[this.moment];
    const winner = argmax(w);
    const t = this.moment / (MOMENTS - 1);
    fill(this.play, icon(this.timer ? "pause" : "play"));
    this.play.setAttribute("aria-label", this.timer ? "Pause" : "Play");
    this.time.value = String(this.moment);
    this.statesName.textContent = String(states);
    this.tauName.textContent = figure(tau, 2);
    this.timeName.textContent = `t = ${t.toFixed(2)}`;
    const level = this.table ? this.T(a) : null;
    this.summary.textContent = `Gaussian signal ${a.toFixed(3)} · discrete signal T = ${level === null ? "…" : level.toFixed(3)} · argmax ${WORDS[winner]}`;
    this.latent.set(w.map((_, k) => ({ name: WORDS[k], colour: k % 8, faint: k !== winner && k !== 0, points: this.path.map((each, moment) => [moment / (MOMENTS - 1), each[k]]) })), t);
    this.#drawOperator(a, level);
    this.#drawStrip();
    this.#drawBars(this.hard, w.map((_, k) => (k === winner ? 1 : 0)), winner);
    this.#drawBars(this.soft, softmax(w, tau), winner);
  }

  #drawBars(list, shares, winner) {
    fill(list, shares.map((share, k) => {
      const bar = el("span", { class: `bar s${k % 8}` });
      bar.style.setProperty("--share", String(share));
      return el("li", { class: k === winner ? "chosen" : null }, el("q", {}, WORDS[k]), bar, el("span", {}, share.toFixed(3)));
    }));
  }

  #drawOperator(a, level) {
    if (!this.table) return;
    const curve = this.table.gaussian.map((value, index) => [value, this.table.discrete[index]]);
    this.operator.set([
      { name: "T", colour: 0, points: curve },
      { name: "counted", colour: 7, dots: "only", radius: 2, faint: true, points: this.points },
      { name: "now", colour: 1, dots: "only", radius: 6, points: [[a, level]] },
    ], a);
  }

  #drawStrip() {
    const width = this.latent.node.clientWidth;
    if (!width) return;
    const [left, right] = [52, 12];
    const across = width - left - right;
    const winners = this.path.map(argmax);
    const parts = [];
    for (let start = 0; start < MOMENTS; ) {
      let stop = start;
      while (stop < MOMENTS && winners[stop] === winners[start]) stop += 1;
      const [x, size] = [left + (start / MOMENTS) * across, ((stop - start) / MOMENTS) * across];
      parts.push(svg("rect", { class: `s${winners[start] % 8}`, x, y: 2, width: size, height: 24 }));
      if (size > 30) parts.push(svg("text", { x: x + size / 2, y: 18, "text-anchor": "middle" }, WORDS[winners[start]]));
      start = stop;
    }
    const now = left + (this.moment / (MOMENTS - 1)) * across;
    parts.push(svg("path", { class: "cursor", d: `M${now} 0V28l-5 9h10l-5-9` }));
    this.strip.setAttribute("viewBox", `0 0 ${width} 46`);
    this.strip.setAttribute("width", width);
    this.strip.replaceChildren(...parts);
  }

  hide() {
    this.pause();
  }

  show() {
    this.draw();
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return false;
    if (event.key === " ") this.toggle();
    else if (event.key === "ArrowLeft") this.go(this.moment - 1);
    else if (event.key === "ArrowRight") this.go(this.moment + 1);
    else return false;
    event.preventDefault();
    return true;
  }
}
