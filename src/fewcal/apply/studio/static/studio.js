// The studio's page: one state from the server, drawn anew after every change.

import { get, listen, send } from "./api.js";
import { PAGE, colour, fill, filtered, name } from "./cards.js";
import { $, breakable, duration, el, percent, picture, place, problem, say } from "./dom.js";
import { dragItems, takeFiles, target } from "./drop.js";
import { keys } from "./keys.js";
import { explain } from "./why.js";

let state = null;
let selected = new Set();
let current = null; // the item that keys move from
let most = PAGE;
const NOTES = 3; // shown at once
const LONG_NAME = 28; // characters; on a small screen such a class has a line to itself

// ---- changes --------------------------------------------------------------------------------------------------------

async function change(method, path, body, told) {
  try {
    const before = new Map(state.items.map((i) => [i.id, i.answer]));
    const fresh = await send(method, path, body);
    draw(fresh);
    const moved = state.items.filter((i) => before.has(i.id) && before.get(i.id) !== i.answer).length;
    problem("");
    const what = typeof told === "function" ? told(fresh.done) : told;
    if (what) say(`${what}.${moved ? ` ${moved} answer${moved === 1 ? "" : "s"} changed.` : ""}`);
    return state;
  } catch (error) {
    problem(error.message);
    return null;
  }
}

async function assign(ids, number) {
  if (number === undefined) { await refresh(); return; }
  const list = current?.list;
  const place = list ? [...$(list).children].findIndex((li) => li.firstChild.dataset.id === String(current.id)) : -1;
  const focused = document.activeElement?.classList.contains("card");
  const what = ids.length === 1 ? state.items.find((i) => i.id === ids[0])?.name ?? "1 item" : `${ids.length} items`;
  const done = await change("POST", "/api/labels", { items: ids, class: number },
    number === null ? `${what}: label taken away` : `${what} is ${name(state, number)}`);
  if (!done) return;
  // Go on with what took the place of the item, as in a pile.
  if (focused && place >= 0) {
    const cards = $(list).children;
    const next = cards[Math.min(place, cards.length - 1)];
    if (next) choose(Number(next.firstChild.dataset.id), list, false, true);
  }
}

// One after the other: a key pressed before the last answer came acts on what that answer leaves.
let last = Promise.resolve();
const queued = (act) => { last = last.then(act, act); };

// Another page may have changed something meanwhile: the server says what it was.
const step = (way) => {
  if (!state[way]) return undefined;
  return change("POST", `/api/${way}`, {}, (done) => (done ? `${way === "undo" ? "Undone" : "Done again"}: ${done}` : ""));
};

let waiting = null;
async function refresh() {
  clearTimeout(waiting);
  waiting = null;
  try {
    draw(await get("/api/state"));
  } catch (error) {
    problem(error.message);
  }
}

// New files in the folder: when asked to, and when somebody comes back to the page, as after copying them there. Every page
// hears of what is found by its events.
let looking = null; // one look serves the click and the focus that comes with it
async function look(asked) {
  if (document.hidden) return;
  try {
    looking ??= send("POST", "/api/rescan").finally(() => { looking = null; });
    const found = (await looking).new;
    if (asked) problem("");
    $("looked").textContent = found ? `${found} new item${found === 1 ? "" : "s"}.` : asked ? "Nothing more in the folder." : "";
    if (found) await refresh();
  } catch (error) {
    if (asked) problem(error.message); // nobody waits for the other looks, and the events notice a server that is gone
  }
}

// ---- selection ------------------------------------------------------------------------------------------------------

function choose(id, list, extend = false, focus = false) {
  if (!extend) selected = new Set();
  if (extend && selected.has(id)) selected.delete(id); else selected.add(id);
  current = { id, list };
  mark();
  if (focus) $(list).querySelector(`[data-id="${id}"]`)?.focus();
  explain(item(), state);
}

const item = () => state.items.find((i) => i.id === current?.id);

function mark() {
  const known = new Set(state.items.map((i) => i.id));
  selected = new Set([...selected].filter((id) => known.has(id)));
  const cards = [...document.querySelectorAll(".card")];
  const stop = cards.find((c) => Number(c.dataset.id) === current?.id && c.closest("ul").id === current?.list);
  for (const card of cards) {
    card.setAttribute("aria-pressed", String(selected.has(Number(card.dataset.id))));
    card.tabIndex = -1;
  }
  // One stop for Tab in each grid; arrows go on from there.
  for (const list of ["next-items", "items"]) {
    const first = $(list).querySelector(".card");
    if (first && stop?.closest("ul").id !== list) first.tabIndex = 0;
  }
  if (stop) stop.tabIndex = 0;
  drawActions();
}

function move(list, by, extend) {
  const cards = [...$(list).querySelectorAll(".card")];
  const at = cards.findIndex((c) => Number(c.dataset.id) === current?.id);
  const next = cards[Math.max(0, Math.min(cards.length - 1, at + by))];
  if (!next) return;
  const id = Number(next.dataset.id);
  if (extend) selected.delete(id); // choosing it again adds it
  choose(id, list, extend, true);
}

function across(list) {
  const cards = [...$(list).children];
  const top = cards[0]?.offsetTop;
  return Math.max(1, cards.findIndex((c) => c.offsetTop !== top));
}

// ---- drawing --------------------------------------------------------------------------------------------------------

function draw(fresh) {
  if (state && fresh.revision < state.revision) return; // an older answer that came late
  state = fresh;
  document.title = `${state.title} · fewcal studio`;
  $("title").textContent = state.title;
  drawWork();
  drawNotes();
  drawEstimate();
  for (const way of ["undo", "redo"]) {
    $(way).disabled = !state[way];
    $(way).title = state[way] ?? "";
  }
  $("new-text").hidden = state.kind === "picture";
  $("class-name").placeholder = state.kind === "text" ? "e.g. praise" : "e.g. robin";
  $("reject-box").hidden = state.base_classes === null;
  $("reject").checked = state.reject !== null;
  $("take-folders").hidden = !state.folders.length;
  $("take-folders").textContent = `Take the ${state.folders.length} folders as classes`;
  $("take-folders").title = state.folders.join(", ");
  $("take-labels").hidden = !state.named.length;
  $("take-labels").textContent = state.named.length === 1 ? "Take the label as a class" : `Take the ${state.named.length} labels as classes`;
  $("take-labels").title = state.named.join(", ");
  drawClasses();
  drawItems();
  explain(item(), state);
}

function drawWork() {
  const { done, total, seconds_left, stage, error } = state.progress;
  $("work").hidden = stage === "idle" || (done === total && stage !== "loading");
  $("bar").value = total ? done / total : 0;
  $("work-text").textContent = stage === "loading" ? "Loading the network…"
    : `Computing features: ${done} of ${total}${seconds_left ? `, ${duration(seconds_left)}` : ""}`;
  if (error) problem(error);
}

// What of the folder is left out, until it is read and closed.
let read = "";
function drawNotes() {
  $("notes").hidden = !state.notes.length || JSON.stringify(state.notes) === read;
  const more = state.notes.length - NOTES;
  const shown = [...state.notes.slice(0, NOTES), ...(more > 0 ? [`and ${more} more, which the terminal names`] : [])];
  $("notes-list").replaceChildren(...shown.map((note) => el("li", {}, note)));
}

// Examples count once they have features: what waits or is unreadable teaches nothing.
const classesInUse = () => new Set(state.items.filter((i) => i.state === "ready").map((i) => i.label).filter((l) => l !== undefined)).size;

// What to do next, or how good the answers are.
function drawEstimate() {
  const { expected, left_out } = state;
  const [first, more] =
    !state.items.length ? ["Begin with pictures or texts.", "Drop files anywhere on this page."]
    : state.classes.length < 2 ? ["Name your classes.", `Type a name, Add, and again for the next one${state.named.length ? "; or take the labels as classes" : state.folders.length ? "; or take the folders as classes" : ""}.`]
    : classesInUse() < 2 && state.items.some((i) => i.label !== undefined && i.state === "waiting")
      ? ["Computing the features of your examples.", "Answers follow."]
    : classesInUse() < 2 ? ["Give two classes an example each.", "Select an item, then click its class: all others are answered at once."]
    : !expected ? ["All items have labels.", ""]
    : [`About ${percent(expected.accuracy)} correct`, `(95% interval ${percent(expected.low)} to ${percent(expected.high)}), from the probabilities of the answers.` +
      (left_out ? ` Left out one at a time, ${left_out.right} of ${left_out.asked} examples are answered correctly; examples are harder than most items.` : "")];
  $("estimate").replaceChildren(el("strong", {}, first), " ", el("span", { class: "quiet" }, more));
}

function classRow(c, key, examples) {
  const row = el("li", { class: `class ${colour(state, c.id)}${c.name.length > LONG_NAME ? " long" : ""}`, data: { id: String(c.id) } },
    el("button", {
      type: "button", class: "give", onclick: () => (selected.size ? assign([...selected], c.id) : say("Select an item first.")),
      title: "Give the selected items this class",
    }, el("span", { class: "dot" }), el("span", { class: "what" }, breakable(c.name)), el("span", { class: "share" }, String(c.count),
      el("span", { class: "hidden" }, c.count === 1 ? " example" : " examples")), key ? el("kbd", { "aria-hidden": "true" }, key) : null),
    c.id !== 0 ? el("details", { class: "menu" }, el("summary", { "aria-label": `Change the class ${c.name}` }, "⋯"),
      el("ul", {}, el("li", {}, el("button", { type: "button", onclick: () => rename(c) }, "Rename")),
        el("li", {}, el("button", { type: "button", onclick: () => change("DELETE", `/api/classes/${c.id}`, {}, `${c.name} removed`) }, "Remove")))) : null,
    examples.length ? el("ul", { class: "examples", "aria-label": `Examples of ${c.name}` }, examples.map((i) => el("li", {}, el("button", {
      type: "button", title: `${i.name}: take the label away`, onclick: () => assign([i.id], null),
    }, el("span", { class: "hidden" }, `Take the label from ${i.text === undefined ? i.name : ""} `), i.text === undefined ? el("img", { src: picture(state, i.id, "thumbnail"), alt: "", loading: "lazy" }) : i.text.length > 24 ? `${i.text.slice(0, 23)}…` : i.text)))) : null);
  target(row, c.id, assign);
  return row;
}

// Rows that did not change stay, and so does one in which a name is being typed: features arrive and other pages change
// things at any time.
function drawClasses() {
  const list = $("classes");
  const own = document.activeElement?.closest("#classes > li")?.dataset.id;
  const ordered = [...state.classes.filter((c) => c.id !== 0), ...state.classes.filter((c) => c.id === 0)];
  const old = new Map([...list.children].map((row) => [row.dataset.id, row]));
  place(list, ordered.map((c, n) => {
    const key = c.id === 0 ? "0" : n < 9 ? String(n + 1) : "";
    const examples = state.items.filter((i) => i.label === c.id).slice(-5);
    const shows = JSON.stringify([c, key, colour(state, c.id), examples.map((i) => i.id), state.started]);
    const known = old.get(String(c.id));
    if (known && (known.dataset.shows === shows || known.querySelector("form"))) return known;
    const row = classRow(c, key, examples);
    row.dataset.shows = shows;
    return row;
  }));
  if (own && !document.activeElement?.closest("#classes > li")) list.querySelector(`li[data-id="${own}"] .give`)?.focus();
  const names = JSON.stringify(ordered);
  if ($("of").dataset.shows === names) return;
  const of = $("of").value;
  $("of").replaceChildren(el("option", { value: "" }, "any"), ...ordered.map((c) => el("option", { value: String(c.id) }, c.name)));
  $("of").value = ordered.some((c) => String(c.id) === of) ? of : "";
  $("of").dataset.shows = names;
}

function rename(c) {
  const row = $("classes").querySelector(`li[data-id="${c.id}"]`);
  const input = el("input", { value: c.name, maxlength: "120", "aria-label": `New name of ${c.name}` });
  const close = () => { form.remove(); drawClasses(); };
  const form = el("form", { class: "row", onsubmit: async (event) => {
    event.preventDefault();
    if (await change("PATCH", `/api/classes/${c.id}`, { name: input.value }, `${c.name} is now ${input.value}`)) close();
  } }, input, el("button", {}, "Save"));
  input.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
  row.replaceChildren(form);
  delete row.dataset.shows;
  input.select();
}

function drawItems() {
  const focus = document.activeElement?.classList.contains("card") ? document.activeElement : null;
  const kept = focus && [focus.dataset.id, focus.closest("ul").id];
  const shown = filtered(state);
  const byId = new Map(state.items.map((i) => [i.id, i]));
  const next = state.next.map((id) => byId.get(id)).filter(Boolean);
  $("next").hidden = !next.length;
  fill($("next-items"), state, next);
  fill($("items"), state, shown.slice(0, most));
  const failed = state.items.filter((i) => i.state === "failed").length;
  $("count").textContent = `${shown.length} of ${state.items.length}${failed ? `, ${failed} unreadable` : ""}`;
  $("more").hidden = shown.length <= most;
  $("nothing").hidden = shown.length > 0 || !state.items.length;
  $("begin").hidden = state.items.length > 0;
  $("list").hidden = !state.items.length;
  $("next-why").textContent = state.expected ? "Labelling these helps most: many doubtful items resemble them." : "Begin with these: many items resemble them.";
  if (kept && !document.activeElement?.classList.contains("card")) $(kept[1]).querySelector(`[data-id="${kept[0]}"]`)?.focus();
  mark();
}

function drawActions() {
  const bar = $("actions");
  bar.hidden = selected.size === 0;
  if (!selected.size) return;
  const one = selected.size === 1 && item();
  // Drawn anew only where it changes: a click on a button that is replaced meanwhile would be lost.
  const labelled = state.items.some((i) => selected.has(i.id) && i.label !== undefined);
  const shows = JSON.stringify([[...selected], state.classes.map((c) => [c.id, c.name]), one && one.id, labelled]);
  if (bar.dataset.shows === shows) return;
  bar.dataset.shows = shows;
  bar.replaceChildren(
    el("span", { class: "what" }, one ? one.text ?? one.name : `${selected.size} items`),
    ...state.classes.filter((c) => c.id !== 0).concat(state.classes.filter((c) => c.id === 0)).map((c) =>
      el("button", { type: "button", class: `chip ${colour(state, c.id)}`, onclick: () => assign([...selected], c.id) },
        el("span", { class: "dot" }), el("span", { class: "what", title: c.name }, c.name))),
    labelled ? el("button", { type: "button", onclick: () => assign([...selected], null) }, "Take label away") : "",
    ...(one ? [el("button", { type: "button", onclick: why }, "Why"), el("button", { type: "button", onclick: zoom }, "Zoom")] : []));
}

function why() {
  $("why").hidden = !$("why").hidden;
  explain(item(), state);
}

function zoom() {
  const one = item();
  if (!one) return;
  $("zoom-title").textContent = one.name;
  $("zoom-body").replaceChildren(one.text !== undefined || one.state === "failed" ? el("p", {}, one.text ?? one.error)
    : el("img", { src: picture(state, one.id, "zoomed"), alt: one.name }));
  $("zoom").showModal();
}

// ---- beginning ------------------------------------------------------------------------------------------------------

function wire() {
  for (const list of ["next-items", "items"]) {
    $(list).addEventListener("click", (event) => {
      const card = event.target.closest(".card");
      if (card) choose(Number(card.dataset.id), list, event.shiftKey || event.ctrlKey || event.metaKey, true);
    });
    $(list).addEventListener("focusin", (event) => {
      const card = event.target.closest(".card");
      if (card && current?.id !== Number(card.dataset.id) && !selected.size) choose(Number(card.dataset.id), list);
    });
    $(list).addEventListener("dragstart", (event) => {
      const id = Number(event.target.closest(".card")?.dataset.id);
      if (id) dragItems(event, selected.has(id) ? [...selected] : [id]);
    });
  }
  // The field is free for the next one at once; what was refused comes back, unless something else stands there.
  const taken = (field, act) => async (event) => {
    event.preventDefault();
    const given = field.value;
    field.value = "";
    if (!(await act(given)) && !field.value) field.value = given;
  };
  $("new-class").addEventListener("submit", taken($("class-name"), (name) => change("POST", "/api/classes", { name }, `Class ${name} added`)));
  $("new-text").addEventListener("submit", taken($("text"), (text) => change("POST", "/api/texts", { text }, "Texts added")));
  for (const input of document.querySelectorAll("input[type=file]"))
    input.addEventListener("change", () => takeFiles(input.files, assign).then(() => { input.value = ""; }));
  for (const id of ["filter", "show", "of", "order"]) $(id).addEventListener("input", () => { most = PAGE; drawItems(); });
  $("more").addEventListener("click", () => { most += PAGE; drawItems(); });
  $("reject").addEventListener("change", () => change("POST", "/api/settings", { reject: $("reject").checked ? 0.05 : null }));
  $("take-folders").addEventListener("click", () => change("POST", "/api/folders", {}, "The folders are classes now"));
  $("take-labels").addEventListener("click", () => change("POST", "/api/named", {}, "The labels are classes now"));
  $("look").addEventListener("click", () => look(true));
  window.addEventListener("focus", () => look(false));
  document.addEventListener("visibilitychange", () => look(false));
  $("undo").addEventListener("click", () => step("undo"));
  $("redo").addEventListener("click", () => step("redo"));
  $("help").addEventListener("click", () => $("keys").showModal());
  $("close-notes").addEventListener("click", () => { read = JSON.stringify(state.notes); drawNotes(); });
  $("close-why").addEventListener("click", why);
  for (const link of $("export").querySelectorAll("a")) link.addEventListener("click", (event) => {
    $("export").open = false;
    if (classesInUse() >= Number(link.dataset.classes ?? 0)) { problem(""); return; }
    event.preventDefault();
    problem(link.dataset.classes === "1" ? "Nothing is labelled yet: give a class an example." : "There is no classifier yet: give two classes an example each.");
  });
  // Menus close where one clicks elsewhere, and by Escape.
  const closeMenus = (except) => { for (const menu of document.querySelectorAll(".menu[open]")) if (menu !== except) menu.open = false; };
  document.addEventListener("click", (event) => closeMenus(event.target.closest(".menu")));
  document.addEventListener("keydown", (event) => {
    const menu = event.key === "Escape" && event.target.closest(".menu[open]");
    if (menu) { menu.open = false; menu.querySelector("summary").focus(); }
  });
  for (const id of ["zoom", "keys"]) $(`close-${id}`).addEventListener("click", () => $(id).close());
  target(document.body, undefined, assign);
  theme();
  keys({
    assign: (n) => queued(() => {
      const named = state.classes.filter((c) => c.id !== 0);
      const c = n === 0 ? 0 : named[n - 1]?.id;
      return selected.size && c !== undefined ? assign([...selected], c) : undefined;
    }),
    clear: () => queued(() => selected.size && assign([...selected], null)),
    none: () => { selected = new Set(); mark(); },
    move: (by, extend) => move(current?.list ?? "items", by, extend),
    across: () => across(current?.list ?? "items"),
    next: () => queued(() => { const id = state.next[0]; if (id) choose(id, "next-items", false, true); }),
    undo: () => queued(() => step("undo")), redo: () => queued(() => step("redo")), why, zoom,
    filter: () => $("filter").focus(), create: () => $("class-name").focus(), help: () => $("keys").showModal(),
  });
}

function theme() {
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const told = () => {
    $("theme").textContent = dark() ? "Light" : "Dark";
    $("theme").title = $("theme").ariaLabel = `${$("theme").textContent} colours`;
  };
  const kept = localStorage.getItem("fewcal-theme");
  if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  $("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    localStorage.setItem("fewcal-theme", root.dataset.theme);
    told();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", told);
  told();
}

await refresh();
if (state) {
  wire();
  drawItems();
  document.documentElement.dataset.ready = "yes";
  // Features come in batches: no more than two redraws a second.
  const silent = "The server does not answer; changes are not saved. If it was stopped, start fewcal studio again and open the link that it prints.";
  listen(
    (revision) => {
      if ($("problem").textContent === silent) problem("");
      if (revision > state.revision && !waiting) waiting = setTimeout(refresh, 150);
    },
    (refused) => problem(refused ? "The server was started anew; open the link that it printed." : silent),
  );
}
