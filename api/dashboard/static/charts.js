// Makes charts answer: to the pointer, to keys and to fingers. Without it they are what the server drew.
//
//   <figure class="chart" data-figure="..."> is a chart: what it has is said in drawing/figure.py
//   #chart-NAME=x_0.5_10*off_best in the address is how one is looked at: see views.js
//
// The drawing of the server stays until somebody asks for another view of it. All that people did to a chart is kept
// when the page is renewed (live.js), and the link to it can be copied.

import { Crosshair, html } from "./crosshair.js";
import { csv, picture, png, save } from "./export.js";
import { draw } from "./figure.js";
import { Gestures } from "./gestures.js";
import * as views from "./views.js";

const charts = new Map(); // by name

/** What the address says of a chart. */
const said = (name) => new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B")).get(`chart-${name}`) ?? "";

/** Have the address say that a chart is looked at so; what else it says stays. */
function note(name, text) {
  const others = location.hash.slice(1).split("&").filter((part) => part && !part.startsWith(`chart-${name}=`));
  const hash = [...others, ...(text ? [`chart-${name}=${text}`] : [])].join("&");
  history.replaceState(history.state, "", location.pathname + location.search + (hash && `#${hash}`));
}

class Chart {
  /** `before` is the chart that was there until the page was renewed. */
  constructor(element, name, before) {
    this.element = element;
    this.name = name;
    this.figure = views.unpack(JSON.parse(element.dataset.figure));
    this.view = before?.view ?? views.readView(said(name));
    this.frame = element.querySelector("svg.frame");
    this.title = this.frame.querySelector("title").textContent;
    this.crosshair = new Crosshair(this);
    this.build();
    this.gestures = new Gestures(this);
    if (views.isWhole(this.view)) this.look();
    else this.redraw();
    if (before) this.menu.open = before.menu.open;
    if (before?.crosshair.target) this.crosshair.restore(before.crosshair.target);
  }

  get isZoomed() {
    return views.isZoomed(this.view);
  }

  // What is put around the drawing. All that can have the focus has an `id`: live.js finds it again.

  build() {
    // Titles would pop up over the values: the name of the drawing is kept for those who don't see it.
    this.frame.setAttribute("aria-label", this.title);
    this.frame.querySelectorAll("title").forEach((one) => one.remove());
    const about = { role: "application", "aria-roledescription": "chart", "aria-label": this.title };
    this.plane = html("div", { class: "plane", id: this.id("plane"), tabindex: 0, ...about });
    this.frame.replaceWith(this.plane);
    this.plane.append(this.frame, this.crosshair.readout);
    this.plane.before(this.tools(), this.crosshair.spoken);
    for (const line of this.element.querySelectorAll("li[data-of]")) this.addSwitch(line);
  }

  id(part) {
    return `chart-${this.name}-${part}`;
  }

  button(part, text, label, act) {
    const made = html("button", { type: "button", id: this.id(part), "aria-label": `${label}: ${this.title}` }, text);
    made.addEventListener("click", () => Promise.resolve(act()).catch((error) => this.refuse(error)));
    return made;
  }

  tools() {
    const { figure } = this;
    const closer = this.button("closer", "Zoom in", "Zoom in", () => this.zoomBy(0.5));
    this.whole = this.button("whole", "Whole", "Show the whole chart", () => this.showWhole());
    this.logs = ["x", "y"]
      .filter((axis) => figure[axis].log || views.mayBeLog(figure, axis))
      .map((axis) => {
        const label = `Logarithmic ${axis}, ${figure[axis].label}`;
        return { axis, button: this.button(`log-${axis}`, `log ${axis}`, label, () => this.toggleLog(axis)) };
      });
    this.menu = this.more();
    return html("div", { class: "tools scripted-only" }, closer, this.whole, ...this.logs.map(({ button }) => button), this.menu);
  }

  more() {
    const link = this.button("link", "Copy link to this view", "Copy link to this view", () => this.copyLink());
    link.classList.add("copies");
    const files = Object.entries({
      csv: () => new Blob([csv(this.figure, this.view)], { type: "text/csv" }),
      svg: () => new Blob([picture(this.element, this.title).text], { type: "image/svg+xml" }),
      png: () => png(picture(this.element, this.title)),
    }).map(([suffix, make]) => {
      const words = `Download ${suffix.toUpperCase()}`;
      return this.button(suffix, words, words, async () => {
        save(`${this.name}.${suffix}`, await make());
        this.closeMenu();
      });
    });
    const keys = html("small", {}, "Keys on the chart: arrows, + and -, Enter, Escape");
    const summary = html("summary", { id: this.id("more"), "aria-label": `More: ${this.title}` }, "More");
    return html("details", { class: "menu", id: this.id("menu") }, summary, html("div", {}, link, ...files, keys));
  }

  /** The key of a line of the legend becomes a switch of what it stands for. */
  addSwitch(line) {
    const { of } = line.dataset;
    const { series, marks } = this.figure;
    const part = /^\d+$/.test(of) ? series[of] : marks.find((mark) => mark.kind === of);
    const id = part?.id ?? of;
    const words = `Show ${line.querySelector(".name").textContent}`;
    const about = { type: "button", class: "switch scripted-only", "aria-label": words, title: "Switch on and off" };
    const button = html("button", { ...about, id: this.id(`of-${id}`), "data-id": id });
    const key = line.querySelector(".key");
    key.replaceWith(button);
    button.append(key);
    button.addEventListener("click", () => {
      const off = new Set(this.view.off);
      if (!off.delete(id)) off.add(id);
      this.show({ ...this.view, off });
    });
  }

  // Views

  /** Show another view, and have the address say so. */
  show(view) {
    this.view = view;
    note(this.name, views.writeView(view));
    this.redraw();
  }

  showWhole() {
    if (!this.isZoomed) return;
    if (document.activeElement === this.whole) this.plane.focus({ preventScroll: true }); // the button goes
    this.show({ ...this.view, x: null, y: null });
  }

  toggleLog(axis) {
    const isLog = !this.scales[axis].isLog;
    const log = { ...this.view.log, [axis]: isLog === this.figure[axis].log ? undefined : isLog };
    this.show({ ...this.view, log });
  }

  /** Zoom around the crosshair, or the middle. */
  zoomBy(factor) {
    const { spot, x } = this.crosshair.target ?? {};
    const ends = (axis, value) => {
      const place = value === undefined ? 0.5 : this.scales[axis].place(value);
      return [place - place * factor, place + (1 - place) * factor];
    };
    const places = { x: ends("x", spot?.x ?? x), y: ends("y", spot?.y) };
    this.show(views.zoomTo(this.figure, this.view, places));
  }

  redraw() {
    const { target } = this.crosshair;
    this.look();
    draw(this.frame, this.figure, this.view, this.scales);
    if (target) this.crosshair.restore(target);
  }

  /** What follows from the view, but for the drawing. */
  look() {
    this.scales = views.scalesOf(this.figure, this.view);
    this.spots = views.spotsOf(this.figure, this.view, this.scales);
    this.whole.hidden = !this.isZoomed;
    for (const { axis, button } of this.logs) button.ariaPressed = String(this.scales[axis].isLog);
    for (const button of this.element.querySelectorAll(".switch")) {
      const isOff = this.view.off.has(button.dataset.id);
      button.ariaPressed = String(!isOff);
      button.closest("li").classList.toggle("off", isOff);
    }
  }

  /** Where the frame lies in the plane, and how wide that is, in pixels. */
  area() {
    const style = getComputedStyle(this.frame);
    const [left, right, top] = ["paddingLeft", "paddingRight", "paddingTop"].map((name) => parseFloat(style[name]));
    const outer = this.plane.clientWidth;
    return { left, top, width: outer - left - right, height: this.figure.height, outer };
  }

  /** Where a pointer is, in places of the frame: 0 to 1 from its left and from its bottom. */
  places({ clientX, clientY }) {
    const { left, top, width, height } = this.area();
    const box = this.plane.getBoundingClientRect();
    return { x: (clientX - box.left - left) / width, y: 1 - (clientY - box.top - top) / height };
  }

  // The menu

  async copyLink() {
    await navigator.clipboard.writeText(location.href);
    this.crosshair.spoken.textContent = "The link is copied.";
    this.closeMenu();
  }

  closeMenu() {
    this.menu.open = false;
    this.menu.querySelector("summary").focus({ preventScroll: true });
  }

  refuse(error) {
    document.dispatchEvent(new CustomEvent("refused", { detail: error.message }));
  }
}

/** Make all charts answer that don't yet. One that was renewed goes on as the one before it. */
function begin() {
  const figures = [...document.querySelectorAll("figure[data-figure]")];
  const names = views.distinct(figures.map(nameOf));
  figures.forEach((figure, n) => {
    const before = charts.get(names[n]);
    if (before?.element !== figure) charts.set(names[n], new Chart(figure, names[n], before));
  });
}

/** What a figure is called in addresses: as it says, or by its title. */
function nameOf(figure) {
  const frame = figure.querySelector("svg.frame");
  return views.slug(JSON.parse(figure.dataset.figure).name ?? frame.ariaLabel ?? frame.querySelector("title").textContent);
}

document.addEventListener("renewed", begin);
addEventListener("hashchange", () => {
  for (const [name, chart] of charts) {
    const text = said(name);
    if (text === views.writeView(chart.view)) continue;
    chart.view = views.readView(text);
    chart.redraw();
  }
});
document.addEventListener("pointerdown", ({ target }) => {
  for (const menu of document.querySelectorAll(".chart .menu[open]")) if (!menu.contains(target)) menu.open = false;
});
begin();
