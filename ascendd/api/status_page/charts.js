// Line charts as inline SVG, each with a sentence for screen readers and a table of its points.

import { clock, text } from "./texts.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 600;
const HEIGHT = 120;
// The axis is as long as what was seen, within these.
const LEAST_S = 60;
const MOST_S = 900;
const TABLE_ROWS = 12;

function make(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// The least of 1, 2, 5 x 10^n that is no less than `most`.
function ceiling(most) {
  if (most <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(most));
  return unit * [1, 2, 5, 10].find((digit) => digit * unit >= most * 0.999);
}

export class Chart {
  // lines: [{column, name, second}], name a key of texts; format(value) -> text; top: fixed upper end or null
  constructor(title, lines, format, top = null) {
    this.title = title;
    this.lines = lines;
    this.format = format;
    this.top = top;
    this.at = null;
    // Before the first figures come, all of them are empty, so that a chart has its title and says that it has no data.
    this.history = Object.fromEntries([["unix_s", []], ...lines.map((line) => [line.column, []])]);
    this.caption = element("b");
    this.legend = element("span", { class: "legend" });
    this.svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    this.upper = element("span", { class: "scale top", "aria-hidden": "true" });
    this.none = element("span", { class: "none" });
    this.ago = element("span");
    this.now = element("span");
    this.summary = element("summary");
    this.table = element("div", { class: "scroll", tabindex: "0", role: "group" });
    this.details = element("details", {}, this.summary, this.table);
    const plot = element("div", { class: "plot" }, this.svg, this.upper, this.none);
    this.node = element("figure", { class: "card" }, element("figcaption", {}, this.caption, this.legend), plot,
      element("div", { class: "times", "aria-hidden": "true" }, this.ago, this.now), this.details);
    plot.addEventListener("pointermove", (event) => this.point(event));
    plot.addEventListener("pointerleave", () => { this.at = null; this.draw(); });
    this.details.addEventListener("toggle", () => this.draw());
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    this.at = (event.clientX - box.left) / box.width;
    this.draw();
  }

  draw(history = this.history) {
    this.history = history;
    const times = history.unix_s;
    const end = times.at(-1) ?? 0;
    const length = Math.min(MOST_S, Math.max(LEAST_S, end - (times[0] ?? end)));
    const across = (time) => WIDTH * (1 - (end - time) / length);
    const values = this.lines.flatMap((line) => history[line.column].filter((value) => value !== null));
    const top = this.top ?? ceiling(Math.max(0, ...values));
    const up = (value) => HEIGHT * (1 - Math.min(value / top, 1));
    // Without values a sentence stands where the middle one would strike it through.
    const shapes = (values.length > 0 ? [0, 0.5, 1] : [0, 1]).map((share) => make("line", { class: "rule", x1: 0, x2: WIDTH, y1: HEIGHT * share, y2: HEIGHT * share }));
    for (const line of this.lines) {
      const runs = this.runs(history[line.column]);
      const kind = line.second ? "curve second" : "curve";
      for (const run of runs) {
        const points = run.map((index) => `${across(times[index]).toFixed(1)},${up(history[line.column][index]).toFixed(1)}`);
        // A lone point would be a curve without length.
        if (points.length === 1) points.push(`${(across(times[run[0]]) + 2).toFixed(1)},${points[0].split(",")[1]}`);
        if (!line.second) {
          const [from, to] = [points[0].split(",")[0], points.at(-1).split(",")[0]];
          shapes.push(make("path", { class: "area", d: `M${from},${HEIGHT}L${points.join("L")}L${to},${HEIGHT}Z` }));
        }
        shapes.push(make("path", { class: kind, d: `M${points.join("L")}` }));
      }
    }
    let shown = times.length - 1;
    if (this.at !== null && times.length > 0) {
      const wanted = end - (1 - this.at) * length;
      shown = times.reduce((best, time, index) => (Math.abs(time - wanted) < Math.abs(times[best] - wanted) ? index : best), 0);
      shapes.push(make("line", { class: "cursor", x1: across(times[shown]), x2: across(times[shown]), y1: 0, y2: HEIGHT }));
    }
    this.svg.replaceChildren(...shapes);
    this.label(history, shown, top, values.length, length);
  }

  label(history, shown, top, count, length) {
    const title = text(this.title);
    const value = (line, index) => this.format(history[line.column][index] ?? null);
    const parts = this.lines.map((line) => {
      const known = history[line.column].filter((one) => one !== null);
      const most = this.format(known.length > 0 ? Math.max(...known) : null);
      return text("latest", { name: text(line.name), value: value(line, history.unix_s.length - 1), most });
    });
    this.caption.textContent = title;
    this.svg.setAttribute("aria-label", text("summary", { title, parts: count > 0 ? parts.join("; ") : text("no_data") }));
    this.upper.textContent = this.format(top);
    this.none.textContent = count > 0 ? "" : text("no_data");
    this.ago.textContent = text("ago", { minutes: Math.round(length / 60) });
    this.now.textContent = this.at === null || shown < 0 ? text("now") : clock(history.unix_s[shown]);
    this.legend.replaceChildren(...this.lines.map((line) => element("span", {},
      element("i", { class: line.second ? "second" : "", "aria-hidden": "true" }), `${text(line.name)} ${value(line, shown)}`)));
    this.summary.textContent = text("as_table");
    this.summary.setAttribute("aria-label", `${text("as_table")}: ${title}`);
    this.table.setAttribute("aria-label", title);
    if (this.details.open) {
      const every = Math.max(1, Math.floor(history.unix_s.length / TABLE_ROWS));
      const rows = history.unix_s.map((_, index) => index).reverse().filter((_, position) => position % every === 0);
      this.table.replaceChildren(table([text("time"), ...this.lines.map((line) => text(line.name))],
        rows.map((index) => [clock(history.unix_s[index]), ...this.lines.map((line) => value(line, index))])));
    }
  }

  // Stretches of points that were measured; a gap in the figures is a gap in the curve.
  runs(column) {
    const out = [];
    column.forEach((value, index) => {
      if (value === null) return;
      if (index > 0 && column[index - 1] !== null && out.length > 0) out.at(-1).push(index);
      else out.push([index]);
    });
    return out;
  }
}

export function table(heads, rows) {
  const cell = (value, index) => {
    if (value instanceof Node && value.tagName === "TD") return value;
    return index === 0 ? element("th", { scope: "row" }, value) : element("td", {}, value);
  };
  return element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell)))));
}
