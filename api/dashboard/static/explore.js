// Brushes the marks of `drawing/parallel.py`: drags along an axis, or over the dots, choose ranges; so do taps on values.
//
//   <figure class="chart parallel brushed"> has marks: marks.js
//   <g class="pick" data-column="knob.tile" data-low data-high data-log data-values data-whole> an axis; data-still if
//     nothing can be chosen of it, data-place where it is from left to right, data-part as far up as its values reach
//   <form id="ranges"> has the ranges as text, in <input data-range name="knob.tile">: what is dragged goes there
//   <tr data-mark="17"> a row of the table, which lights up with its mark
//
// Marks are told apart at once; then the address changes, and live.js shows what the server says of it.

import { svg } from "./figure.js";
import { Marks } from "./marks.js";

const REACH_PX = 24; // around an axis, and around a dot
const CLICK_PX = 4;
const TAP_PX = 12; // as far as a finger moves that only taps

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
  if (from <= 0 && to >= 1) return ""; // all of it, and those without a value as well
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

/** How far a figure reaches, in the units of its marks. */
const unitsOf = (figure) => marksOf(figure).box.viewBox.baseVal;

/** Where a mark is on an axis of its figure; NaN where it is not. */
function spot(figure, axis, units, { corners }) {
  if (!isParallel(figure)) return axis.number ? 1 - corners[1] / units.height : corners[0] / units.width;
  const depth = corners[2 * axis.number + 1];
  return depth > units.height ? NaN : (1 - depth / units.height) / axis.part;
}

/** Draw what the ranges of the form leave out faintly, and these. */
function draw() {
  const dropped = new Set();
  for (const figure of figures()) {
    const { all } = marksOf(figure);
    const units = unitsOf(figure);
    const slack = 0.5 / units.height;
    for (const axis of axesOf(figure)) {
      const ends = reach(axis, field(axis)?.value ?? "");
      mark(figure, axis, ends);
      if (!ends) continue;
      for (const one of all) {
        const at = spot(figure, axis, units, one);
        if (!(at >= ends[0] - slack && at <= ends[1] + slack) || at > 1 + slack) dropped.add(one.number);
      }
    }
  }
  for (const figure of figures()) marksOf(figure).drop(dropped);
}

const begin = () => figures().forEach(marksOf);
document.addEventListener("renewed", () => {
  lit = null; // its number may be another trial's by now
  begin();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
begin();

const field = ({ column }) => every("[data-range]", form).find((one) => one.name === column);

/** Show what is chosen of an axis. */
function mark(figure, axis, ends) {
  const half = axis.choices ? 0.5 / axis.choices.length : 0;
  const area = figure.querySelector(".marks");
  const height = +area.getAttribute("height");
  const [from, to] = ends ? [clamp(ends[0] - half), clamp(ends[1] + half)] : [0, 1];
  if (isParallel(figure)) {
    let box = axis.pick.querySelector(".chosen");
    if (!ends) return box?.parentNode.remove();
    if (!box) {
      box = svg("rect");
      axis.pick.append(svg("svg", { class: "spot", x: `${100 * axis.pick.dataset.place}%` }, box));
    }
    put(box, { class: "chosen", x: -7, width: 14 });
    return put(box, { y: height * (1 - axis.part * to), height: Math.max(height * axis.part * (to - from), 2) });
  }
  let box = figure.querySelector(".chosen");
  if (!box) {
    box = svg("rect", { class: "chosen", x: 0, y: 0, width: "100%", height });
    area.parentNode.querySelector(".ink").after(box);
  }
  if (axis.number) put(box, { y: height * (1 - to), height: Math.max(height * (to - from), 2) });
  else put(box, { x: `${100 * from}%`, width: `${100 * Math.max(to - from, 0.004)}%` });
  if (axis.number) box.toggleAttribute("hidden", axesOf(figure).every((one) => !reach(one, field(one)?.value ?? "")));
}

const put = (element, values) => Object.entries(values).forEach(([name, value]) => element.setAttribute(name, value));

// Dragging

let drag = null; // the figure and its axes that are dragged along, and where that began
let tap = null; // the axis of choices that a finger is on, and where

/** Where the pointer is in a drawing: from the left, and from the bottom, as parts of one. */
function within(figure, { clientX, clientY }) {
  const box = marksOf(figure).canvas.getBoundingClientRect();
  return { x: (clientX - box.left) / box.width, y: 1 - (clientY - box.top) / box.height, box };
}

addEventListener("pointerdown", (event) => {
  const figure = event.target.closest?.("figure.brushed");
  tap = null;
  if (!figure?.querySelector(".marks") || event.button) return;
  const at = within(figure, event);
  let axes = axesOf(figure).filter((one) => !one.isStill && field(one));
  if (at.y < -0.1 || at.y > 1.1 || at.x < -0.1 || at.x > 1.1) return;
  if (isParallel(figure)) {
    const away = (one) => Math.abs(one.pick.dataset.place - at.x) * at.box.width;
    axes = axes.filter((one) => away(one) < REACH_PX).sort((one, other) => away(one) - away(other)).slice(0, 1);
  }
  if (event.pointerType === "touch") {
    if (isParallel(figure) && axes[0]?.choices) tap = { axis: axes[0], at, from: event };
    return;
  }
  if (!axes.length) return;
  event.preventDefault();
  drag = { figure, axes, at, from: event, before: axes.map((one) => field(one).value) };
});

addEventListener("pointermove", (event) => {
  if (drag) return later(() => drag && dragTo(event));
  const figure = event.target.closest?.("figure.brushed.scatter");
  if (figure?.querySelector(".marks")) later(() => light(nearest(figure, event)));
});

function dragTo(event) {
  const at = within(drag.figure, event);
  const isClick = moved(drag.from, event) < CLICK_PX;
  for (const axis of drag.axes) {
    const along = isParallel(drag.figure) || axis.number ? "y" : "x";
    const part = isParallel(drag.figure) ? axis.part : 1;
    const [from, to] = [clamp(drag.at[along] / part), clamp(at[along] / part)].sort((one, other) => one - other);
    field(axis).value = isClick ? "" : range(axis, from, to);
  }
  draw();
}

const moved = (from, to) => Math.hypot(to.clientX - from.clientX, to.clientY - from.clientY);

/** Choose the value that was tapped, or take it back. */
function toggle({ axis, at }) {
  const value = axis.choices[Math.floor(Math.min(clamp(at.y), 1 - 1e-9) * axis.choices.length)];
  const own = field(axis);
  own.value = own.value === String(value) ? "" : value;
  draw();
  show();
}

addEventListener("pointerup", (event) => {
  if (tap && event.pointerType === "touch" && moved(tap.from, event) < TAP_PX) toggle(tap);
  tap = null;
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

addEventListener("pointercancel", () => {
  tap = null; // the finger scrolls
  if (drag) takeBack();
});
addEventListener("keydown", ({ key }) => key === "Escape" && drag && takeBack());

let waiting = null;

/** Do something before the next frame; of several things only the last. */
function later(work) {
  if (!waiting) {
    requestAnimationFrame(() => {
      const now = waiting;
      waiting = null;
      now();
    });
  }
  waiting = work;
}

// Lighting up

function nearest(figure, event) {
  const { x, y, box } = within(figure, event);
  const units = unitsOf(figure);
  let best = null;
  let least = REACH_PX / 2;
  for (const { number, corners } of marksOf(figure).all) {
    const [across, up] = [corners[0] / units.width, 1 - corners[1] / units.height];
    const away = Math.hypot((across - x) * box.width, (up - y) * box.height);
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
    const { plain } = form.elements[name].dataset ?? {}; // of several fields of a name there is none
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
