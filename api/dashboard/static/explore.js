// Brushes the marks of `drawing/parallel.py`: drags along an axis, or over the dots, choose ranges.
//
//   <figure class="chart parallel brushed"> has marks: marks.js
//   <g class="pick" data-column="knob.tile" data-low data-high data-log data-values data-whole> an axis
//   <form id="ranges"> has the ranges as text, in <input data-range name="knob.tile">: what is dragged goes there
//   <tr data-mark="17"> a row of the table, which lights up with its mark
//
// Marks are told apart at once; then the address changes, and live.js shows what the server says of it.

import { svg } from "./figure.js";
import { Marks } from "./marks.js";

const DEPTH = 200; // units of an axis of the parallel coordinates
const GRID = 1000; // and of either axis of the dots
const HEIGHT_PX = 260;
const REACH_PX = 24; // around an axis, and around a dot
const CLICK_PX = 4;

const form = document.getElementById("ranges");
const every = (selector, within = document) => [...within.querySelectorAll(selector)];
const figures = () => every("figure.brushed").filter((one) => one.querySelector(".marks"));
const clamp = (part) => Math.min(Math.max(part, 0), 1);

// Axes

/** An axis as its element tells it. */
function axisOf(pick, number) {
  const { column, low, high, log, values, whole, part = 1, still } = pick.dataset;
  const choices = values?.split(" ").map(Number);
  const flags = { isLog: Boolean(log), isWhole: Boolean(whole), isStill: Boolean(still) };
  return { pick, number, column, low: +low, high: +high, choices, part: +part, ...flags };
}

const axesOf = (figure) => every(".pick", figure).map(axisOf);

/** Where a value is on an axis, from 0 to 1. */
function place({ low, high, isLog, choices }, value) {
  if (choices) return ((choices.findIndex((one) => one >= value) + 1 || choices.length) - 0.5) / choices.length;
  if (!isLog) return clamp((value - low) / (high - low));
  return value <= low ? 0 : clamp(Math.log(value / low) / Math.log(high / low));
}

/** The range between two places of an axis, as text; empty where nothing is there. */
function range({ low, high, isLog, isWhole, choices }, from, to) {
  if (choices) {
    const within = choices.filter((_, n) => (n + 0.5) / choices.length >= from && (n + 0.5) / choices.length <= to);
    return within.length ? [...new Set([within[0], within[within.length - 1]])].join("..") : "";
  }
  const value = (part) => (isLog ? low * (high / low) ** part : low + (high - low) * part);
  const text = (part, whole) => (isWhole ? whole(value(part)) : Number(value(part).toPrecision(4)));
  return `${from <= 0 ? "" : text(from, Math.ceil)}..${to >= 1 ? "" : text(to, Math.floor)}`;
}

/** The places between which a text chooses, with a little more for rounding; null where it chooses all. */
function reach(axis, text) {
  const [, low, dots, high] = /^\s*([-\d.e+]*?)\s*(?:(\.\.)\s*([-\d.e+]*))?\s*$/.exec(text) ?? [];
  if (axis.isStill || (!low && !high)) return null;
  const from = low ? place(axis, +low) : 0;
  const to = dots ? (high ? place(axis, +high) : 1) : from;
  return [from - 1e-9, to + 1e-9];
}

// Marks

const known = new WeakMap(); // figure -> its marks: a page that is renewed has another figure

function marksOf(figure) {
  if (!known.has(figure)) known.set(figure, new Marks(figure));
  return known.get(figure);
}

const isParallel = (figure) => figure.classList.contains("parallel");

/** Where a mark is on an axis of its figure; NaN where it is not. */
function spot(figure, axis, { corners }) {
  if (!isParallel(figure)) return axis.number ? 1 - corners[1] / GRID : corners[0] / GRID;
  const depth = corners[2 * axis.number + 1];
  return depth > DEPTH ? NaN : (1 - depth / DEPTH) / axis.part;
}

/** Draw what the ranges of the form leave out faintly, and these. */
function draw() {
  const dropped = new Set();
  for (const figure of figures()) {
    const { all } = marksOf(figure);
    const slack = isParallel(figure) ? 0.5 / DEPTH : 0.5 / GRID;
    for (const axis of axesOf(figure)) {
      const ends = reach(axis, field(axis)?.value ?? "");
      mark(figure, axis, ends);
      if (!ends) continue;
      for (const one of all) {
        const at = spot(figure, axis, one);
        if (!(at >= ends[0] - slack && at <= ends[1] + slack) || at > 1 + slack) dropped.add(one.number);
      }
    }
  }
  for (const figure of figures()) marksOf(figure).drop(dropped);
}

const begin = () => figures().forEach(marksOf);
document.addEventListener("renewed", begin);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
begin();

const field = ({ column }) => every("[data-range]", form).find((one) => one.name === column);

/** Show what is chosen of an axis. */
function mark(figure, axis, ends) {
  const half = axis.choices ? 0.5 / axis.choices.length : 0;
  const [from, to] = ends ? [clamp(ends[0] - half), clamp(ends[1] + half)] : [0, 1];
  if (isParallel(figure)) {
    let box = axis.pick.querySelector(".chosen");
    if (!ends) return box?.parentNode.remove();
    if (!box) {
      box = svg("rect");
      axis.pick.append(svg("svg", { class: "spot", x: `${100 * axis.pick.dataset.place}%` }, box));
    }
    put(box, { class: "chosen", x: -7, width: 14 });
    return put(box, { y: HEIGHT_PX * (1 - axis.part * to), height: Math.max(HEIGHT_PX * axis.part * (to - from), 2) });
  }
  const area = figure.querySelector(".marks");
  let box = figure.querySelector(".chosen");
  if (!box) {
    box = svg("rect", { class: "chosen", x: 0, y: 0, width: "100%", height: area.getAttribute("height") });
    area.parentNode.querySelector(".ink").after(box);
  }
  const height = +area.getAttribute("height");
  if (axis.number) put(box, { y: height * (1 - to), height: Math.max(height * (to - from), 2) });
  else put(box, { x: `${100 * from}%`, width: `${100 * Math.max(to - from, 0.004)}%` });
  if (axis.number) box.toggleAttribute("hidden", axesOf(figure).every((one) => !reach(one, field(one)?.value ?? "")));
}

const put = (element, values) => Object.entries(values).forEach(([name, value]) => element.setAttribute(name, value));

// Dragging

let drag = null; // the figure and its axes that are dragged along, and where that began

/** Where the pointer is in a drawing: from the left, and from the bottom, as parts of one. */
function within(figure, { clientX, clientY }) {
  const box = marksOf(figure).canvas.getBoundingClientRect();
  return { x: (clientX - box.left) / box.width, y: 1 - (clientY - box.top) / box.height, box };
}

addEventListener("pointerdown", (event) => {
  const figure = event.target.closest?.("figure.brushed");
  if (!figure?.querySelector(".marks") || event.button || event.pointerType === "touch") return;
  const at = within(figure, event);
  let axes = axesOf(figure).filter((one) => !one.isStill && field(one));
  if (at.y < -0.1 || at.y > 1.1 || at.x < -0.1 || at.x > 1.1) return;
  if (isParallel(figure)) {
    const away = (one) => Math.abs(one.pick.dataset.place - at.x) * at.box.width;
    axes = axes.filter((one) => away(one) < REACH_PX).sort((one, other) => away(one) - away(other)).slice(0, 1);
  }
  if (!axes.length) return;
  event.preventDefault();
  drag = { figure, axes, at, from: event, before: axes.map((one) => field(one).value) };
});

addEventListener("pointermove", (event) => {
  if (drag) return later(() => drag && dragTo(event));
  const figure = event.target.closest?.("figure.brushed.scatter");
  if (figure) later(() => light(nearest(figure, event)));
});

function dragTo(event) {
  const at = within(drag.figure, event);
  const isClick = Math.hypot(event.clientX - drag.from.clientX, event.clientY - drag.from.clientY) < CLICK_PX;
  for (const axis of drag.axes) {
    const along = isParallel(drag.figure) || axis.number ? "y" : "x";
    const part = isParallel(drag.figure) ? axis.part : 1;
    const [from, to] = [clamp(drag.at[along] / part), clamp(at[along] / part)].sort((one, other) => one - other);
    field(axis).value = isClick ? "" : range(axis, from, to);
  }
  draw();
}

addEventListener("pointerup", (event) => {
  if (!drag) return;
  dragTo(event);
  drag = null;
  show();
});

function takeBack() {
  drag?.axes.forEach((axis, n) => (field(axis).value = drag.before[n]));
  drag = null;
  draw();
}

addEventListener("pointercancel", () => drag && takeBack());
addEventListener("keydown", ({ key }) => key === "Escape" && drag && takeBack());

let waiting = null;

/** Do something before the next frame; of several things only the last. */
function later(work) {
  if (!waiting) requestAnimationFrame(() => [waiting, waiting] = [null, waiting()]);
  waiting = work;
}

// Lighting up

function nearest(figure, event) {
  const { x, y, box } = within(figure, event);
  let best = null;
  let least = REACH_PX / 2;
  for (const { number, corners } of marksOf(figure).all) {
    const away = Math.hypot((corners[0] / GRID - x) * box.width, (1 - corners[1] / GRID - y) * box.height);
    if (away < least) [best, least] = [number, away]; // never of a mark without corners, which is away by NaN
  }
  return best;
}

let lit = null; // the number of a mark

/** Have a mark stand out wherever it is; none for null. */
function light(number) {
  if (number === lit) return;
  lit = number;
  for (const row of every("tr[data-mark]")) row.classList.toggle("lit", row.dataset.mark === String(number));
  for (const figure of figures()) marksOf(figure).light(number);
}

for (const kind of ["pointerover", "focusin"])
  document.addEventListener(kind, ({ target }) => {
    const row = target.closest?.("tr[data-mark]");
    if (row) light(+row.dataset.mark);
  });

// The address

/** Have the address say what the form says, and the page what is at it. */
function show() {
  const query = new URLSearchParams();
  for (const [name, value] of new FormData(form)) {
    const plain = { x: "trial", y: "time", sort: "time" }[name];
    if (value.trim() && value !== plain) query.append(name, value.trim());
  }
  history.replaceState(history.state, "", `${location.pathname}?${query}`);
  document.dispatchEvent(new CustomEvent("moved"));
}

form.addEventListener("change", () => {
  draw();
  show();
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  draw();
  show();
});
