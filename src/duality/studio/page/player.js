// How a recorded generation is shown: its tokens at a step, the controls of time, the history of one token.
//
// A pane is {name, mask, vocabulary: {id: text}, frames: [{step, alpha, tokens, changed, belief?, best?, place?, at?}],
// text?}. This file is used by the studio and is a part of every saved HTML file, so it asks for nothing from a server.
import { el, fill, figure, icon, still } from "./dom.js";

const END = "<|endoftext|>";
const CONTROL = /^[\u0000-\u0008\u000b-\u001f\u007f-\u009f]+$/;

/** How a token reads. */
export function reads(pane, id) {
  return pane.vocabulary[id] ?? "";
}

/** A token in a sentence: spaces and line ends are visible. */
export function quoted(pane, id) {
  if (id === pane.mask) return "mask";
  const text = reads(pane, id);
  return text === "" ? "∅" : text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥");
}

/** How unsure the model was of a token, from 0 to 1: 1 where it gave it a thousandth, or less. */
export function doubtOf(belief) {
  return Math.min(1, -Math.log(Math.max(belief, 1e-9)) / Math.log(1000));
}

/** The classes of a token beside its state. */
function kind(pane, id) {
  if (id === pane.mask) return "masked";
  const text = reads(pane, id);
  if (text === END) return "end";
  if (text === "") return "nothing";
  if (CONTROL.test(text)) return "control";
  return text.includes("\n") ? "line" : "";
}

/** The tokens of a pane at a step, one element each. */
export class TokenText {
  constructor({ label = "The text, token by token", pins = null, inspect = null } = {}) {
    this.pins = pins; // Map of place to token, or null where nothing can be pinned
    this.inspect = inspect;
    this.node = el("div", { class: "tokens", role: "group", "aria-label": label, "aria-live": "off" });
    this.cells = [];
    this.current = 0;
    this.onpin = null;
    this.node.addEventListener("click", (event) => this.#toggled(event.target));
    this.node.addEventListener("keydown", (event) => this.#key(event));
    for (const name of ["pointerover", "focusin"]) {
      this.node.addEventListener(name, (event) => this.#looked(event.target));
    }
  }

  /** Show the tokens of a frame. */
  show(pane, index) {
    const frame = pane.frames[index];
    if (!frame) {
      this.cells = [];
      this.node.replaceChildren();
      return;
    }
    const changed = new Set(frame.changed);
    while (this.cells.length > frame.tokens.length) this.cells.pop().node.remove();
    const added = [];
    frame.tokens.forEach((id, place) => {
      if (place === this.cells.length) {
        const node = el("span", { role: this.pins ? "button" : null, tabindex: place === this.current ? "0" : "-1" });
        this.cells.push({ node, text: null, state: null, doubt: null });
        added.push(node);
      }
      this.#draw(this.cells[place], pane, frame, place, id, changed.has(place));
    });
    this.node.append(...added);
    this.pane = pane;
    this.frame = frame;
    this.index = index;
  }

  #draw(cell, pane, frame, place, id, changed) {
    const text = reads(pane, id);
    if (cell.text !== text) cell.node.textContent = cell.text = text;
    const pinned = this.pins?.get(place) === id;
    const state = ["token", kind(pane, id), changed && "changed", pinned && "pinned"].filter(Boolean).join(" ");
    if (cell.state !== state) {
      cell.node.className = cell.state = state;
      if (this.pins) cell.node.setAttribute("aria-pressed", String(pinned));
    }
    const belief = frame.belief?.[place];
    const doubt = belief === undefined || belief === null ? "0" : doubtOf(belief).toFixed(2);
    if (cell.doubt !== doubt) {
      cell.doubt = doubt;
      cell.node.style.setProperty("--doubt", doubt);
    }
  }

  #place(target) {
    return this.cells.findIndex((cell) => cell.node === target);
  }

  #looked(target) {
    const place = this.#place(target);
    if (place >= 0 && this.inspect) this.inspect(place);
  }

  #toggled(target) {
    const place = this.#place(target);
    if (place < 0) return;
    this.#focus(place);
    if (!this.pins || this.pane === undefined) return;
    const id = this.frame.tokens[place];
    if (this.pins.get(place) === id) this.pins.delete(place);
    else if (id !== this.pane.mask) this.pins.set(place, id);
    this.show(this.pane, this.index);
    this.onpin?.();
  }

  #focus(place) {
    this.cells[this.current]?.node.setAttribute("tabindex", "-1");
    this.current = place;
    this.cells[place].node.setAttribute("tabindex", "0");
    this.cells[place].node.focus();
  }

  #key(event) {
    const place = this.#place(event.target);
    if (place < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const places = {
      ArrowLeft: place - 1,
      ArrowRight: place + 1,
      ArrowUp: this.#nearby(place, -1),
      ArrowDown: this.#nearby(place, 1),
      Home: 0,
      End: this.cells.length - 1,
    };
    if (event.key === "Enter") this.#toggled(event.target);
    else if (event.key in places) this.#focus(Math.min(Math.max(places[event.key], 0), this.cells.length - 1));
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** The token above or below one. */
  #nearby(place, direction) {
    const from = this.cells[place].node.getBoundingClientRect();
    for (let next = place + direction; next >= 0 && next < this.cells.length; next += direction) {
      const to = this.cells[next].node.getBoundingClientRect();
      const left = direction > 0 ? to.left + to.width > from.left : to.left <= from.left;
      if ((to.top - from.top) * direction > from.height / 2 && left) return next;
    }
    return place;
  }
}

/** What happened at one place: its tokens until now, and what else the model thought of. */
export class Inspector {
  constructor() {
    this.place = null;
    this.node = el("aside", { class: "inspector", "aria-label": "The token under the pointer" });
    this.show(null, 0, null);
  }

  show(pane, index, place = this.place) {
    this.place = place;
    const frame = pane?.frames[index];
    if (!frame || place === null || place >= frame.tokens.length) {
      fill(this.node, el("p", { class: "hint" }, "Point at a token, or move to one with the keyboard, to see its history."));
      return;
    }
    const best = alternatives(pane, index, place);
    fill(
      this.node,
      el("h2", {}, `Place ${place + 1} `, el("q", {}, quoted(pane, frame.tokens[place]))),
      best.length ? el("h3", {}, "What the model found likely") : null,
      best.length ? el("ol", { class: "bars" }, best.map(([id, p]) => bar(pane, id, p, id === frame.tokens[place]))) : null,
      el("h3", {}, "How it came to be"),
      el("ol", { class: "history" }, history(pane, index, place).map(([step, id, p]) =>
        el("li", {}, el("span", {}, `step ${step}`), el("q", {}, quoted(pane, id)), el("span", {}, p === null ? "" : percent(p))))),
    );
  }
}

/** The tokens that a place has had: [step, token, probability], one for each change. */
export function history(pane, index, place) {
  const found = [];
  for (const frame of pane.frames.slice(0, index + 1)) {
    const id = frame.tokens[place];
    if (id === undefined || (found.length && found[found.length - 1][1] === id)) continue;
    found.push([frame.step, id, frame.belief?.[place] ?? null]);
  }
  return found;
}

/** The most likely tokens of a place when its step was taken; a causal model thinks of one place at a time. */
export function alternatives(pane, index, place) {
  for (let at = index; at >= 0; at -= 1) {
    const frame = pane.frames[at];
    if (!frame.best) continue;
    if (frame.place === undefined || frame.place === null) return frame.best[place] ?? [];
    if (frame.place === place) return frame.best[0] ?? [];
  }
  return [];
}

function percent(p) {
  return p >= 0.995 ? "100 %" : p < 0.001 ? "< 0.1 %" : `${figure(100 * p, 2)} %`;
}

function bar(pane, id, p, chosen) {
  const meter = el("span", { class: "bar" });
  meter.style.setProperty("--share", String(p));
  return el("li", { class: chosen ? "chosen" : null }, el("q", {}, quoted(pane, id)), meter, el("span", {}, percent(p)));
}

/** When the frames of some panes are shown: in the seconds they took if those are known, else one after the other. */
export function timeline(panes) {
  const timed = panes.length > 1 && panes.every((pane) => pane.frames.every((frame) => Number.isFinite(frame.at)));
  const longest = Math.max(0, ...panes.map((pane) => pane.frames.length));
  if (!timed) {
    return {
      count: longest,
      pause: () => Math.min(400, Math.max(40, 6000 / longest)),
      frames: (moment) => panes.map((pane) => Math.min(moment, pane.frames.length - 1)),
      label: (moment) => `step ${Math.max(0, ...panes.map((pane) => pane.frames[Math.min(moment, pane.frames.length - 1)]?.step ?? 0))}`,
    };
  }
  const times = [...new Set(panes.flatMap((pane) => pane.frames.map((frame) => frame.at)))].sort((a, b) => a - b);
  return {
    count: times.length,
    pause: (moment) => Math.max(0, (times[moment + 1] ?? 0) - times[moment]),
    frames: (moment) => panes.map((pane) => pane.frames.findLastIndex((frame) => frame.at <= times[moment])),
    label: (moment) => `${(times[moment] / 1000).toFixed(2)} s`,
  };
}

/** Play, pause, step and scrub over `count` moments; `show(moment)` draws one. */
export class Transport {
  constructor(show) {
    this.show = show;
    this.line = timeline([]);
    this.moment = 0;
    this.playing = false;
    this.timer = null;
    const button = (label, name, onclick) => el("button", { type: "button", class: "quiet", "aria-label": label, title: label, onclick }, icon(name));
    this.toggle = el("button", { type: "button", class: "play", onclick: () => (this.playing ? this.pause() : this.play()) });
    this.slider = el("input", { type: "range", min: "0", max: "0", step: "1", value: "0", "aria-label": "Step" });
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    this.label = el("output", { class: "when" });
    this.node = el(
      "div",
      { class: "transport", role: "group", "aria-label": "Playback" },
      button("First step", "first", () => this.go(0)),
      button("One step back", "back", () => this.go(this.moment - 1)),
      this.toggle,
      button("One step on", "on", () => this.go(this.moment + 1)),
      button("Last step", "last", () => this.go(this.line.count - 1)),
      this.slider,
      this.label,
    );
    this.#mark();
  }

  /** Take the focus from a button that has done its work, so that the next space plays and does not begin again. */
  takeFocus(button) {
    if (document.activeElement === button) this.toggle.focus({ preventScroll: true });
  }

  /** Other moments; what is shown stays where it is. */
  follow(line) {
    this.line = line;
    this.slider.max = String(Math.max(0, line.count - 1));
    this.#mark();
    if (this.playing && this.timer === null) this.#tick();
  }

  /** Stop, and show one moment. */
  go(moment) {
    this.pause();
    this.#draw(moment);
  }

  /** Play on, from the beginning if it was at the end; without animation, show the end. */
  play() {
    if (still() && this.line.count) {
      this.go(this.line.count - 1);
      return;
    }
    if (this.moment >= this.line.count - 1) this.#draw(0);
    this.playing = true;
    this.#mark();
    this.#tick();
  }

  pause() {
    this.playing = false;
    clearTimeout(this.timer);
    this.timer = null;
    this.#mark();
  }

  /** Keys for the whole page: space plays, arrows step. Whether the key was one of them. */
  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || !this.line.count) return false;
    if (event.key === " ") (this.playing ? this.pause() : this.play());
    else if (event.key === "ArrowLeft") this.go(this.moment - 1);
    else if (event.key === "ArrowRight") this.go(this.moment + 1);
    else return false;
    event.preventDefault();
    return true;
  }

  #tick() {
    if (!this.playing) return;
    if (this.moment >= this.line.count - 1) {
      this.timer = null;
      if (!this.waiting) this.pause();
      return;
    }
    this.timer = setTimeout(() => {
      this.#draw(this.moment + 1);
      this.#tick();
    }, this.line.pause(this.moment));
  }

  #draw(moment) {
    if (!this.line.count) return;
    this.moment = Math.min(Math.max(moment, 0), this.line.count - 1);
    this.slider.value = String(this.moment);
    this.#mark();
    this.show(this.moment);
  }

  #mark() {
    const name = this.playing ? "Pause" : "Play";
    fill(this.toggle, icon(this.playing ? "pause" : "play"));
    this.toggle.setAttribute("aria-label", name);
    this.toggle.title = `${name} (space)`;
    const words = this.line.count ? this.line.label(this.moment) : "";
    this.label.textContent = words;
    this.slider.setAttribute("aria-valuetext", words);
  }
}

/** Whether a key was meant for what has the focus. */
export function typing(event) {
  const target = event.target;
  if (target.closest("input[type=range]")) return event.key !== " "; // the slider has the arrows itself
  if (target.closest("input, textarea, select, [contenteditable]")) return true;
  return event.key === " " && target.closest("button, summary, a") !== null;
}
