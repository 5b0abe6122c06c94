// Files of a chart: what it says as CSV, and what it shows as SVG and PNG that look right without a page around them.

import { svg } from "./figure.js";
import { shownMarks, shownSeries } from "./views.js";

const STYLES = [
  "fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "paint-order",
  "vector-effect", "font-family", "font-size", "font-weight", "font-variant-numeric", "text-anchor",
]; // as attributes: the policy of pages allows no style in markup
const UNITS = { time: " (s)", clock: " (s)", rate: " (1/s)", share: " (of 1)", times: " (ratio)" };
const HEAD_PX = 28;
const LINE_PX = 20;
const COLUMN_PX = 280; // of the legend, at least
const LETTER_PX = 6.5;
const SHARPNESS = 2; // pixels of a picture for each of the page

/** A cell of text: quoted where it must be, and never a formula for a spreadsheet. */
export function cell(text) {
  const harmless = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}

/** All points of what is switched on, zoomed or not: exactly the numbers that the figure has, in the units of SI. */
export function csv(figure, view) {
  const heads = ["series", ...["x", "y"].map((axis) => figure[axis].label + (UNITS[figure[axis].unit] ?? "")), "words"];
  const marks = shownMarks(figure, view).map((mark) => [mark.kind, mark.x, mark.y, ""]);
  const points = shownSeries(figure, view).flatMap((part) =>
    part.points.map((point) => [part.name, point.x, point.y, point.tip ?? point.text ?? ""]),
  );
  const lines = [heads, ...points, ...marks];
  return lines.map((line) => line.map((one) => (typeof one === "number" ? String(one) : cell(one))).join(",")).join("\r\n") + "\r\n";
}

/** A copy of a drawing that needs no style sheet, without what is not seen. */
function styled(one) {
  const copy = one.cloneNode(false);
  const style = getComputedStyle(one);
  if (one instanceof SVGGeometryElement || one instanceof SVGTextContentElement) {
    for (const name of STYLES) copy.setAttribute(name, style.getPropertyValue(name));
  }
  for (const child of one.childNodes) {
    if (child.nodeType === Node.TEXT_NODE) copy.append(child.data);
    else if (getComputedStyle(child).display !== "none" && !child.matches(".reach, .cross, title, desc")) copy.append(styled(child));
  }
  if (one instanceof SVGSVGElement && !one.classList.contains("clipped")) copy.setAttribute("overflow", "visible");
  for (const name of ["class", "tabindex", "aria-label", "role"]) copy.removeAttribute(name);
  return copy;
}

/** The chart as it is shown, with its title and legend: `{ text, width, height }`. */
export function picture(chart, title) {
  const frame = chart.querySelector("svg.frame");
  const style = getComputedStyle(frame);
  const [left, right, top, bottom] = ["left", "right", "top", "bottom"].map((side) => parseFloat(style.getPropertyValue(`padding-${side}`)));
  const { width, height } = frame.getBoundingClientRect();
  const lines = [...chart.querySelectorAll(".legend li:not(.off)")];
  const columns = Math.max(Math.floor(width / COLUMN_PX), 1);
  const whole = [width, HEAD_PX + height + LINE_PX * Math.ceil(lines.length / columns) + LINE_PX / 2].map(Math.ceil);
  const font = { "font-family": style.fontFamily, "font-size": 13, fill: getComputedStyle(chart).color };
  const made = svg("svg", { width: whole[0], height: whole[1], viewBox: `0 0 ${whole.join(" ")}` });
  made.append(svg("title", {}, title), svg("rect", { width: "100%", height: "100%", fill: getComputedStyle(document.documentElement).backgroundColor }));
  made.append(svg("text", { ...font, x: 8, y: 20, "font-weight": 600 }, title));
  const drawing = styled(frame);
  const box = { x: left, y: HEAD_PX + top, width: width - left - right, height: height - top - bottom };
  for (const [name, value] of Object.entries(box)) drawing.setAttribute(name, value);
  made.append(drawing);
  lines.forEach((line, n) => {
    const [x, y] = [8 + (n % columns) * (width / columns), HEAD_PX + height + LINE_PX * Math.floor(n / columns)];
    const key = styled(line.querySelector(".key"));
    key.setAttribute("x", x);
    key.setAttribute("y", y);
    const words = [...line.querySelector(".words").children].map((one) => one.textContent).join("  ");
    const room = Math.floor((width / columns - 56) / LETTER_PX);
    const text = words.length > room ? `${words.slice(0, room - 3)}...` : words;
    made.append(key, svg("text", { ...font, x: x + 40, y: y + 13 }, text));
  });
  return { text: new XMLSerializer().serializeToString(made), width: whole[0], height: whole[1] };
}

/** A picture as PNG. */
export async function png({ text, width, height }) {
  const address = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  try {
    const image = Object.assign(new Image(), { src: address });
    await image.decode();
    const canvas = Object.assign(document.createElement("canvas"), { width: SHARPNESS * width, height: SHARPNESS * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}

/** Have the browser save a file. */
export function save(name, blob) {
  const address = URL.createObjectURL(blob);
  Object.assign(document.createElement("a"), { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000); // once it has been read
}
