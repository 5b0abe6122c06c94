// A button that shows what is in a field for a key, and hides it again: `<button data-show="#key" hidden>`.

const button = document.querySelector("[data-show]");
const field = document.querySelector(button.dataset.show);

function show(isShown) {
  field.type = isShown ? "text" : "password";
  button.textContent = isShown ? "Hide" : "Show";
}

button.hidden = false;
button.addEventListener("click", () => show(field.type === "password"));
field.form.addEventListener("submit", () => show(false)); // no browser keeps it as a text that was typed
