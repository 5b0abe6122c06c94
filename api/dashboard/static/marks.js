// The marks of a brushed figure, as drawing/parallel.py makes it: where they are, which are kept, which is lit.
//
//   <path class="line fast kept" data-first="40"> a band of them; the part behind its n-th M is mark 40 + n
//
// They are drawn on a canvas in place of their paths: paths of thousands of lines take a browser ten times as long.
// The paths still say how marks look; they are what is printed, and what there is without a script.

import { html } from "./crosshair.js";
import { svg } from "./figure.js";

const NOWHERE = "-9-9"; // the place of a mark that has none

/** The corners of a mark, x and y in turn, in units of its figure; none where it has no place. */
function corners(part) {
  if (part.startsWith(NOWHERE)) return [];
  const [line, dot] = part.split("h");
  const places = line.split(" ").map(Number);
  return dot ? [...places, places[0] + Number(dot), places[1]] : places;
}

export class Marks {
  constructor(figure) {
    this.box = figure.querySelector(".marks");
    this.drawn = new Map(); // path -> its marks
    this.bands = this.readBands(); // { shape, kind, marks, kept, dropped }: the last two are paths
    this.all = this.bands.flatMap(({ marks }) => marks); // { number, part, corners }
    this.lit = this.box.appendChild(svg("path", { class: `${this.bands[0].shape} lit` }));
    this.canvas = html("canvas");
    const [width, height] = ["width", "height"].map((name) => this.box.getAttribute(name));
    this.box.after(svg("foreignObject", { class: "ink", width, height }, this.canvas));
    this.box.classList.add("inked");
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  readBands() {
    const bands = new Map();
    for (const path of this.box.querySelectorAll("path[data-first]")) {
      const [shape, kind, state] = path.classList;
      const band = bands.get(kind) ?? { shape, kind, marks: [] };
      const parts = path.getAttribute("d").split("M").slice(1);
      const marks = parts.map((part, n) => ({ number: +path.dataset.first + n, part, corners: corners(part) }));
      this.drawn.set(path, marks);
      band.marks.push(...marks);
      bands.set(kind, Object.assign(band, { [state]: path }));
    }
    for (const band of bands.values()) {
      const missing = (state) => svg("path", { class: `${band.shape} ${band.kind} ${state}`, d: "" });
      if (!band.kept) this.box.append((band.kept = missing("kept")));
      if (!band.dropped) this.box.prepend((band.dropped = missing("dropped")));
    }
    return [...bands.values()];
  }

  /** Draw marks of some numbers faintly. */
  drop(numbers) {
    for (const { marks, kept, dropped } of this.bands) {
      this.put(kept, marks.filter(({ number }) => !numbers.has(number)));
      this.put(dropped, marks.filter(({ number }) => numbers.has(number)));
    }
    this.draw();
  }

  /** Have the mark of a number stand out; none for null. */
  light(lit) {
    this.put(this.lit, this.all.filter(({ number }) => number === lit));
    this.draw();
  }

  put(path, marks) {
    path.setAttribute("d", marks.map(({ part }) => `M${part}`).join(""));
    this.drawn.set(path, marks);
  }

  draw() {
    const { canvas, box } = this;
    const { width, height } = canvas.getBoundingClientRect();
    const units = box.viewBox.baseVal;
    canvas.width = width * devicePixelRatio;
    canvas.height = height * devicePixelRatio;
    const pen = canvas.getContext("2d");
    pen.scale(devicePixelRatio, devicePixelRatio);
    for (const path of box.children) this.stroke(pen, path, width / units.width, height / units.height);
  }

  /** Draw the marks of a path in its style; so many pixels are a unit of the figure. */
  stroke(pen, path, across, down) {
    const { stroke, strokeWidth, strokeDasharray, strokeLinecap, opacity } = getComputedStyle(path);
    const dashes = strokeDasharray === "none" ? [] : strokeDasharray.split(",").map(parseFloat);
    Object.assign(pen, { strokeStyle: stroke, lineWidth: parseFloat(strokeWidth), lineCap: strokeLinecap });
    Object.assign(pen, { lineJoin: "round", globalAlpha: opacity });
    pen.setLineDash(dashes);
    pen.beginPath();
    for (const { corners: at } of this.drawn.get(path) ?? []) {
      for (let n = 0; n < at.length; n += 2) {
        if (n) pen.lineTo(at[n] * across, at[n + 1] * down);
        else pen.moveTo(at[n] * across, at[n + 1] * down);
      }
    }
    pen.stroke();
  }
}
