// Says what is wrong with a form at its fields: what a browser finds before it is sent, and what the server does.
//
//   <form data-post="..." novalidate>
//     <p class="field"><label>...</label> <input name="days" aria-describedby="days-fault">
//       <small class="fault" id="days-fault"></small></p>
//
// What has no such place stays with live.js, which says it above.

document.addEventListener(
  "submit",
  (event) => {
    const form = event.target;
    if (!form.noValidate) return;
    unmark(form);
    const wrong = [...form.querySelectorAll(":is(input, select, textarea):invalid")];
    if (!wrong.length) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    for (const field of wrong) mark(field, field.validationMessage);
    wrong[0].focus();
  },
  true,
);

document.addEventListener("faults", (event) => {
  const form = event.target;
  const faults = (event.detail ?? []).map(({ pointer, detail }) => [fieldOf(form, pointer), detail]);
  if (!faults.length || !faults.every(([field]) => place(field))) return;
  event.preventDefault();
  for (const [field, words] of faults) mark(field, words);
  faults[0][0].focus();
});

/** The field that a part of the data came from: "#/dims/batch" from `dims.batch`, "#/scopes/0" from `scopes`. */
function fieldOf(form, pointer) {
  const parts = pointer.replace(/^#\//, "").replace(/\/\d+$/, "").split("/");
  const name = parts.map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~")).join("."); // RFC 6901
  return form.querySelector(`[name="${CSS.escape(name)}"]:enabled`);
}

const place = (field) => field?.closest(".field")?.querySelector(".fault");

function mark(field, words) {
  field.setAttribute("aria-invalid", "true");
  if (place(field)) place(field).textContent = `${words[0].toUpperCase()}${words.slice(1)}`;
}

function unmark(form) {
  for (const one of form.querySelectorAll(".fault")) one.textContent = "";
  for (const one of form.querySelectorAll("[aria-invalid]")) one.removeAttribute("aria-invalid");
}
