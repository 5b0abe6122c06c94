// Makes pages live: renews what their HTML says, and sends what buttons ask for.
//
//   <body data-stream="/v1/changes"> with each event of it the page is looked at again
//   <div id="jobs" data-live> is replaced by the new one of that id where that differs
//   <button data-post="/v1/jobs/4:cancel" data-confirm="Sure?"> sends that, then looks at the page again
//   <form data-post="/v1/jobs"> sends its fields as JSON; `data-then`: goes there
//   <button data-copy="#id"> copies the text of an element
//   <time datetime="..." data-ago> stays true
//   <a href="..." data-again> where something is still being made: the page is looked at again

const EVERY_MS = 2000; // between two looks at a page
const SETTLE_MS = 1100; // the server shows a page again for a second: wait for a later one
const SILENT_MS = 45000; // the server speaks every 15 s: a stream silent for so long is dead
const LONGEST_PAUSE_MS = 10000; // between two attempts to reach it

const root = document.documentElement;
const line = document.getElementById("live");
const said = document.getElementById("said");
const every = (selector) => [...document.querySelectorAll(selector)];
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

root.classList.add("scripted");

/** What the server did not do, in words. */
class Refusal extends Error {
  static async of(answer) {
    const { title, detail, errors } = await answer.json().catch(() => ({}));
    const refusal = new Refusal(title ? `${title}: ${detail}` : `The server answered ${answer.status}`);
    refusal.errors = errors ?? [];
    refusal.isFinal = [401, 403, 404].includes(answer.status);
    return refusal;
  }
}

function say(words) {
  said.textContent = words;
  said.hidden = !words;
  if (words) said.scrollIntoView({ block: "nearest" });
}

document.addEventListener("refused", (event) => say(event.detail)); // what other scripts have to say

function tell(state) {
  if (line.textContent !== state) line.textContent = line.dataset.state = state;
}

// Looking at the page again

let shown = pieces(document); // id -> text of an element as the server sent it
let stream = document.body.dataset.stream;
let lookedAt = 0;
let changedAt = 0;
let timer = 0;
let looks = Promise.resolve(); // one after the other

function pieces(page) {
  return new Map([...page.querySelectorAll("[data-live][id]")].map((one) => [one.id, one.outerHTML]));
}

/** Have the page looked at soon, however often this is called. A hidden one is when it is seen again. */
function changed() {
  if (document.hidden) return;
  changedAt = Date.now();
  timer ||= setTimeout(lookAfterAll, Math.max(SETTLE_MS, lookedAt + EVERY_MS - changedAt));
}

/** Look, and again if the server may have shown what was before the last change. */
async function lookAfterAll() {
  await renew().catch((error) => (error.isFinal ? say(error.message) : sleep(LONGEST_PAUSE_MS).then(changed)));
  timer = 0;
  if (lookedAt - changedAt < SETTLE_MS) changed();
}

/** Show what the page says by now; `isAnew`: made after this moment. */
const renew = (isAnew) => (looks = looks.catch(() => {}).then(() => look(isAnew)));

async function look(isAnew) {
  lookedAt = Date.now();
  const asked = { headers: { Accept: "text/html" }, cache: isAnew ? "reload" : "default" };
  const answer = await reach(location.href, asked);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const [id, text] of pieces(page)) {
    if (text === shown.get(id)) continue;
    if (swap(document.getElementById(id), page.getElementById(id))) shown.set(id, text);
    else changed();
  }
  document.title = page.title;
  stream = page.body.dataset.stream;
  reword();
  if (document.querySelector("[data-again]")) changed();
}

let pressed = null; // replaced before it is released, it would not be clicked
addEventListener("pointerdown", ({ target }) => (pressed = target));
for (const end of ["pointerup", "pointercancel", "contextmenu", "blur"])
  addEventListener(end, () => setTimeout(() => pressed && changed((pressed = null)))); // after the click

/** Put a new element in the place of an old one, and leave the user where they are. False where that would disturb. */
function swap(old, fresh) {
  if (!old) return true;
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  const selection = getSelection();
  const isSelecting = !selection.isCollapsed && selection.intersectsNode(old);
  const isReading = old.querySelector(":popover-open");
  if (isSelecting || isReading || focused?.matches("input:not([type=checkbox]), select, textarea") || old.contains(pressed)) return false;
  const again = focused && places(focused);
  const scrolled = [...old.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
  for (const one of fresh.querySelectorAll("details[id]")) {
    one.open = old.querySelector(`#${CSS.escape(one.id)}`)?.open ?? one.open;
  }
  for (const one of fresh.querySelectorAll("[type=checkbox][id]")) {
    one.checked = old.querySelector(`#${CSS.escape(one.id)}`)?.checked ?? one.checked;
  }
  old.replaceWith(fresh);
  fresh.dispatchEvent(new CustomEvent("renewed", { bubbles: true })); // what other scripts did to the old one
  fresh.querySelectorAll(".scroll").forEach((box, place) => scrolled[place] && box.scrollTo(...scrolled[place]));
  again?.map(([one, place]) => every(one).slice(0, place + 1).pop()).find(Boolean)?.focus({ preventScroll: true });
  return true;
}

/** Where the focus should be when its element was replaced, best first: a selector and which of it. */
function places(focused) {
  const within = `#${CSS.escape(focused.closest("[id]").id)}`;
  const marks = ["data-post", "data-copy", "href"].filter((name) => focused.hasAttribute(name));
  const same = marks.map((name) => `[${name}="${CSS.escape(focused.getAttribute(name))}"]`);
  const all = focused.id ? [""] : [...same, ":is(a, button, summary, [tabindex])"];
  return all.map((one) => `${within} ${one}`).map((one) => [one, every(one).indexOf(focused)]);
}

/** How long ago a moment was: as the filter `ago` of the server says it. */
function ago(moment) {
  const seconds = Math.max(0, (Date.now() - moment) / 1000);
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * size) return `${Math.round(seconds / size)} ${unit} ago`;
  }
  return `${Math.round(seconds)} s ago`;
}

function reword() {
  for (const one of every("time[data-ago]")) one.textContent = ago(Date.parse(one.dateTime));
}

// Another script changed the address: what is there is shown.
document.addEventListener("moved", () => renew().catch((error) => say(error.message)));

// Following the events. By fetch: an EventSource does not tell an end from a refusal.

let listening = null; // what ends the stream that is open

/** Follow the events until the page is hidden or nothing more will happen. */
async function follow() {
  if (listening || !stream) return;
  const here = (listening = new AbortController());
  let last = "";
  for (let pause = 500; !here.signal.aborted && stream; pause = Math.min(2 * pause, LONGEST_PAUSE_MS)) {
    try {
      const address = new URL(stream, location.href);
      if (last) address.searchParams.set("after", last);
      const answer = await reach(address, { cache: "no-store", signal: here.signal });
      if (answer.status === 204) stream = "";
      else {
        tell("live");
        await listen(answer, here, (id) => (last = id));
        pause = 500;
      }
    } catch (error) {
      if (error.isFinal) {
        stream = "";
        say(error.message);
      }
    }
    if (!here.signal.aborted && stream) {
      tell("reconnecting");
      await sleep(pause);
    }
  }
  if (!stream) tell("ended");
  if (listening === here) listening = null;
}

/** Read events until the stream ends or says nothing for long. */
async function listen(answer, here, seen) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    let silence;
    const silent = new Promise((resolve) => (silence = setTimeout(resolve, SILENT_MS, { done: true })));
    const { value, done } = await Promise.race([reader.read(), silent]).finally(() => clearTimeout(silence));
    if (done) return reader.cancel();
    const lines = (rest + value).split(/\r\n|\n|\r/);
    rest = lines.pop();
    for (const one of lines) {
      if (one.startsWith("id:")) seen(one.slice(3).trim());
      if (one.startsWith("data:")) changed();
    }
  }
}

// A hidden page holds no connection: a browser has six of them for a server.
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) {
    changed();
    return follow();
  }
  listening?.abort();
  listening = null;
});
addEventListener("pageshow", (event) => event.persisted && renew(true).catch((error) => say(error.message)));

// Sending

/** Do what an element asks for, once at a time; what goes wrong is said. */
async function act(element, work) {
  if (element.ariaBusy) return;
  element.ariaBusy = "true";
  say("");
  try {
    await work();
  } catch (error) {
    say(error.message);
  } finally {
    element.ariaBusy = null;
  }
}

/** A good answer of the server; throws a Refusal else. */
async function reach(...asked) {
  const answer = await fetch(...asked).catch(() => {
    throw new Refusal("The server can't be reached.");
  });
  if (answer.ok) return answer;
  if (answer.status === 401) location.reload(); // logged out: the page goes, and asks for a key
  throw await Refusal.of(answer);
}

/** What the server answers to a request of the JSON API. */
async function ask(path, data) {
  const headers = data && { "Content-Type": "application/json" };
  const answer = await reach(path, { method: "POST", headers, body: data && JSON.stringify(data) });
  return answer.json();
}

document.addEventListener("click", ({ target }) => {
  const button = target.closest("button[data-post]");
  if (button && (!button.dataset.confirm || confirm(button.dataset.confirm))) {
    act(button, () => ask(button.dataset.post).then(() => renew(true)));
  }
  const copy = target.closest("[data-copy]");
  if (copy) act(copy, () => navigator.clipboard.writeText(document.querySelector(copy.dataset.copy).textContent));
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.dataset.post) return;
  event.preventDefault();
  act(form, async () => {
    const made = await ask(form.dataset.post, fields(form)).catch((error) => {
      if (tellForm(form, "faults", error.errors)) throw error;
    });
    if (!made) return;
    tellForm(form, "made", made);
    if (form.dataset.then) location.assign(form.dataset.then + made.id);
    else await renew(true);
  });
});

/** Tell other scripts what came of a form: whether none of them has seen to it. */
const tellForm = (form, name, detail) => form.dispatchEvent(new CustomEvent(name, { detail, cancelable: true, bubbles: true }));

/** What the fields of a form say: those left empty are left out, `dims.batch` is `batch` within `dims`. */
function fields(form) {
  const data = {};
  for (const field of form.querySelectorAll("[name]:not([type=file])")) {
    if (!field.value || (field.type === "checkbox" && !field.checked)) continue;
    const number = Number(field.value) * Number(field.dataset.scale ?? 1);
    const [, group, name] = /^(?:(dims)\.)?(.*)$/s.exec(field.name);
    if (field.type === "checkbox") (data[name] ??= []).push(field.value);
    else (group ? (data[group] ??= {}) : data)[name] = field.type === "number" ? number : field.value;
  }
  return data;
}

// Without TLS, and not on this machine, there is no clipboard.
if (!navigator.clipboard) root.classList.add("clipless");

reword();
setInterval(reword, 10000);
if (document.querySelector("[data-again]")) changed();
follow();
