// Views: what of a figure is shown, and what is where in it. No part of it touches the page.
//
// A figure is what `data-figure` says (drawing/figure.py). A view of it is plain data too:
//   { x: [low, high] or null, y: the same, off: Set of names, log: { x: true, false or undefined, y: the same } }
// `x` and `y` are what was zoomed to, `off` the parts that are switched off, `log` where an axis is other than it came.

import { Scale, fits, isWide, makeScale } from "./scales.js";

export const SERIES = 6; // so many have a colour and a number of their own; "rest" is all after them
const FREE = { steps: [0, 0.06], scatter: [0.03, 0.03], histogram: [0, 0.12] }; // of each axis, at its ends
const FAR = 4; // times the least value: where all are nearer, an axis needs not be logarithmic
const NARROWEST = 1e-4; // of the whole of an axis, that can be zoomed to

/** A name for addresses: small letters, digits and dashes. */
export const slug = (text) =>
  text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 40).replace(/-+$/, "") || "chart";

/** Names, each once: those that were there before have a number behind them. */
export function distinct(names) {
  const seen = new Map();
  return names.map((name) => {
    const count = (seen.get(name) ?? 0) + 1;
    seen.set(name, count);
    return count > 1 ? `${name}-${count}` : name;
  });
}

const wholeView = () => ({ x: null, y: null, off: new Set(), log: {} });

export const isZoomed = (view) => Boolean(view.x || view.y);

export const isWhole = (view) =>
  !isZoomed(view) && !view.off.size && view.log.x === undefined && view.log.y === undefined;

// In addresses: `x_0.5_10*y_1_2*off_matmul_best*xlog*ylin`, of letters that no address escapes

/** A view as text, empty where it is the whole. */
export function writeView(view) {
  const parts = [];
  for (const axis of ["x", "y"]) {
    if (view[axis]) parts.push([axis, ...view[axis]].join("_"));
    if (view.log[axis] !== undefined) parts.push(axis + (view.log[axis] ? "log" : "lin"));
  }
  if (view.off.size) parts.push(["off", ...view.off].join("_"));
  return parts.join("*");
}

/** The view that a text says; what it can't mean is left out: anybody may have written it. */
export function readView(text) {
  const view = wholeView();
  for (const part of text.slice(0, 2000).split("*")) {
    const [word, ...values] = part.split("_");
    const ends = values.map(Number);
    if ((word === "x" || word === "y") && ends.length === 2 && ends.every(Number.isFinite) && ends[0] < ends[1]) {
      view[word] = ends;
    } else if (/^[xy](log|lin)$/.test(word)) view.log[word[0]] = word.endsWith("log");
    else if (word === "off") view.off = new Set(values.map(slug));
  }
  return view;
}

// What is shown

/** The figure with its points as such, and with what its parts are called in views. */
export function unpack(figure) {
  const names = distinct([...figure.marks ?? [], ...figure.series ?? []].map((part) => slug(part.name ?? part.kind)));
  const marks = (figure.marks ?? []).map((mark, n) => ({ ...mark, id: names[n] }));
  const series = (figure.series ?? []).map((part, n) => {
    const points = [];
    for (let at = 0; at < part.points.length; at += 2) points.push({ x: part.points[at], y: part.points[at + 1] });
    const told = ["tips", "texts", "hrefs"].map((name) => [name.slice(0, -1), part[name] ?? []]);
    for (const [name, texts] of told) texts.forEach((text, k) => text && (points[k][name] = text));
    const id = figure.kind === "steps" && n >= SERIES ? "rest" : names[marks.length + n];
    return { kind: "candidate", ...part, points, id, n };
  });
  return { ...figure, marks, series };
}

export const shownSeries = (figure, view) => figure.series.filter((part) => !view.off.has(part.id));
export const shownMarks = (figure, view) => figure.marks.filter((mark) => !view.off.has(mark.id));

/** Whether an axis may be logarithmic: all that is on it has a place there, and lies wide apart. Columns begin at zero. */
export function mayBeLog(figure, axis) {
  if (figure.kind === "histogram") return false;
  const values = [...figure.marks, ...figure.series.flatMap((part) => part.points)].map((point) => point[axis]);
  if (!values.length || !values.every((value) => fits(value, true))) return false;
  const [low, high] = values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, 0]);
  return high > FAR * low;
}

const isLog = (figure, view, axis) =>
  figure[axis].log ? view.log[axis] !== false : view.log[axis] === true && mayBeLog(figure, axis);

/** The scale of an axis as it is without a zoom. */
function wholeScale(figure, view, axis) {
  const { unit, low, high, log, include } = figure[axis];
  const now = isLog(figure, view, axis);
  const spots = [...shownMarks(figure, view), ...shownSeries(figure, view).flatMap((part) => part.points)];
  const isFixed = figure.kind === "histogram" && axis === "x"; // columns are parts of their axis
  if (isFixed || (now === log && (!view.off.size || !spots.length))) return new Scale(low, high, unit, now);
  const values = spots.map((spot) => spot[axis]);
  if (axis === "x" && figure.until !== undefined) values.push(figure.until);
  return makeScale(values, { unit, isLog: now, include }, FREE[figure.kind][axis === "x" ? 0 : 1]);
}

/** Both scales of a view. Where steps are zoomed to a part of x, y is that of what is seen there. */
export function scalesOf(figure, view) {
  const [x, y] = ["x", "y"].map((axis) => {
    const whole = wholeScale(figure, view, axis);
    const [low, high] = view[axis] ?? [];
    const isSeen = view[axis] && fits(low, whole.isLog) && fits(high, whole.isLog) && isWide(low, high);
    return isSeen ? new Scale(low, high, whole.unit, whole.isLog) : whole;
  });
  if (figure.kind !== "steps" || !view.x || view.y) return { x, y };
  const values = shownSeries(figure, view).flatMap((part) =>
    [valueAt(part, x.low), ...part.points.filter((point) => x.has(point.x))].filter(Boolean).map((point) => point.y),
  );
  return { x, y: values.length ? makeScale(values, { unit: y.unit, isLog: y.isLog }, 2 * FREE.steps[1]) : y };
}

/** The ends of a zoom with few digits, for the sake of addresses: nobody sees the difference. */
function shorten([low, high], isLog) {
  if (isLog) return [low, high].map((value) => Number(value.toPrecision(5)));
  const power = Math.floor(Math.log10((high - low) / 1000));
  return [low, high].map((value) => Number(`${Math.round(value / 10 ** power)}e${power}`));
}

/** A view zoomed to places of the one that is shown; `y` for scatters alone. The same view where that is too narrow. */
export function zoomTo(figure, view, places) {
  const now = scalesOf(figure, view);
  const zoomed = { ...view };
  for (const axis of figure.kind === "scatter" ? ["x", "y"] : ["x"]) {
    const ends = [...places[axis]].sort((a, b) => a - b).map((place) => now[axis].value(place));
    const whole = wholeScale(figure, view, axis);
    const [from, to] = ends.map((value) => whole.part(value));
    if (!(to - from >= NARROWEST)) return view;
    const seen = shorten([Math.max(ends[0], whole.low), Math.min(ends[1], whole.high)], whole.isLog);
    if (!isWide(...seen)) return view;
    zoomed[axis] = from <= 0 && to >= 1 ? null : seen;
  }
  return zoomed;
}

// What is where

/** The point of a series of steps that holds at a place of x; undefined before the first. */
export function valueAt(part, x) {
  let [first, last] = [0, part.points.length];
  while (first < last) {
    const middle = (first + last) >> 1;
    if (part.points[middle].x <= x) first = middle + 1;
    else last = middle;
  }
  return part.points[first - 1];
}

/** All points that can be pointed at: marks, dots and columns that lie within the scales. */
export function spotsOf(figure, view, { x, y }) {
  const marks = shownMarks(figure, view).map((mark) => ({ ...mark, of: mark.kind }));
  const dots = shownSeries(figure, view)
    .filter((part) => part.shape === "dots" || part.shape === "columns")
    .flatMap((part) => part.points.map((point) => ({ ...point, of: part.name })));
  return [...marks, ...dots].filter((spot) => figure.kind === "histogram" ? spot.x >= x.low : x.has(spot.x) && y.has(spot.y));
}

/** The spot nearest to places in x and y, in pixels of a frame of that size. Marks win where both are as near. */
export function nearestSpot(spots, scales, places, size) {
  let [best, least] = [undefined, Infinity];
  for (const spot of spots) {
    const away = Math.hypot(
      (scales.x.part(spot.x) - places.x) * size.width,
      (scales.y.part(spot.y) - places.y) * size.height,
    );
    if (away < least) [best, least] = [spot, away];
  }
  return best;
}

/** The places of x that the keyboard stops at, in order: where some step begins, and the end. */
export function stopsOf(figure, view, { x }) {
  const all = shownSeries(figure, view).flatMap((part) => part.points.map((point) => point.x));
  return [...new Set([...all, x.low, Math.min(figure.until ?? x.high, x.high)])].filter((at) => x.has(at)).sort((a, b) => a - b);
}
