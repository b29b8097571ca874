// Elements without markup: every text becomes a text node, so that what a model writes is never read as HTML.

const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "open", "min", "max", "step", "selected", "tabIndex"]);

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name) && name in node) node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** An HTML element with attributes, listeners ("onclick") and children; strings are texts. */
export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same in SVG. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

const ICONS = {
  play: "M3 1.5v13l11-6.5z",
  pause: "M3 2h3.5v12H3zM9.5 2H13v12H9.5z",
  first: "M2 2h2.2v12H2zM14 2v12L5 8z",
  back: "M12.5 2v12L4 8z",
  on: "M3.5 2v12L12 8z",
  last: "M11.8 2H14v12h-2.2zM2 2v12l9-6z",
};

/** A small picture for a button, whose label says what it does. */
export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

/** Replace what is in a node. */
export function fill(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** A number for people: few digits, no exponent where it can be avoided. */
export function figure(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  if (size > 0 && size < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(digits)));
}

/** Whether the reader asked for no animation. */
export function still() {
  return window.matchMedia("(prefers-reduced-motion: reduce)").matches;
}
