// Shows a key that was just made, once. It is nowhere on the page any more when it was copied or the page is left.

const form = document.querySelector("form[data-post]");
const made = document.getElementById("made");
const shown = document.getElementById("made-key");
const open = document.querySelector("#create summary");

form.addEventListener("made", ({ detail }) => {
  shown.textContent = detail.key;
  made.hidden = false;
  form.reset();
  made.focus();
});

function forget() {
  shown.textContent = "";
  made.hidden = true;
}

document.querySelector("[data-forget]").addEventListener("click", () => {
  forget();
  open.focus();
});
addEventListener("pagehide", forget);
