// Sends the file of a form before live.js sends the form: `<form data-post="/v1/jobs" data-upload="/v1/models">`.
//
// What the server answers becomes a part of the form: the digest in its field `model`, and in `[data-dims]` a field for
// each size that the model leaves open. A file that is dropped anywhere is put into the form, and sent with it.

const form = document.querySelector("form[data-upload]");
const chosen = form.querySelector("[type=file]");
const digest = form.querySelector("[name=model]");
const sizes = form.querySelector("[data-dims]");
const progress = form.querySelector("progress");

const fault = document.getElementById("model-fault");

/** Say at the field what is wrong with the file. */
function refuse(words) {
  fault.textContent = words;
  if (words) chosen.setAttribute("aria-invalid", "true");
  else chosen.removeAttribute("aria-invalid");
}

const BEGINS = [0x08, 0x12, 0x1a, 0x22, 0x28, 0x32, 0x3a, 0x42, 0x72, 0xa2, 0xca, 0xd2]; // tags of a model's fields

chosen.addEventListener("change", () => {
  digest.value = ""; // that of another file
  sizes.hidden = true;
  sizes.querySelectorAll(".field").forEach((one) => one.remove());
  refuse("");
  if (chosen.files.length) look(chosen.files[0]).catch((error) => refuse(error.message));
});

/** Say at once what can't be a model; of all others the server says what they are once they are sent. */
async function look(file) {
  const [first] = new Uint8Array(await file.slice(0, 1).arrayBuffer());
  if (BEGINS.includes(first) || file !== chosen.files[0]) return;
  const what = first === undefined ? "is empty" : "does not begin as an ONNX model: what is packed must be unpacked first";
  refuse(`${file.name} ${what}.`);
}

form.addEventListener("submit", (event) => {
  if (digest.value || !form.checkValidity()) return; // live.js sends the rest, or says what is wrong
  event.preventDefault();
  event.stopPropagation();
  if (form.getAttribute("aria-busy") === "true") return;
  form.setAttribute("aria-busy", "true");
  refuse("");
  upload(chosen.files[0])
    .then(taken, (error) => {
      refuse(error.message);
      chosen.focus();
    })
    .finally(() => form.removeAttribute("aria-busy"));
});

/** The model is there: go on, or ask for the sizes that it leaves open. */
function taken(model) {
  digest.value = model.sha256;
  const open = model.description.open_dims ?? [];
  sizes.append(...open.map(size));
  sizes.hidden = !open.length;
  if (open.length) sizes.querySelector("input").focus();
  else setTimeout(() => form.requestSubmit()); // once it is no longer busy
}

/** A field for a size that a model leaves open. */
function size(name, number) {
  const [place, label, input, wrong] = ["p", "label", "input", "small"].map((one) => document.createElement(one));
  const id = `size-${number}`; // names may have spaces
  Object.assign(input, { type: "number", name: `dims.${name}`, min: 1, required: true, id });
  input.setAttribute("aria-describedby", `${id}-fault`);
  place.append(Object.assign(label, { htmlFor: id, textContent: name }), " ", input);
  place.append(Object.assign(wrong, { className: "fault", id: `${id}-fault` }));
  return Object.assign(place, { className: "field" });
}

/** Send a file, and show how much of it is there: fetch does not tell that. What the server says of the model. */
function upload(file) {
  const label = [...file.name].slice(0, 200).join("");
  form.querySelector("[name=label]").value = label; // of the job: another may have sent the same model
  const request = new XMLHttpRequest();
  return new Promise((resolve, reject) => {
    request.open("POST", `${form.dataset.upload}?label=${encodeURIComponent(label)}`);
    request.responseType = "json";
    request.upload.onprogress = ({ loaded, total }) => Object.assign(progress, { max: total, value: loaded });
    request.onload = () => {
      const { title, detail } = request.response ?? {};
      if (request.status < 300) resolve(request.response);
      else reject(new Error(title ? `${title}: ${detail}` : `The server answered ${request.status}`));
    };
    request.onerror = () => reject(new Error("The server can't be reached."));
    request.onloadend = () => (progress.hidden = true);
    progress.hidden = false;
    request.send(file);
  });
}

const dropping = document.documentElement.classList;
const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");

document.addEventListener("dragover", (event) => {
  if (!holdsFiles(event)) return;
  event.preventDefault();
  dropping.add("dropping");
});

document.addEventListener("dragleave", (event) => event.relatedTarget ?? dropping.remove("dropping"));

document.addEventListener("drop", (event) => {
  dropping.remove("dropping");
  if (!holdsFiles(event)) return;
  event.preventDefault();
  chosen.files = event.dataTransfer.files;
  chosen.dispatchEvent(new Event("change"));
  form.closest("details").open = true;
  form.querySelector("button").focus();
});
