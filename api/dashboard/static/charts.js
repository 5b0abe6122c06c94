// Makes charts answer: to the pointer, to keys and to fingers. Without it they are what the server drew.
//
//   <figure class="chart" data-figure="..."> is a chart: what it has is said in drawing/data.py
//   #chart-NAME=x_0.5_10*off_best in the address is how one is looked at: see views.js
//
// The drawing of the server stays until somebody asks for another view of it. All that people did to a chart is kept
// when the page is renewed (live.js), and the link to it can be copied.

import { csv, picture, png, save } from "./export.js";
import { at, draw, seriesClass, svg } from "./figure.js";
import { valueText } from "./scales.js";
import * as views from "./views.js";

const DRAG_PX = 4; // less is a click
const FAR = 10; // stops that an arrow key goes with Shift
const FINGER_PX = 24; // a finger that comes back so near means the same place

const charts = new Map(); // by name

/** An element of HTML: `text` and children are no markup. */
function html(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value != null) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** What the address says of a chart. */
const said = (name) => new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B")).get(`chart-${name}`) ?? "";

/** Have the address say that a chart is looked at so; what else it says stays. */
function note(name, text) {
  const others = location.hash.slice(1).split("&").filter((part) => part && !part.startsWith(`chart-${name}=`));
  const hash = [...others, ...(text ? [`chart-${name}=${text}`] : [])].join("&");
  history.replaceState(history.state, "", location.pathname + location.search + (hash && `#${hash}`));
}

class Chart {
  constructor(element, name, before) {
    this.element = element;
    this.name = name;
    this.figure = views.unpack(JSON.parse(element.dataset.figure));
    this.frame = element.querySelector("svg.frame");
    this.title = this.frame.querySelector("title").textContent;
    this.view = before?.view ?? views.readView(said(name));
    this.cross = null; // { x } of steps, { spot } of others
    this.drag = null; // { from, to } in places
    this.build(before?.menu.open ?? false);
    if (!views.isWhole(this.view)) this.redraw();
    else this.look();
    if (before?.cross) this.restore(before.cross);
  }

  id(part) {
    return `chart-${this.name}-${part}`;
  }

  // What is put around the drawing

  build(isOpen) {
    // Titles would pop up over the values: the name of the drawing is kept for those who don't see it.
    this.frame.setAttribute("aria-label", this.title);
    this.frame.querySelectorAll("title").forEach((one) => one.remove());
    this.plane = html("div", { class: "plane", id: this.id("plane"), tabindex: 0, role: "application", "aria-roledescription": "chart", "aria-label": this.title });
    this.readout = html("div", { class: "readout scripted-only", "aria-hidden": "true", hidden: "" });
    this.frame.replaceWith(this.plane);
    this.plane.append(this.frame, this.readout);
    this.spoken = html("p", { class: "unseen scripted-only", "aria-live": "polite" });
    this.plane.before(this.tools(isOpen), this.spoken);
    for (const line of this.element.querySelectorAll("li[data-of]")) this.addSwitch(line);
    this.listen();
  }

  tools(isOpen) {
    const button = (part, text, label, act) => {
      const made = html("button", { type: "button", id: this.id(part), "aria-label": `${label}: ${this.title}` }, text);
      made.addEventListener("click", act);
      return made;
    };
    this.closer = button("closer", "+", "Zoom in", () => this.zoomBy(0.5));
    this.whole = button("whole", "Whole", "Show the whole chart", () => this.showWhole());
    this.logs = ["x", "y"]
      .filter((axis) => this.figure[axis].log || views.mayBeLog(this.figure, axis))
      .map((axis) => [axis, button(`log-${axis}`, `log ${axis}`, `Logarithmic ${axis}, ${this.figure[axis].label}`, () => this.toggleLog(axis))]);
    const files = [
      ["csv", "Download CSV", () => this.save("csv", new Blob([csv(this.figure, this.view)], { type: "text/csv" }))],
      ["svg", "Download SVG", () => this.save("svg", new Blob([picture(this.element, this.title).text], { type: "image/svg+xml" }))],
      ["png", "Download PNG", async () => this.save("png", await png(picture(this.element, this.title)))],
    ].map(([kind, text, act]) => button(kind, text, text, () => act()?.catch((error) => this.refuse(error))));
    const link = button("link", "Copy link to this view", "Copy link to this view", () => this.copyLink());
    link.classList.add("copies");
    const more = html("summary", { id: this.id("more"), "aria-label": `More: ${this.title}` }, "More");
    const keys = html("small", {}, "Keys on the chart: arrows, + and -, Enter, Escape");
    this.menu = html("details", { class: "menu", id: this.id("menu") }, more, html("div", {}, link, ...files, keys));
    this.menu.open = isOpen;
    return html("div", { class: "tools scripted-only" }, this.closer, this.whole, ...this.logs.map(([, one]) => one), this.menu);
  }

  /** The key of a line of the legend becomes a switch of what it stands for. */
  addSwitch(line) {
    const of = line.dataset.of;
    const id = /^\d+$/.test(of) ? this.figure.series[of]?.id : (this.figure.marks.find((mark) => mark.kind === of)?.id ?? of);
    const words = line.querySelector(".name").textContent;
    const button = html("button", { type: "button", class: "switch scripted-only", id: this.id(`of-${id}`), "aria-label": `Show ${words}`, title: "Switch on and off" });
    const key = line.querySelector(".key");
    key.replaceWith(button);
    button.append(key);
    button.dataset.id = id;
    button.addEventListener("click", () => {
      const off = new Set(this.view.off);
      if (!off.delete(id)) off.add(id);
      this.show({ ...this.view, off });
    });
  }

  listen() {
    const plane = this.plane;
    plane.addEventListener("pointerdown", (event) => this.press(event));
    plane.addEventListener("pointermove", (event) => this.move(event));
    plane.addEventListener("pointerup", (event) => this.release(event));
    plane.addEventListener("pointercancel", () => this.endDrag());
    plane.addEventListener("pointerleave", ({ pointerType }) => pointerType !== "touch" && !this.drag && this.hide());
    plane.addEventListener("blur", () => this.hide());
    plane.addEventListener("dblclick", () => this.showWhole());
    plane.addEventListener("dragstart", (event) => event.preventDefault()); // a link is no thing to be carried away
    plane.addEventListener("click", (event) => this.swallows && event.preventDefault(), true);
    this.element.addEventListener("keydown", (event) => this.key(event));
  }

  // Views

  /** Show another view, and have the address say so. */
  show(view) {
    this.view = view;
    note(this.name, views.writeView(view));
    this.redraw();
  }

  showWhole() {
    if (views.isZoomed(this.view)) this.show({ ...this.view, x: null, y: null });
    if (this.element.contains(document.activeElement)) this.plane.focus({ preventScroll: true }); // its button goes
  }

  toggleLog(axis) {
    const isLog = !this.scales[axis].isLog;
    this.show({ ...this.view, log: { ...this.view.log, [axis]: isLog === this.figure[axis].log ? undefined : isLog } });
  }

  /** Zoom around the crosshair, or the middle. */
  zoomBy(factor) {
    const around = (axis, value) => {
      const place = value === undefined ? 0.5 : this.scales[axis].place(value);
      return [place - place * factor, place + (1 - place) * factor];
    };
    const { x, y } = this.cross?.spot ?? { x: this.cross?.x };
    this.show(views.zoomTo(this.figure, this.view, { x: around("x", x), y: around("y", y) }));
  }

  redraw() {
    this.look();
    draw(this.frame, this.figure, this.view, this.scales);
    if (this.cross) this.restore(this.cross);
  }

  /** What follows from the view, but for the drawing. */
  look() {
    this.scales = views.scalesOf(this.figure, this.view);
    this.spots = views.spotsOf(this.figure, this.view, this.scales);
    this.whole.hidden = !views.isZoomed(this.view);
    for (const [axis, button] of this.logs) button.ariaPressed = String(this.scales[axis].isLog);
    for (const button of this.element.querySelectorAll(".switch")) {
      const isOff = this.view.off.has(button.dataset.id);
      button.ariaPressed = String(!isOff);
      button.closest("li").classList.toggle("off", isOff);
    }
  }

  // The crosshair

  /** Show a crosshair again, where it was. */
  restore(cross) {
    if (cross.spot) {
      const { x, y, of } = cross.spot;
      const spot = this.spots.find((one) => one.x === x && one.y === y && one.of === of);
      if (spot) this.point({ spot });
      else this.hide();
    } else if (this.scales.x.has(cross.x)) this.point(cross);
    else this.hide();
  }

  /** Point at something: draw the crosshair and tell the values there; aloud if `isSpoken`. */
  point(cross, isSpoken = false) {
    const { x, y } = this.scales;
    const { head, lines, rings } = cross.spot ? this.tellSpot(cross.spot) : this.tellSteps(cross.x);
    const place = Math.min(x.place(cross.spot?.x ?? cross.x), 1);
    const height = this.figure.height;
    const drawn = svg("g", { class: "cross" }, svg("line", { class: "hair", x1: `${100 * place}%`, x2: `${100 * place}%`, y2: height }));
    for (const ring of rings) drawn.append(at(ring.kind, x.place(ring.x), height * (1 - y.place(ring.y)), svg("circle", { class: "ring", r: 5 })));
    this.frame.querySelector(".cross")?.remove();
    this.frame.append(drawn);
    this.cross = cross;
    const row = ({ kind, name, value }) =>
      html("div", { class: kind }, html("span", { class: "swatch" }), html("span", { class: "name" }, name), html("b", {}, value));
    this.readout.replaceChildren(html("strong", {}, head), ...lines.map(row));
    this.readout.hidden = false;
    const { left, width } = this.area();
    const isLeft = place > 0.5;
    this.readout.style.left = isLeft ? "auto" : `${left + place * width + 12}px`;
    this.readout.style.right = isLeft ? `${this.plane.clientWidth - left - place * width + 12}px` : "auto";
    if (isSpoken) this.spoken.textContent = [head, ...lines.map(({ name, value }) => `${name} ${value}`)].join(", ");
  }

  hide() {
    this.cross = null;
    this.readout.hidden = true;
    this.frame.querySelector(".cross")?.remove();
  }

  /** The values of all series of steps that hold at a place of x. Those without a colour are told together. */
  tellSteps(at) {
    const { x, y } = this.figure;
    const told = (point) => point?.text || (point ? valueText(point.y, y.unit) : "-");
    const held = views.shownSeries(this.figure, this.view).map((part) => ({ part, point: views.valueAt(part, at) }));
    const own = held.filter(({ part }) => part.n < views.SERIES);
    const others = held.filter(({ part, point }) => part.n >= views.SERIES && point).sort((a, b) => a.point.y - b.point.y);
    const number = (part) => (this.figure.series.length > 1 ? `${part.n + 1} ` : "");
    const lines = own.map(({ part, point }) => ({ kind: seriesClass(part.n), name: number(part) + part.name, value: told(point) }));
    if (others.length) {
      const ends = [...new Set([others[0], others.at(-1)].map(({ point }) => told(point)))];
      lines.push({ kind: "other", name: `${others.length} more`, value: ends.join(" to ") });
    }
    const rings = own.filter(({ point }) => point && this.scales.y.has(point.y));
    return {
      head: `${x.label} ${valueText(x.unit === "count" ? Math.round(at) : at, x.unit)}`,
      lines,
      rings: rings.map(({ part, point }) => ({ kind: seriesClass(part.n), x: at, y: point.y })),
    };
  }

  tellSpot(spot) {
    const { x, y, kind } = this.figure;
    if (kind === "histogram") return { head: spot.tip, lines: [], rings: [] };
    const lines = [["x", x], ["y", y]].map(([axis, { label, unit }]) => ({ kind: "", name: label, value: valueText(spot[axis], unit) }));
    return { head: spot.tip ? `${spot.of}: ${spot.tip}` : spot.of, lines, rings: [{ kind: "", ...spot, kind: spot.kind ?? "candidate" }] };
  }

  /** Where the frame lies in the plane, in pixels. */
  area() {
    const style = getComputedStyle(this.frame);
    const [left, right, top] = ["paddingLeft", "paddingRight", "paddingTop"].map((name) => parseFloat(style[name]));
    return { left, top, width: this.plane.clientWidth - left - right, height: this.figure.height };
  }

  /** Where the pointer is, in places of the frame: 0 to 1 from its left and from its bottom. */
  places(event) {
    const { left, top, width, height } = this.area();
    const box = this.plane.getBoundingClientRect();
    return { x: (event.clientX - box.left - left) / width, y: 1 - (event.clientY - box.top - top) / height };
  }

  follow(places) {
    const isOutside = places.x < -0.05 || places.x > 1.05 || places.y < -0.1 || places.y > 1.1;
    if (isOutside) return this.hide();
    if (this.figure.kind === "steps") {
      const at = this.scales.x.value(Math.min(Math.max(places.x, 0), 1));
      return this.point({ x: this.figure.x.unit === "count" ? Math.round(at) : at });
    }
    const spot = this.figure.kind === "histogram" ? this.columnAt(places.x) : views.nearestSpot(this.spots, this.scales, places, this.area());
    if (spot) this.point({ spot });
    else this.hide();
  }

  /** The column over a place: the last that begins before it. */
  columnAt(place) {
    const begun = this.spots.filter((spot) => this.scales.x.part(spot.x) <= place);
    return begun.at(-1) ?? this.spots[0];
  }

  // The pointer

  press(event) {
    this.swallows = false;
    const places = this.places(event);
    if (event.pointerType === "touch") {
      const before = this.touched;
      this.touched = event;
      this.swallows = !this.cross || !before || Math.hypot(event.clientX - before.clientX, event.clientY - before.clientY) > FINGER_PX;
      this.follow(places); // a first tap shows what is there, a second one follows its link
    } else if (event.button === 0 && places.x > -0.02 && places.x < 1.02) this.drag = { from: places, begun: event, isMoved: false };
  }

  move(event) {
    const places = this.places(event);
    const { drag } = this;
    if (!drag) return this.follow(places);
    if (!drag.isMoved) {
      const { clientX, clientY, pointerId } = drag.begun;
      if (Math.hypot(event.clientX - clientX, event.clientY - clientY) < DRAG_PX) return;
      drag.isMoved = true;
      this.plane.setPointerCapture(pointerId);
      this.hide();
    }
    drag.to = places;
    this.drawDrag();
  }

  /** The part that is being chosen. */
  drawDrag() {
    const { from, to } = this.drag;
    const ends = (axis) => [from[axis], to[axis]].sort((a, b) => a - b).map((place) => Math.min(Math.max(place, 0), 1));
    const [[left, right], [low, high]] = [ends("x"), this.figure.kind === "scatter" ? ends("y") : [0, 1]];
    this.chosen ??= svg("rect", { class: "chosen" });
    const { height } = this.figure;
    const box = { x: `${100 * left}%`, width: `${100 * (right - left)}%`, y: height * (1 - high), height: height * (high - low) };
    for (const [name, value] of Object.entries(box)) this.chosen.setAttribute(name, value);
    if (!this.chosen.isConnected) this.frame.append(this.chosen);
    return { x: [left, right], y: [low, high] };
  }

  release() {
    if (!this.drag?.isMoved) return (this.drag = null);
    const places = this.drawDrag();
    this.swallows = true; // where it ends may be a link
    this.endDrag();
    this.show(views.zoomTo(this.figure, this.view, places));
  }

  endDrag() {
    this.drag = null;
    this.chosen?.remove();
  }

  // Keys

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Escape") return this.escape(event);
    if (event.target !== this.plane) return;
    const far = event.shiftKey ? FAR : 1;
    const acts = {
      ArrowRight: () => this.step("x", far),
      ArrowLeft: () => this.step("x", -far),
      ArrowUp: () => this.step("y", far),
      ArrowDown: () => this.step("y", -far),
      Home: () => this.step("x", -Infinity),
      End: () => this.step("x", Infinity),
      "+": () => this.zoomBy(0.5),
      "=": () => this.zoomBy(0.5),
      "-": () => this.zoomBy(2),
      Enter: () => this.cross?.spot?.href && location.assign(this.cross.spot.href),
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  escape(event) {
    if (this.drag) this.endDrag();
    else if (this.menu.open) {
      this.menu.open = false;
      this.menu.querySelector("summary").focus();
    } else if (views.isZoomed(this.view)) this.showWhole();
    else if (this.cross) this.hide();
    else return;
    event.preventDefault();
  }

  /** Go on to the next point along an axis; where there is no crosshair yet, to the first or last. */
  step(axis, by) {
    const isSteps = this.figure.kind === "steps";
    if (isSteps && axis === "y") return;
    const other = axis === "x" ? "y" : "x";
    const stops = isSteps
      ? views.stopsOf(this.figure, this.view, this.scales)
      : [...this.spots].sort((a, b) => a[axis] - b[axis] || a[other] - b[other]);
    if (!stops.length) return;
    let now = -1;
    if (isSteps && this.cross) now = stops.findLastIndex((stop) => stop <= this.cross.x) + (by < 0 && !stops.includes(this.cross.x));
    else if (this.cross) now = stops.indexOf(this.cross.spot);
    else if (by < 0) now = stops.length;
    const stop = stops[Math.min(Math.max(now + by, 0), stops.length - 1)];
    this.point(isSteps ? { x: stop } : { spot: stop }, true);
  }

  // The menu

  save(suffix, blob) {
    save(`${this.name}.${suffix}`, blob);
    this.menu.open = false;
  }

  async copyLink() {
    await navigator.clipboard.writeText(location.href).then(
      () => (this.spoken.textContent = "The link is copied."),
      (error) => this.refuse(error),
    );
    this.menu.open = false;
    this.menu.querySelector("summary").focus();
  }

  refuse(error) {
    document.dispatchEvent(new CustomEvent("refused", { detail: error.message }));
  }
}

/** Make all charts answer that don't yet. One that was renewed goes on as the one before it. */
function begin() {
  const figures = [...document.querySelectorAll("figure[data-figure]")];
  const titles = figures.map((one) => one.querySelector("svg.frame > title, svg.frame[aria-label]"));
  const own = figures.map((one, n) => views.slug(JSON.parse(one.dataset.figure).name || titles[n].ariaLabel || titles[n].textContent));
  views.distinct(own).forEach((name, n) => {
    if (charts.get(name)?.element !== figures[n]) charts.set(name, new Chart(figures[n], name, charts.get(name)));
  });
}

document.addEventListener("renewed", begin);
addEventListener("hashchange", () => {
  for (const [name, chart] of charts) {
    const view = views.readView(said(name));
    if (views.writeView(view) === views.writeView(chart.view)) continue;
    chart.view = view;
    chart.redraw();
  }
});
document.addEventListener("pointerdown", ({ target }) => {
  for (const menu of document.querySelectorAll(".chart .menu[open]")) if (!menu.contains(target)) menu.open = false;
});
begin();
