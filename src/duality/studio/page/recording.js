// A generation that is being written becomes a pane that can be played: event by event.
import { events, post } from "./requests.js";

const MOST_ALTERNATIVES = 150_000; // places times steps for which alternatives are asked for: they are most of a stream

/** A pane without frames. */
export function emptyPane(name) {
  return { name, command: "", mask: null, vocabulary: {}, frames: [], text: null, steps: null };
}

/** Ask a model to write, and add each step to a pane; `changed()` is called after each. */
export async function record(pane, body, size, { signal, changed = () => {} } = {}) {
  const started = performance.now();
  const alternatives = size <= MOST_ALTERNATIVES ? 5 : 0;
  for await (const event of events("/api/generate", { ...body, num: 1, alternatives }, signal)) {
    Object.assign(pane.vocabulary, event.pieces ?? {});
    if (event.type === "start") Object.assign(pane, { command: event.command, mask: event.mask, run: event.run });
    else if (event.type === "step") add(pane, event, performance.now() - started);
    else if (event.type === "end") Object.assign(pane, { text: event.text, entropy: event.token_entropy, tokens: event.tokens });
    else if (event.type === "done") Object.assign(pane, { seconds: event.seconds, calls: event.calls });
    changed(event);
  }
}

function add(pane, event, at) {
  const { step, steps, alpha, tokens, changed, belief, best, place, entropy } = event;
  pane.steps = steps;
  pane.frames.push({ step, alpha, tokens, changed, belief, best, place, entropy, at: Math.round(at) });
}

/** The judge's perplexity of a pane's text. */
export async function judged(pane, signal) {
  pane.perplexity = (await post("/api/judge", { text: pane.text }, signal)).perplexity;
}

/** Places and tokens where a row differs from the one before it, new places included. */
function differences(before, tokens) {
  return tokens.map((id, place) => [place, id]).filter(([place, id]) => before[place] !== id);
}

/** A pane for a file: all frames but the first as differences, nothing that can be computed from the rest. */
export function packed(pane) {
  const frames = pane.frames.map(({ tokens, changed, entropy, ...rest }, index) =>
    index ? { ...rest, changed: differences(pane.frames[index - 1].tokens, tokens) } : { ...rest, tokens });
  const { name, command, mask, vocabulary, text, calls, seconds, entropy, perplexity } = pane;
  return { name, command, mask, vocabulary, frames, text, calls, seconds, entropy, perplexity };
}

/** The same as a trace file, which `duality trace` reads. */
export function trace(pane) {
  const frames = packed(pane).frames.map(({ step, alpha, tokens, changed }) => (tokens ? { step, alpha, tokens } : { step, alpha, changed }));
  const vocabulary = Object.fromEntries(Object.entries(pane.vocabulary).filter(([id]) => Number(id) !== pane.mask));
  const about = { recipe: pane.name, run: pane.run, steps: pane.steps, command: pane.command };
  return { format: 1, about, mask: pane.mask, vocabulary, samples: [{ index: 0, frames, text: pane.text ?? "" }] };
}
