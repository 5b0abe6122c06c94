// Opens what a figure is while the mouse rests on its mark, beside it. A click, or Enter, opens it without this too, and
// keeps it open.

const REST_MS = 300; // a mouse that only passes opens nothing
const AWAY_MS = 200; // time to get from the mark to its text

let opened = null; // the mark whose text the mouse opened
let timer = 0;
const textOf = (mark) => document.getElementById(mark.getAttribute("popovertarget"));

document.addEventListener("pointerover", ({ target, pointerType }) => {
  if (pointerType !== "mouse") return;
  const mark = target.closest?.(".help");
  clearTimeout(timer);
  if (mark && !textOf(mark).matches(":popover-open")) timer = setTimeout(open, REST_MS, mark);
  else if (opened && mark !== opened && !textOf(opened)?.contains(target)) timer = setTimeout(close, AWAY_MS);
});

function open(mark) {
  if (!mark.isConnected) return; // the page was renewed
  mark.click(); // so it is beside its mark
  opened = mark;
}

function close() {
  textOf(opened)?.hidePopover();
  opened = null;
}

document.addEventListener("click", (event) => {
  if (!opened || event.target.closest(".help") !== opened) return;
  if (textOf(opened).matches(":popover-open")) event.preventDefault(); // it is kept, not shut
  opened = null;
});
