// What a saved HTML file does: it reads the recording inside it, and shows it with its own controls.
import { el, figure } from "./dom.js";
import { Inspector, TokenText, timeline, Transport, typing } from "./player.js";

/** The frames of a file, in which all but the first are differences. */
export function unpacked(pane) {
  let tokens = [];
  const frames = pane.frames.map((frame) => {
    tokens = frame.tokens ? [...frame.tokens] : [...tokens];
    for (const [place, id] of frame.tokens ? [] : frame.changed) tokens[place] = id;
    return { ...frame, tokens, changed: frame.tokens ? [] : frame.changed.map(([place]) => place) };
  });
  return { ...pane, frames };
}

/** The lines below a pane. */
export function facts(pane) {
  const rows = [
    ["network calls", pane.calls],
    ["seconds", pane.seconds],
    ["entropy (nats)", pane.entropy],
    ["perplexity (judge)", pane.perplexity],
  ].filter(([, value]) => value !== undefined && value !== null);
  return rows.length ? el("dl", { class: "facts" }, rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, figure(value))))) : null;
}

/** Show the recording of this file. */
export function start(data, root) {
  const panes = data.panes.map(unpacked);
  const inspector = new Inspector();
  let shown = panes.map(() => 0);
  let looked = 0;
  const texts = panes.map((pane, number) => new TokenText({
    label: `${pane.name}, token by token`,
    inspect: (place) => {
      looked = number;
      inspector.show(pane, shown[number], place);
    },
  }));
  const line = timeline(panes);
  const counters = panes.map(() => el("p", { class: "counter" }));
  const transport = new Transport((moment) => {
    shown = line.frames(moment).map((index) => Math.max(index, 0));
    texts.forEach((text, number) => {
      text.show(panes[number], shown[number]);
      const frame = panes[number].frames[shown[number]];
      counters[number].textContent = frame ? `step ${frame.step} of ${panes[number].frames.at(-1).step}` : "";
    });
    inspector.show(panes[looked], shown[looked]);
  });
  document.title = data.title;
  document.addEventListener("keydown", (event) => typing(event) || transport.key(event));
  root.replaceChildren(
    el("h1", {}, data.title),
    el("div", { class: `panes of-${panes.length}` }, panes.map((pane, number) =>
      el("section", { class: "pane" }, el("h2", {}, pane.name), counters[number], texts[number].node, facts(pane),
        pane.command ? el("pre", { class: "command" }, pane.command) : null))),
    transport.node,
    inspector.node,
    el("p", { class: "hint" }, "Space plays and pauses; the arrow keys step."),
  );
  transport.follow(line);
  transport.go(line.count - 1);
}
