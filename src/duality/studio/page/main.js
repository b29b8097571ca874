// The studio: one view at a time, chosen by the part of the address after "#".
import { get } from "./requests.js";
import { el, fill } from "./dom.js";
import { typing } from "./player.js";
import { DualityView } from "./duality.js";
import { RaceView } from "./race.js";
import { ScoreView } from "./score.js";
import { TrainView } from "./train.js";
import { WriteView } from "./write.js";

const VIEWS = { write: ["Write", WriteView], race: ["Race", RaceView], duality: ["Duality", DualityView], train: ["Train", TrainView], score: ["Score", ScoreView] };
const EVERY = 4000; // milliseconds between two looks for new runs
const THEMES = ["auto", "light", "dark"];

const main = document.getElementById("main");
const themeButton = document.getElementById("theme");
const announcer = document.getElementById("announce");
const made = new Map();
let current = null;

/** What all views share: the runs that can write, the judge, the choices of a request, and a voice. */
const studio = {
  runs: [],
  judge: null,
  choices: {},
  announce(text) {
    announcer.textContent = text;
  },
  async refresh() {
    const found = await get("/api/runs");
    this.runs = found.runs;
    this.judge = found.judge;
    return this.runs;
  },
  /** Runs that can write: they have a checkpoint, and their recipe can be read. */
  writers() {
    return this.runs.filter((run) => run.method);
  },
};

function themed(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  themeButton.textContent = { auto: "◐", light: "☀", dark: "☾" }[theme];
  themeButton.setAttribute("aria-label", `Colours: ${theme}. Change them.`);
  themeButton.title = `Colours: ${theme}`;
  themeButton.dataset.theme = theme;
}

/** What a browser keeps for us; some keep nothing. */
function kept(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(name);
    localStorage.setItem(name, value);
  } catch {
    return null;
  }
  return value;
}

function show() {
  const wanted = location.hash.slice(1);
  const name = wanted in VIEWS ? wanted : "write";
  current?.hide?.();
  if (!made.has(name)) made.set(name, new VIEWS[name][1](studio));
  current = made.get(name);
  const titled = current.node.querySelector("h1") !== null;
  fill(main, titled ? null : el("h1", { class: "hidden" }, VIEWS[name][0]), current.node);
  current.show?.();
  document.title = `${VIEWS[name][0]} · duality studio`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** What is shown of the runs in lists. */
function listed() {
  return JSON.stringify(studio.runs.map((run) => [run.id, run.state, run.step, run.method]));
}

/** A run that has been trained meanwhile can be chosen; a view that had none is made again. */
async function renew() {
  const before = listed();
  const view = current;
  try {
    await studio.refresh();
  } catch {
    return; // what the view asks for next says why
  }
  if (view !== current || before === listed()) return;
  if (!view.empty) view.renew?.();
  else if (studio.writers().length) {
    made.clear();
    show();
  }
}

async function start() {
  fill(document.querySelector("nav"), Object.entries(VIEWS).map(([name, [title]]) => el("a", { href: `#${name}` }, title)));
  themed(THEMES.includes(kept("theme")) ? kept("theme") : "auto");
  themeButton.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(themeButton.dataset.theme) + 1) % THEMES.length];
    kept("theme", next);
    themed(next);
  });
  // the cookie has the token now: it need not stay where others can read it
  if (location.search) history.replaceState(null, "", location.pathname + location.hash);
  document.addEventListener("keydown", (event) => typing(event) || current?.key?.(event));
  window.addEventListener("hashchange", () => {
    if (location.hash !== "#main") show();
  });
  try {
    const [, described] = await Promise.all([studio.refresh(), get("/api/openapi.json")]);
    const form = described.paths["/api/generate"].post.requestBody.content["application/json"].schema.properties;
    const words = (name) => form[name].anyOf.flatMap((kind) => kind.enum ?? []); // or null: the model's own
    studio.choices = { sampler: words("sampler"), grid: words("grid"), tail: words("tail") };
    show();
    setInterval(() => document.visibilityState === "visible" && renew(), EVERY);
  } catch (error) {
    fill(main, el("p", { class: "error", role: "alert" }, error.message));
  }
  document.body.dataset.ready = "yes";
}

start();
