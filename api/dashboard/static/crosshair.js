// The crosshair of a chart: which values are where the pointer or the keys are, beside the drawing and aloud.
//
// It points at one thing: `{ x }` on steps, all of which have a value there, and `{ spot }` on others, which is a mark,
// a dot or a column.

import { at, seriesClass, svg } from "./figure.js";
import { valueText } from "./scales.js";
import * as views from "./views.js";

const GAP_PX = 12; // between the crosshair and the values beside it

/** An element of HTML: `text` and children are no markup. */
export function html(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value != null) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const row = ({ kind, name, value }) =>
  html("div", { class: kind || null }, html("span", { class: "swatch" }), html("span", { class: "name" }, name), html("b", {}, value));

/** The values of all series of steps that hold at a place of x. Those without a colour are told together. */
function tellSteps(figure, view, x) {
  const told = (point) => point?.text || (point ? valueText(point.y, figure.y.unit) : "-");
  const held = views.shownSeries(figure, view).map((part) => ({ part, point: views.valueAt(part, x) }));
  const own = held.filter(({ part }) => part.n < views.SERIES);
  const others = held.filter(({ part, point }) => part.n >= views.SERIES && point).sort((a, b) => a.point.y - b.point.y);
  const number = (part) => (figure.series.length > 1 ? `${part.n + 1} ` : "");
  const lines = own.map(({ part, point }) => ({ kind: seriesClass(part.n), name: number(part) + part.name, value: told(point) }));
  if (others.length) {
    const ends = [...new Set([others[0], others.at(-1)].map(({ point }) => told(point)))];
    lines.push({ kind: "other", name: `${others.length} more`, value: ends.join(" to ") });
  }
  const rings = own.filter(({ point }) => point).map(({ part, point }) => ({ kind: seriesClass(part.n), x, y: point.y }));
  return { head: `${figure.x.label} ${valueText(x, figure.x.unit)}`, lines, rings };
}

/** What there is to say of a mark, a dot or a column. */
function tellSpot(figure, spot) {
  if (figure.kind === "histogram") return { head: spot.tip, lines: [], rings: [] };
  const lines = ["x", "y"].map((axis) => ({ name: figure[axis].label, value: valueText(spot[axis], figure[axis].unit) }));
  return { head: spot.tip ? `${spot.of}: ${spot.tip}` : spot.of, lines, rings: [{ kind: "candidate", ...spot }] };
}

export class Crosshair {
  /** `chart` has the figure, its view and the scales, and the elements around its drawing. */
  constructor(chart) {
    this.chart = chart;
    this.target = null; // what it points at
    this.readout = html("div", { class: "readout scripted-only", "aria-hidden": "true", hidden: "" });
    this.spoken = html("p", { class: "unseen scripted-only", "aria-live": "polite" });
  }

  /** Point at something; `isSpoken`: it is told aloud too, as keys have it. */
  point(target, isSpoken = false) {
    const { figure, view, scales, frame } = this.chart;
    const { head, lines, rings } = target.spot ? tellSpot(figure, target.spot) : tellSteps(figure, view, target.x);
    const place = scales.x.place(target.spot?.x ?? target.x);
    const hair = svg("line", { class: "hair", x1: `${100 * place}%`, x2: `${100 * place}%`, y2: figure.height });
    const around = rings
      .filter(({ y }) => scales.y.has(y))
      .map(({ kind, x, y }) => at(kind, scales.x.place(x), figure.height * (1 - scales.y.place(y)), svg("circle", { class: "ring", r: 5 })));
    frame.querySelector(".cross")?.remove();
    frame.append(svg("g", { class: "cross" }, hair, ...around));
    this.target = target;
    this.readout.replaceChildren(html("strong", {}, head), ...lines.map(row));
    this.readout.hidden = false;
    this.put(place);
    if (isSpoken) this.spoken.textContent = [head, ...lines.map(({ name, value }) => `${name} ${value}`)].join(", ");
  }

  /** Put the values beside the crosshair, on the side with more room. */
  put(place) {
    const { left, width, outer } = this.chart.area();
    const from = left + place * width;
    const isLeft = place > 0.5;
    this.readout.style.left = isLeft ? "auto" : `${from + GAP_PX}px`;
    this.readout.style.right = isLeft ? `${outer - from + GAP_PX}px` : "auto";
  }

  hide() {
    this.target = null;
    this.readout.hidden = true;
    this.chart.frame.querySelector(".cross")?.remove();
  }

  /** Point at the same again, if it is still seen. */
  restore(target) {
    const { spots, scales } = this.chart;
    if (target.spot) {
      const { x, y, of } = target.spot;
      const spot = spots.find((one) => one.x === x && one.y === y && one.of === of);
      if (spot) return this.point({ spot });
    } else if (scales.x.has(target.x)) return this.point(target);
    return this.hide();
  }

  /** Point at what is nearest to the pointer, which is at these places of the frame. */
  follow(places) {
    const { figure, scales, spots } = this.chart;
    if (places.x < -0.05 || places.x > 1.05 || places.y < -0.1 || places.y > 1.1) return this.hide();
    if (figure.kind === "steps") {
      const x = scales.x.value(Math.min(Math.max(places.x, 0), 1));
      return this.point({ x: figure.x.unit === "count" ? Math.round(x) : x });
    }
    const spot =
      figure.kind === "histogram"
        ? (spots.findLast((one) => scales.x.part(one.x) <= places.x) ?? spots[0])
        : views.nearestSpot(spots, scales, places, this.chart.area());
    return spot ? this.point({ spot }) : this.hide();
  }

  /** Go on by so many points along an axis; where there is no crosshair yet, to the first or last. */
  step(axis, by) {
    const { figure, view, scales, spots } = this.chart;
    const isSteps = figure.kind === "steps";
    if (isSteps && axis === "y") return;
    const other = axis === "x" ? "y" : "x";
    const stops = isSteps
      ? views.stopsOf(figure, view, scales)
      : [...spots].sort((a, b) => a[axis] - b[axis] || a[other] - b[other]);
    if (!stops.length) return;
    let now = by < 0 ? stops.length : -1;
    if (isSteps && this.target) {
      const { x } = this.target;
      now = stops.findLastIndex((stop) => stop <= x) + (by < 0 && !stops.includes(x) ? 1 : 0); // it may be in between
    } else if (this.target) now = stops.indexOf(this.target.spot);
    const stop = stops[Math.min(Math.max(now + by, 0), stops.length - 1)];
    this.point(isSteps ? { x: stop } : { spot: stop }, true);
  }
}
