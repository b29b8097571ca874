// The parts of forms that several views have.
import { el, fill } from "./dom.js";

let count = 0;

/** A labelled control; `hint` is what stands below it. */
export function labelled(label, control, hint = null) {
  count += 1;
  control.id ||= `control-${count}`;
  return el("div", { class: "field" }, el("label", { for: control.id }, label), control, hint ? el("p", { class: "hint" }, hint) : null);
}

/** A number that may be left out; an empty one is null. */
export function number(attributes = {}) {
  return el("input", { type: "number", inputmode: "decimal", autocomplete: "off", ...attributes });
}

export function numberOf(input) {
  return input.value.trim() === "" ? null : Number(input.value);
}

/** A choice; the first option stands for "not given" where `none` has a text. */
export function choice(words, none = null) {
  const made = el("select");
  options(made, words, none);
  return made;
}

/** Other options; the chosen one stays if it is still there. */
export function options(select, words, none = null) {
  const before = select.value;
  fill(select, none === null ? null : el("option", { value: "" }, none), words.map((word) => el("option", { value: word }, word)));
  if ([...select.options].some((option) => option.value === before)) select.value = before;
}

export function chosen(select) {
  return select.value === "" ? null : select.value;
}

/** How many steps a run takes if nothing is said. */
export function usualSteps(run) {
  return run.generation?.steps ?? (run.method === "AR" ? run.length : run.method === "BertMouth" ? 2 : 32);
}

/** Draw a list of inputs again; the one that has the focus keeps it. */
export function redrawn(list, draw) {
  const focused = list.contains(document.activeElement) ? document.activeElement.value : null;
  draw();
  if (focused !== null) [...list.querySelectorAll("input")].find((input) => input.value === focused)?.focus();
}

/** A run in a few words. */
export function about(run) {
  if (run.problem && !run.method) return run.problem;
  const words = [run.method ?? run.recipe ?? "?", run.distilled ? "distilled" : null, run.length ? `${run.length} tokens` : null];
  if (run.step !== null && run.step !== undefined) words.push(`step ${run.step.toLocaleString("en-US")}`);
  if (run.state === "running") words.push("training");
  return words.filter(Boolean).join(" · ");
}

/** An error in one line, or nothing. */
export function problem() {
  const node = el("p", { class: "error", role: "alert", hidden: true });
  return {
    node,
    say(message) {
      node.textContent = message ?? "";
      node.hidden = !message;
    },
  };
}

/** A command, and a button that copies it. */
export function command() {
  const text = el("pre", { class: "command", tabindex: "0", "aria-label": "The command that writes the same text" });
  const button = el("button", { type: "button", class: "quiet", onclick: copy }, "Copy");
  async function copy() {
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }
  const node = el("div", { class: "commandline", hidden: true }, el("h2", {}, "The same text from the command line"), el("div", {}, text, button));
  return {
    node,
    set(words) {
      text.textContent = words;
      node.hidden = !words;
    },
  };
}

/** What is shown where there is no run yet. */
export function nothingHere() {
  return el("section", { class: "empty" }, el("h1", {}, "No model yet"),
    el("p", {}, "The studio shows the runs below the folder that it was started with. Train one, and load this page again:"),
    el("pre", { class: "command" }, "duality train duo-laptop --out runs/demo"));
}
