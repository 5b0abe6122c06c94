// What people do to a chart by pointer, finger and keys. A drag over it zooms, a finger that moves only points.

import { svg } from "./figure.js";
import { zoomTo } from "./views.js";

const DRAG_PX = 4; // less is a click
const FAR = 10; // stops that an arrow key goes with Shift
const FINGER_PX = 24; // a finger that comes back so near means the same place
const EDGE = 0.02; // of the width: a drag may begin so far outside of the frame

export class Gestures {
  constructor(chart) {
    this.chart = chart;
    this.drag = null; // { begun, from, to, isMoved }: from and to in places of the frame
    this.touched = null; // where a finger was last
    this.isSwallowed = false; // whether the click that comes is none
    this.chosen = svg("rect", { class: "chosen" });
    const { plane, element } = chart;
    plane.addEventListener("pointerdown", (event) => this.press(event));
    plane.addEventListener("pointermove", (event) => this.move(event));
    plane.addEventListener("pointerup", () => this.release());
    plane.addEventListener("pointercancel", () => this.end());
    plane.addEventListener("pointerleave", ({ pointerType }) => this.leave(pointerType));
    // Later, since a plane that is taken from the page loses the focus too: the one in its place has its crosshair.
    plane.addEventListener("blur", () => setTimeout(() => document.activeElement !== plane && chart.crosshair.hide()));
    plane.addEventListener("dblclick", () => chart.showWhole());
    plane.addEventListener("dragstart", (event) => event.preventDefault()); // a link is no thing to be carried away
    plane.addEventListener("click", (event) => this.isSwallowed && event.preventDefault(), true);
    element.addEventListener("keydown", (event) => this.key(event));
  }

  // The pointer

  press(event) {
    const places = this.chart.places(event);
    this.isSwallowed = false;
    if (event.pointerType === "touch") this.touch(event, places);
    else if (event.button === 0 && places.x > -EDGE && places.x < 1 + EDGE) {
      this.drag = { begun: event, from: places, to: places, isMoved: false };
    }
  }

  /** A first tap shows what is there, a second one follows its link. */
  touch(event, places) {
    const before = this.touched;
    const isNear = before && Math.hypot(event.clientX - before.clientX, event.clientY - before.clientY) <= FINGER_PX;
    this.isSwallowed = !(isNear && this.chart.crosshair.target);
    this.touched = event;
    this.chart.crosshair.follow(places);
  }

  move(event) {
    const { drag, chart } = this;
    const places = chart.places(event);
    if (!drag) return chart.crosshair.follow(places);
    drag.to = places;
    if (!drag.isMoved) {
      const { clientX, clientY, pointerId } = drag.begun;
      if (Math.hypot(event.clientX - clientX, event.clientY - clientY) < DRAG_PX) return;
      drag.isMoved = true;
      chart.plane.setPointerCapture(pointerId);
      chart.crosshair.hide();
      chart.frame.append(this.chosen);
    }
    this.choose();
  }

  /** Draw the part that is being chosen. Returns its places. */
  choose() {
    const { from, to } = this.drag;
    const { kind, height } = this.chart.figure;
    const ends = (axis) => [from[axis], to[axis]].sort((a, b) => a - b).map((place) => Math.min(Math.max(place, 0), 1));
    const [left, right] = ends("x");
    const [low, high] = kind === "scatter" ? ends("y") : [0, 1];
    const box = { x: `${100 * left}%`, width: `${100 * (right - left)}%`, y: height * (1 - high), height: height * (high - low) };
    for (const [name, value] of Object.entries(box)) this.chosen.setAttribute(name, value);
    return { x: [left, right], y: [low, high] };
  }

  release() {
    const chosen = this.drag?.isMoved && this.choose();
    this.end();
    if (!chosen) return;
    this.isSwallowed = true; // where it ends may be a link
    this.chart.show(zoomTo(this.chart.figure, this.chart.view, chosen));
  }

  end() {
    this.drag = null;
    this.chosen.remove();
  }

  leave(pointerType) {
    if (pointerType !== "touch" && !this.drag) this.chart.crosshair.hide();
  }

  // Keys

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const { chart } = this;
    const { crosshair } = chart;
    const far = event.shiftKey ? FAR : 1;
    const acts = {
      ArrowRight: () => crosshair.step("x", far),
      ArrowLeft: () => crosshair.step("x", -far),
      ArrowUp: () => crosshair.step("y", far),
      ArrowDown: () => crosshair.step("y", -far),
      Home: () => crosshair.step("x", -Infinity),
      End: () => crosshair.step("x", Infinity),
      "+": () => chart.zoomBy(0.5),
      "=": () => chart.zoomBy(0.5), // the same key without Shift
      "-": () => chart.zoomBy(2),
      Enter: () => crosshair.target?.spot?.href && location.assign(crosshair.target.spot.href),
    };
    if (event.key === "Escape" ? this.escape() : event.target === chart.plane && acts[event.key]) event.preventDefault();
    if (event.target === chart.plane) acts[event.key]?.();
  }

  /** Go back by one: from a drag, the menu, a zoom, the crosshair. False where there is nothing to go back from. */
  escape() {
    const { chart } = this;
    if (this.drag) this.end();
    else if (chart.menu.open) chart.closeMenu();
    else if (chart.isZoomed) chart.showWhole();
    else if (chart.crosshair.target) chart.crosshair.hide();
    else return false;
    return true;
  }
}
