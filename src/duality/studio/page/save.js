// Files to give to others: a recording as one HTML file that needs nothing else, or as a trace for `duality trace`.
import { Refused } from "./requests.js";
import { el } from "./dom.js";
import { packed, trace } from "./recording.js";

const PLACE = '{"panes":[]}'; // where the recording belongs in the empty file

function download(name, type, content) {
  const address = URL.createObjectURL(new Blob([content], { type }));
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** JSON that can stand inside a script element. */
export function inScript(value) {
  return JSON.stringify(value).replaceAll("<", "\\u003c");
}

/** Save panes as one HTML file. */
export async function saveHtml(name, title, panes) {
  const response = await fetch("/share.html");
  if (!response.ok) throw new Refused("the studio has no empty file to save into: start it again");
  const [before, after] = (await response.text()).split(PLACE);
  download(`${name}.html`, "text/html", `${before}${inScript({ title, panes: panes.map(packed) })}${after}`);
}

/** Save a pane as a trace. */
export function saveTrace(name, pane) {
  download(`${name}.json`, "application/json", JSON.stringify(trace(pane)));
}
