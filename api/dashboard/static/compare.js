// Chooses jobs to compare: the button says how many are chosen, and works where their number will do.

const form = document.getElementById("compare");
const button = form.querySelector("button");
const hint = document.getElementById("compare-hint");
const words = hint.textContent;
const [LEAST, MOST] = [2, 8];

function show() {
  const chosen = [...form.elements].filter((one) => one.checked).length;
  button.disabled = chosen < LEAST || chosen > MOST;
  hint.textContent = chosen ? `${chosen} chosen${chosen > MOST ? `, at most ${MOST}` : ""}` : words;
}

document.addEventListener("change", ({ target }) => target.form === form && show());
document.addEventListener("renewed", show); // a chosen one may have left the list
addEventListener("pageshow", show);
show();
