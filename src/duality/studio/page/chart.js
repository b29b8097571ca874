// Line charts in SVG, drawn for the width that they have.
import { el, figure, svg } from "./dom.js";

const MARGIN = { left: 52, right: 12, top: 10, bottom: 26 };

/** Round numbers between two, at most about `count`. */
export function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / count;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * size).find((each) => each >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(Number(value.toPrecision(12)));
  return found;
}

/** At most `most` points of a long line: of each part its lowest and its highest. */
export function thinned(points, most) {
  if (points.length <= most) return points;
  const size = Math.ceil((2 * points.length) / most);
  const found = [];
  for (let start = 0; start < points.length; start += size) {
    const part = points.slice(start, start + size);
    const low = part.reduce((a, b) => (b[1] < a[1] ? b : a));
    const high = part.reduce((a, b) => (b[1] > a[1] ? b : a));
    found.push(...(low === high ? [low] : low[0] < high[0] ? [low, high] : [high, low]));
  }
  return found;
}

/** A chart with a title; `set(series)` draws lines {name, colour, points: [[x, y], ...], dots, dashed}. */
export class Chart {
  constructor(title, { height = 210, bounds = null, describe = null } = {}) {
    Object.assign(this, { title, height, bounds, describe, series: [], cursor: null });
    this.picture = svg("svg", { role: "img", "aria-label": title, height });
    this.node = el("figure", { class: "chart" }, el("figcaption", {}, title), this.picture);
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  set(series, cursor = null) {
    this.series = series;
    this.cursor = cursor;
    this.draw();
  }

  /** What the lines cover; some rare high values are cut off, so that the rest can be seen. */
  #extent() {
    if (this.bounds) return this.bounds;
    const points = this.series.flatMap((each) => each.points);
    const xs = points.map(([x]) => x);
    const ys = points.map(([, y]) => y).sort((a, b) => a - b);
    const high = ys[Math.min(ys.length - 1, Math.floor(ys.length * 0.995))];
    const space = (high - ys[0]) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [Math.min(...xs), Math.max(...xs), ys[0] - space, high + space];
  }

  draw() {
    const width = this.node.clientWidth;
    if (!width) return;
    const shown = this.series.filter((each) => each.points.length);
    this.picture.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.picture.setAttribute("width", width);
    if (!shown.length) {
      this.picture.replaceChildren(svg("text", { x: width / 2, y: this.height / 2, "text-anchor": "middle" }, "nothing yet"));
      return;
    }
    const [x0, x1, y0, y1] = this.#extent();
    const across = width - MARGIN.left - MARGIN.right;
    const down = this.height - MARGIN.top - MARGIN.bottom;
    const x = (value) => MARGIN.left + ((value - x0) / (x1 - x0 || 1)) * across;
    const y = (value) => MARGIN.top + down - (Math.min(Math.max((value - y0) / (y1 - y0 || 1), 0), 1) * down);
    const parts = [];
    for (const value of ticks(y0, y1, 4)) {
      parts.push(svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
        svg("text", { x: MARGIN.left - 6, y: y(value) + 4, "text-anchor": "end" }, figure(value)));
    }
    for (const value of ticks(x0, x1, Math.max(2, Math.floor(across / 90)))) {
      parts.push(svg("text", { x: x(value), y: this.height - 8, "text-anchor": "middle" }, figure(value)));
    }
    for (const each of shown) parts.push(...this.#line(each, x, y, across));
    if (this.cursor !== null) parts.push(svg("line", { class: "cursor", x1: x(this.cursor), x2: x(this.cursor), y1: MARGIN.top, y2: MARGIN.top + down }));
    this.picture.replaceChildren(...parts);
    this.picture.setAttribute("aria-label", this.describe?.(shown) || `${this.title}: ${shown.map((each) => `${each.name}, now ${figure(each.points.at(-1)[1])}`).join("; ")}`);
  }

  #line(each, x, y, across) {
    const points = thinned(each.points, 2 * across);
    const name = `series s${each.colour}${each.dashed ? " dashed" : ""}${each.faint ? " faint" : ""}`;
    const found = each.dots === "only" ? [] : [svg("polyline", { class: name, points: points.map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") })];
    if (each.dots || points.length === 1) found.push(...points.map(([a, b]) => svg("circle", { class: name, cx: x(a), cy: y(b), r: each.radius ?? 2.5 })));
    return found;
  }
}
