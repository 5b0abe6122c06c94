// The head of every page: `/` goes to its box, and the arrow keys go from there through what was found. Where links to
// pages or parts have no room beside each other, the one that is open is in sight.

const box = document.getElementById("find");
const isTyped = (one) => one.matches("input, select, textarea") || one.isContentEditable;

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const at = document.activeElement;
  if (event.key === "/" && !isTyped(at)) {
    event.preventDefault();
    box.focus();
    box.select();
  }
  if (event.key === "Escape" && at === box) box.blur();
  if (event.key === "ArrowDown" || event.key === "ArrowUp") step(event, at, event.key === "ArrowDown" ? 1 : -1);
});

/** Go to the next or last link of what was found; above the first is the box. */
function step(event, at, way) {
  const stops = [box, ...document.querySelectorAll(".hits a")];
  const place = stops.indexOf(at);
  if (place < 0 || stops.length < 2) return;
  event.preventDefault();
  stops[Math.min(Math.max(place + way, 0), stops.length - 1)].focus();
}

for (const bar of document.querySelectorAll("header nav, .tabs")) {
  const [all, one] = [bar, bar.querySelector("[aria-current]")].map((part) => part?.getBoundingClientRect());
  if (one) bar.scrollLeft += (one.left + one.right - all.left - all.right) / 2;
}
