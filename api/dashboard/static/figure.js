// Draws a view of a figure into its SVG: as drawing/figure.py and frame.py do, with the classes of charts.css.

import { spread, valueText } from "./scales.js";
import { SERIES, isZoomed, shownMarks, shownSeries } from "./views.js";

const GRID = 1000; // units of the stretched square along each side
const DOTTED = 40; // a curve of more steps than this has no dots
const BINS = 32;
const [NARROW, WIDE] = [33, 76]; // characters that fit below a frame on a phone and on a screen
const [NUMBER_PX, NAME_PX] = [13, 14]; // between numbers at the ends of curves, between names below each other
const [LABEL, EDGE] = [0.3, 0.6]; // of the width: what a mark's label takes, and from where it is on the left
const BENDS = 96; // pieces of a line that is straight on other axes than these
const SHAPES = {
  best: "M0-8 2.1-2.8 7.6-2.5 3.3 1 4.7 6.5 0 3.4-4.7 6.5-3.3 1-7.6-2.5-2.1-2.8z",
  default: "M0-6.5 6.5 0 0 6.5-6.5 0z",
};

/** An element of SVG; attributes that are null are left out. Text is never read as markup. */
export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) if (value != null) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const short = (value) => String(Math.round(value * 10) / 10);
const percent = (part) => `${Math.round(part * 10000) / 100}%`;
export const seriesClass = (n) => (n < SERIES ? `series-${n}` : "other");

/** What leads elsewhere, as a link. */
function link(href, child, label, isRepeated) {
  return href ? svg("a", { href, "aria-label": label, tabindex: isRepeated ? "-1" : null }, child) : child;
}

/** A group whose content is drawn in pixels around a place within the frame. */
export const at = (kind, x, y, ...parts) =>
  svg("svg", { class: kind, x: percent(x), y: short(y), width: 1, height: 1 }, ...parts);

/** Draw the view that has these scales; `figure` is as `unpack` makes it. */
export function draw(frame, figure, view, scales) {
  const series = shownSeries(figure, view);
  const isNumbered = figure.kind === "steps" && figure.series.length > 1;
  const drawn = series.map((part) => drawSeries(figure, part, scales));
  const box = { viewBox: `0 0 ${GRID} ${GRID}`, preserveAspectRatio: "none", width: "100%", height: figure.height };
  const data = svg("svg", { class: isZoomed(view) ? "data clipped" : "data", ...box }, ...(figure.kind === "steps" ? drawn.reverse() : drawn).flat());
  const corner = figure.corner ? [svg("text", { class: "label", "text-anchor": "end", x: "100%", y: -10 }, figure.corner)] : [];
  const { axes, gutter } = drawAxes(figure, scales);
  frame.setAttribute("class", `frame gutter-${gutter}`);
  frame.replaceChildren(
    ...[...frame.children].filter((one) => one.localName === "desc"),
    ...axes,
    data,
    ...(isNumbered ? numbers : lineNames)(figure, series, scales),
    ...drawMarks(figure, shownMarks(figure, view), scales),
    ...corner,
  );
}

function drawAxes({ x, y, height }, scales) {
  const ups = scales.y.ticks(5);
  const lines = ups.flatMap(({ place, text }) => {
    const up = height * (1 - place);
    return [
      svg("line", { class: "grid", x2: "100%", y1: short(up), y2: short(up) }),
      svg("text", { class: "tick", "text-anchor": "end", x: -8, y: short(up + 4) }, text),
    ];
  });
  for (const [kind, room] of [["narrow", NARROW], ["wide", WIDE]]) {
    const ticks = scales.x.ticksWithin(room).flatMap(({ place, text }) => [
      svg("line", { class: "axis", x1: percent(place), x2: percent(place), y1: height, y2: height + 4 }),
      svg("text", { class: "tick", "text-anchor": "middle", x: percent(place), y: height + 18 }, text),
    ]);
    lines.push(svg("g", { class: kind }, ...ticks));
  }
  lines.push(
    svg("line", { class: "axis", x2: "100%", y1: height, y2: height }),
    svg("text", { class: "label", "text-anchor": "end", x: "100%", y: height + 36 }, x.label),
    svg("text", { class: "label", y: -10 }, y.label),
  );
  const longest = Math.max(...ups.map(({ text }) => [...text].length), 3);
  return { axes: lines, gutter: Math.min(longest, 10) };
}

function drawSeries(figure, part, scales) {
  // Units from the left and from the top; along an axis what is far outside ends soon after the frame.
  const across = (x) => short(GRID * Math.min(Math.max(scales.x.part(x), -0.5), 1.5));
  const down = (y) => short(GRID * (1 - Math.min(Math.max(scales.y.part(y), -0.5), 1.5)));
  switch (part.shape) {
    case "steps":
      return drawSteps(figure, part, scales, across, down);
    case "line":
      return [svg("path", { class: `line ${part.kind}`, d: lineData(figure, part.points, scales) })];
    case "columns":
      return part.points.map((point) => svg("path", { class: `fill ${part.kind}`, d: columnData(figure, point, scales, down) }));
    default:
      return drawDots(part, scales, across, down);
  }
}

function drawSteps(figure, part, scales, across, down) {
  const [first, ...others] = part.points;
  if (!first) return [];
  let d = `M${across(first.x)} ${down(first.y)}`;
  for (const point of others) d += `H${across(point.x)}V${down(point.y)}`;
  d += `H${Math.max(GRID, Number(across(part.points.at(-1).x)))}`;
  const kind = seriesClass(part.n);
  const group = svg("g", {}, svg("path", { class: "reach", d }), svg("path", { class: `line ${kind}`, d }));
  const drawn = [link(part.href, group, part.name, part.n < SERIES)]; // the legend has it too
  if (part.n < SERIES && part.points.length <= DOTTED) {
    const seen = part.points.filter((point) => scales.x.has(point.x));
    const dots = seen.map((point) => svg("path", { class: "dot", d: `M${across(point.x)} ${down(point.y)}h.1` }));
    drawn.push(svg("g", { class: kind }, ...dots));
  }
  return drawn;
}

function drawDots(part, scales, across, down) {
  let plain = "";
  const told = [];
  for (const point of part.points) {
    if (!scales.x.has(point.x) || !scales.y.has(point.y)) continue;
    const d = `M${across(point.x)} ${down(point.y)}h.1`;
    if (point.href) told.push(link(point.href, svg("path", { d }), point.tip || part.name));
    else plain += d;
  }
  const kind = `dots ${part.kind}`;
  return [svg("path", { class: kind, d: plain }), svg("g", { class: kind }, ...told)];
}

/** A bin that begins at a point; one beyond the end of the axis is behind it, and is not seen in a part of that. */
function columnData(figure, point, scales, down) {
  const whole = new scales.x.constructor(figure.x.low, figure.x.high, figure.x.unit, figure.x.log);
  const isBeyond = point.x > figure.x.high;
  if (isBeyond && scales.x.high < figure.x.high) return "";
  const n = isBeyond ? BINS + 0.3 : Math.round(whole.place(point.x) * BINS);
  const [from, to] = [n, n + 1].map((edge) => GRID * scales.x.part(whole.value(edge / BINS)));
  if (to < 0 || (from > GRID && !isBeyond)) return "";
  return `M${short(from + 1)} ${GRID}V${Math.min(Number(down(point.y)), GRID - 4)}H${short(to - 2)}V${GRID}z`;
}

/** A line is straight on the axes that its figure came with; on others it is bent. Only what is seen of it is drawn. */
function lineData({ x, y }, points, scales) {
  const isStraight = x.log === scales.x.isLog && y.log === scales.y.isLog;
  const between = (isLog, from, to, t) => (isLog ? from * (to / from) ** t : from + (to - from) * t);
  let [d, end] = ["", ""];
  points.slice(1).forEach((to, n) => {
    const from = points[n];
    const pieces = isStraight ? 1 : BENDS;
    for (let k = 0; k < pieces; k++) {
      const [a, b] = [k / pieces, (k + 1) / pieces].map((t) => [
        scales.x.part(between(x.log, from.x, to.x, t)),
        scales.y.part(between(y.log, from.y, to.y, t)),
      ]);
      const seen = clip(a, b);
      if (!seen) continue;
      const [begin, stop] = seen.map(([right, up]) => `${short(GRID * right)} ${short(GRID * (1 - up))}`);
      d += begin === end ? `L${stop}` : `M${begin}L${stop}`;
      end = stop;
    }
  });
  return d;
}

/** The part of the way between two places that is in or close to the frame; null for none (Liang and Barsky). */
function clip(from, to) {
  let [first, last] = [0, 1];
  for (const axis of [0, 1]) {
    const way = to[axis] - from[axis];
    for (const [room, step] of [[from[axis] + 0.05, -way], [1.05 - from[axis], way]]) {
      if (step === 0 && room < 0) return null;
      if (step < 0) first = Math.max(first, room / step);
      if (step > 0) last = Math.min(last, room / step);
    }
  }
  if (!(first < last)) return null;
  return [first, last].map((t) => [0, 1].map((axis) => from[axis] + t * (to[axis] - from[axis])));
}

/** The number of each series at the end of its curve, where that is seen, moved apart where they would overlap. */
function numbers({ height }, series, scales) {
  const ends = series
    .filter((part) => part.n < SERIES)
    .map((part) => ({ n: part.n, last: part.points.findLast((point) => point.x <= scales.x.high) }))
    .filter(({ last }) => last && scales.y.has(last.y));
  const heights = ends.map(({ last }) => height * (1 - scales.y.place(last.y)));
  return spread(heights, NUMBER_PX, 0, height).map((y, k) =>
    at(seriesClass(ends[k].n), 1, y, svg("text", { class: "number", x: 7, y: 4 }, String(ends[k].n + 1))),
  );
}

/** The short names of lines at their ends, as far as these are seen and have room below each other. */
function lineNames({ height }, series, scales) {
  const tops = [];
  const named = [];
  for (const part of series.filter((one) => one.short)) {
    const end = part.points.at(part.last ? -1 : 0);
    const [x, y] = [scales.x.part(end.x), height * (1 - scales.y.part(end.y))];
    if (x < -1e-9 || x > 1 + 1e-9 || y < 0 || y > height - NAME_PX) continue;
    if (part.last) {
      named.push(at("named", x, y, svg("text", { class: "label halo", "text-anchor": "end", x: -2, y: -6 }, part.short)));
    } else if (tops.every((other) => Math.abs(y - other) >= NAME_PX)) {
      tops.push(y);
      named.push(at("named", x, y, svg("text", { class: "label halo", x: 6, y: 15 }, part.short)));
    }
  }
  return named;
}

/** The marks with their labels beside them, each a line lower where it would lie upon the one before. */
function drawMarks({ height, x, y }, marks, scales) {
  const labels = [];
  const drawn = marks
    .filter((mark) => scales.x.has(mark.x) && scales.y.has(mark.y))
    .map((mark) => {
      const [place, top] = [scales.x.place(mark.x), height * (1 - scales.y.place(mark.y))];
      const isLeft = place > EDGE;
      let down = 4;
      const isTaken = ([other, line]) => Math.abs(place - other) < LABEL && Math.abs(top + down - line) < NAME_PX;
      while (labels.some(isTaken)) down += NAME_PX;
      labels.push([place, top + down]);
      const shape = svg("path", { class: `mark ${mark.kind}`, d: SHAPES[mark.kind] });
      const words = { class: "halo strong", x: isLeft ? -11 : 11, y: down, "text-anchor": isLeft ? "end" : null };
      const about = `${mark.kind}: ${valueText(mark.x, x.unit)}, ${valueText(mark.y, y.unit)}`;
      const both = svg("g", {}, shape, svg("text", words, mark.kind));
      return at("spot", place, top, link(mark.href, both, about));
    });
  return drawn.reverse(); // the first lies on top
}
