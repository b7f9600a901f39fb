// The studio's page: one state from the server, drawn again after every change.

import { get, listen, send } from "./api.js";
import { PAGE, fill, filtered, name } from "./cards.js";
import { showCheck } from "./check.js";
import { $, announce, breakable, duration, el, percent, picture, place, problem } from "./dom.js";
import { dragItems, takeFiles, target } from "./drop.js";
import { keys } from "./keys.js";
import { pick } from "./pick.js";
import { explain } from "./why.js";

let state = null;
let selected = new Set();
let current = null; // the item that keys move from
let limit = PAGE;
const NOTES = 3; // shown at once
const CHIPS = 12; // of classes; the others are behind one of their own
const LONG_NAME = 28; // characters; on a small screen such a class has a line to itself

// ---- changes --------------------------------------------------------------------------------------------------------

async function change(method, path, body, words) {
  try {
    const before = new Map(state.items.map((i) => [i.id, i.answer]));
    const fresh = await send(method, path, body);
    draw(fresh);
    const moved = state.items.filter((i) => before.has(i.id) && before.get(i.id) !== i.answer).length;
    problem("");
    const what = typeof words === "function" ? words(fresh.done) : words;
    if (what) announce(`${what}.${moved ? ` ${moved} answer${moved === 1 ? "" : "s"} changed.` : ""}`);
    return state;
  } catch (error) {
    problem(error.message);
    return null;
  }
}

// Label items: pairs of an id and a class, which is null where the label goes.
async function label(pairs) {
  const list = current?.list;
  const place = list ? [...$(list).children].findIndex((li) => li.firstChild.dataset.id === String(current.id)) : -1;
  const goesOn = $("zoom").open || document.activeElement?.classList.contains("card");
  const what = pairs.length === 1 ? state.items.find((i) => i.id === pairs[0][0])?.name ?? "1 item" : `${pairs.length} items`;
  const classes = [...new Set(pairs.map(([, number]) => number))];
  const done = await change("POST", "api/labels", { labels: pairs }, classes.length > 1 ? `${what} are labelled`
    : classes[0] === null ? `${what}: label taken away` : `${what} is ${name(state, classes[0])}`);
  if (!done) return;
  // Go on with what took the place of the item, as in a pile.
  if (goesOn && place >= 0) {
    const cards = $(list).children;
    const next = cards[Math.min(place, cards.length - 1)];
    if (next) choose(Number(next.firstChild.dataset.id), list, false, true);
    else $("zoom").close();
  }
}

// Files that were dropped on the page, not on a class, get no label.
const assign = (ids, number) => (number === undefined ? refresh() : label(ids.map((id) => [id, number])));

// What Enter makes the label: the answer, or of an example that is answered otherwise when left out that answer.
const proposal = (i) => (i.label === undefined ? i.answer : state.check?.otherwise[i.id]?.[0]);

function confirm() {
  const pairs = state.items.filter((i) => selected.has(i.id)).map((i) => [i.id, proposal(i)]).filter(([, number]) => number !== undefined);
  return pairs.length ? label(pairs) : announce("No answer is proposed");
}

// Any class, by the beginning of its name.
function pickClass() {
  const ids = [...selected];
  if (!ids.length) return announce("Select an item first");
  const title = ids.length === 1 ? item()?.text ?? item()?.name ?? "1 item" : `${ids.length} items`;
  return pick(title, byProbability(), (id, fresh) => queued(async () => {
    if (id === null) id = (await change("POST", "api/classes", { name: fresh }, ""))?.classes.find((c) => c.name === fresh)?.id;
    return id === undefined ? undefined : assign(ids, id);
  }));
}

// One after the other: a key pressed before the last answer came acts on what that answer leaves.
let last = Promise.resolve();
const queued = (act) => { last = last.then(act, act); };

// Another page may have changed something meanwhile: the server says what it was.
const step = (way) => {
  if (!state[way]) return undefined;
  return change("POST", `api/${way}`, {}, (done) => (done ? `${way === "undo" ? "Undone" : "Done again"}: ${done}` : ""));
};

let waiting = null;
async function refresh() {
  clearTimeout(waiting);
  waiting = null;
  try {
    draw(await get("api/state"));
  } catch (error) {
    problem(error.message);
  }
}

// New files in the folder: by hand, and on coming back to the page, as after copying them there. Every page hears
// of what is found by its events.
let looking = null; // one look serves the click and the focus that comes with it
async function look(byHand) {
  if (document.hidden) return;
  try {
    looking ??= send("POST", "api/rescan").finally(() => { looking = null; });
    const found = (await looking).new;
    if (byHand) problem("");
    $("looked").textContent = found ? `${found} new item${found === 1 ? "" : "s"}.` : byHand ? "Nothing more in the folder." : "";
    if (found) await refresh();
  } catch (error) {
    if (byHand) problem(error.message); // of other looks no answer is expected, and the events notice a server that is gone
  }
}

// ---- selection ------------------------------------------------------------------------------------------------------

function choose(id, list, extend = false, focus = false) {
  if (!extend) selected = new Set();
  if (extend && selected.has(id)) selected.delete(id); else selected.add(id);
  current = { id, list };
  mark();
  if (focus) $(list).querySelector(`[data-id="${id}"]`)?.focus();
  if ($("zoom").open) drawZoom();
  explain(item(), state);
}

const item = () => state.items.find((i) => i.id === current?.id);

function mark() {
  const present = new Set(state.items.map((i) => i.id));
  selected = new Set([...selected].filter((id) => present.has(id)));
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
  if (state?.session === fresh.session && fresh.revision < state.revision) return; // an older answer that came late
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
  $("reject-box").hidden = state.base_classes === null && !state.classes.some((c) => c.count > 1);
  $("reject").checked = state.reject !== null;
  $("take-folders").hidden = !state.folders.length;
  $("take-folders").textContent = `Take the ${state.folders.length} folders as classes`;
  $("take-folders").title = state.folders.join(", ");
  $("take-labels").hidden = !state.named.length;
  $("take-labels").textContent = state.named.length === 1 ? "Take the label as a class" : `Take the ${state.named.length} labels as classes`;
  $("take-labels").title = state.named.join(", ");
  drawClasses();
  drawItems();
  if ($("zoom").open) drawZoom();
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
  const { expected, check } = state;
  const sources = state.named.length ? "; or take the labels as classes" : state.folders.length ? "; or take the folders as classes" : "";
  const [first, more] =
    !state.items.length ? ["Begin with pictures or texts.", "Drop files anywhere on this page."]
    : state.classes.length < 2 ? ["Name your classes.", `Type a name, Add, and again for the next one${sources}.`]
    : classesInUse() < 2 && state.items.some((i) => i.label !== undefined && i.state === "waiting")
      ? ["Computing the features of your examples.", "Answers follow."]
    : classesInUse() < 2 ? ["Give two classes an example each.", "Select an item, then click its class: all others are answered at once."]
    : !expected ? ["All items have labels.", ""]
    : state.classes.some((c) => c.id !== 0 && !c.count) ? ["Too early for an accuracy.", `${state.classes.find((c) => c.id !== 0 && !c.count).name} has no example yet.`]
    : expected.accuracy !== null ? [`About ${percent(expected.accuracy)} correct`, `(95% interval ${percent(expected.low)} to ${percent(expected.high)}).`]
    : expected.classes_missing ? ["Too early for an accuracy.", `Up to ${percent(expected.unseen)} of the items may belong to classes without an example: label what is proposed.`]
    : ["Too early for an accuracy.", `So far it may lie anywhere from ${percent(expected.low)} to ${percent(expected.high)}.`];
  $("estimate").replaceChildren(el("strong", {}, first), " ", el("span", { class: "quiet" }, more));
  const wrong = Object.values(check?.otherwise ?? {}).filter(([, , likely]) => likely).length;
  $("show-check").replaceChildren(`Check${wrong ? ` (${wrong})` : ""} `, el("kbd", {}, "k"));
  $("show-check").title = wrong ? `${wrong} label${wrong === 1 ? "" : "s"} to look at` : "Cross-validation of the examples";
}

function classRow(c, key, examples) {
  const row = el("li", { class: `class${c.name.length > LONG_NAME ? " long" : ""}`, own: c.id, data: { id: String(c.id) } },
    el("button", {
      type: "button", class: "give", onclick: () => (selected.size ? assign([...selected], c.id) : announce("Select an item first")),
      title: "Give the selected items this class",
    }, el("span", { class: "dot" }), el("span", { class: "what" }, breakable(c.name)), el("span", { class: "share" }, String(c.count),
      el("span", { class: "hidden" }, c.count === 1 ? " example" : " examples")), key ? el("kbd", { "aria-hidden": "true" }, key) : null),
    c.id !== 0 ? el("details", { class: "menu" }, el("summary", { "aria-label": `Change the class ${c.name}` }, "⋯"),
      el("ul", {}, el("li", {}, el("button", { type: "button", onclick: () => rename(c) }, "Rename")),
        el("li", {}, el("button", { type: "button", onclick: () => change("DELETE", `api/classes/${c.id}`, {}, `${c.name} removed`) }, "Remove")))) : null,
    examples.length ? el("ul", { class: "examples", "aria-label": `Examples of ${c.name}` }, examples.map((i) => el("li", {}, el("button", {
      type: "button", title: `${i.name}: take the label away`, onclick: () => assign([i.id], null),
    }, el("span", { class: "hidden" }, `Take the label from ${i.text === undefined ? i.name : ""} `), i.text === undefined ? el("img", { src: picture(state, i.id, "thumbnail"), alt: "", loading: "lazy" }) : i.text.length > 24 ? `${i.text.slice(0, 23)}…` : i.text)))) : null);
  target(row, c.id, assign);
  return row;
}

// "None of these" is the last one.
const inOrder = () => [...state.classes.filter((c) => c.id !== 0), ...state.classes.filter((c) => c.id === 0)];

// The classes as the answers to the selected item have them, the most probable first.
function byProbability() {
  const top = new Map(selected.size === 1 ? item()?.top : []);
  return inOrder().sort((a, b) => (top.get(b.id) ?? 0) - (top.get(a.id) ?? 0));
}

// Rows that did not change stay, and so does one in which a name is being typed: features arrive and other pages change
// things at any time.
function drawClasses() {
  const list = $("classes");
  const own = document.activeElement?.closest("#classes > li")?.dataset.id;
  const ordered = inOrder();
  const old = new Map([...list.children].map((row) => [row.dataset.id, row]));
  place(list, ordered.map((c, n) => {
    const key = c.id === 0 ? "0" : n < 9 ? String(n + 1) : "";
    const examples = state.items.filter((i) => i.label === c.id).slice(-5);
    const shows = JSON.stringify([c, key, examples.map((i) => i.id), state.session]);
    const before = old.get(String(c.id));
    if (before && (before.dataset.shows === shows || before.querySelector("form"))) return before;
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
    if (await change("PATCH", `api/classes/${c.id}`, { name: input.value }, `${c.name} is now ${input.value}`)) close();
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
  fill($("items"), state, shown.slice(0, limit));
  const failed = state.items.filter((i) => i.state === "failed").length;
  $("count").textContent = `${shown.length} of ${state.items.length}${failed ? `, ${failed} unreadable` : ""}`;
  $("more").hidden = shown.length <= limit;
  $("nothing").hidden = shown.length > 0 || !state.items.length;
  $("begin").hidden = state.items.length > 0;
  $("list").hidden = !state.items.length;
  document.body.classList.toggle("unnamed", state.classes.length < 2);
  $("next-why").textContent = state.expected ? "Labelling these helps most: many doubtful items resemble them." : "Begin with these: many items resemble them.";
  if (kept && !document.activeElement?.classList.contains("card")) $(kept[1]).querySelector(`[data-id="${kept[0]}"]`)?.focus();
  mark();
}

function chips(one) {
  const all = byProbability();
  const ordered = all.length > CHIPS + 2 ? all.slice(0, CHIPS) : all;
  const keyOf = new Map(inOrder().filter((c) => c.id !== 0).slice(0, 9).map((c, n) => [c.id, String(n + 1)]).concat([[0, "0"]]));
  const labelled = state.items.some((i) => selected.has(i.id) && i.label !== undefined);
  return [
    ...ordered.map((c) =>
      el("button", { type: "button", class: "chip", own: c.id, onclick: () => assign([...selected], c.id) },
        el("span", { class: "dot" }), el("span", { class: "what", title: c.name }, c.name),
        one && proposal(one) === c.id ? el("kbd", { "aria-hidden": "true" }, "Enter")
          : keyOf.has(c.id) ? el("kbd", { "aria-hidden": "true" }, keyOf.get(c.id)) : null)),
    el("button", { type: "button", onclick: pickClass }, all.length > ordered.length ? `${all.length - CHIPS} more… ` : "Other… ", el("kbd", { "aria-hidden": "true" }, "l")),
    labelled ? el("button", { type: "button", onclick: () => assign([...selected], null) }, "Take label away") : "",
  ];
}

function drawActions() {
  const bar = $("actions");
  bar.hidden = selected.size === 0;
  if (!selected.size) return;
  const one = selected.size === 1 && item();
  // Drawn again only where it changes: a click on a button that is replaced meanwhile would be lost.
  const shows = JSON.stringify([[...selected], byProbability().map((c) => [c.id, c.name]), one && [one.id, proposal(one)],
    state.items.some((i) => selected.has(i.id) && i.label !== undefined)]);
  if (bar.dataset.shows === shows) return;
  bar.dataset.shows = shows;
  bar.replaceChildren(el("span", { class: "what" }, one ? one.text ?? one.name : `${selected.size} items`), ...chips(one),
    ...(one ? [el("button", { type: "button", onclick: why }, "Why"), el("button", { type: "button", onclick: zoom }, "Zoom")] : []));
}

function why() {
  $("why").hidden = !$("why").hidden;
  explain(item(), state);
}

function drawZoom() {
  const one = item();
  if (!one) return;
  const answer = one.label ?? one.answer;
  const words = answer === undefined ? "" : one.label !== undefined ? `: ${name(state, answer)} ✓`
    : `: ${name(state, answer)}?${one.top[0][0] === answer ? ` ${percent(one.top[0][1])}` : ""}`;
  $("zoom-title").textContent = `${one.name}${words}`;
  $("zoom-body").replaceChildren(one.text !== undefined || one.state === "failed" ? el("p", {}, one.text ?? one.error)
    : el("img", { src: picture(state, one.id, "zoomed"), alt: one.name }));
  $("zoom-chips").replaceChildren(...chips(one));
}

function zoom() {
  if (!item()) return;
  drawZoom();
  $("zoom").showModal();
}

const openCheck = async () => {
  if (!$("check").open) $("check").showModal();
  await showCheck(state, {
    zoom: (id) => { choose(id, "items"); zoom(); },
    assign: (id, number) => queued(async () => { await label([[id, number]]); await openCheck(); }),
  });
};

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
  $("new-class").addEventListener("submit", taken($("class-name"), (name) => change("POST", "api/classes", { name }, `Class ${name} added`)));
  $("new-text").addEventListener("submit", taken($("text"), (text) => change("POST", "api/texts", { text }, "Texts added")));
  for (const input of document.querySelectorAll("input[type=file]"))
    input.addEventListener("change", () => takeFiles(input.files, assign).then(() => { input.value = ""; }));
  for (const id of ["filter", "show", "of", "order"]) $(id).addEventListener("input", () => { limit = PAGE; drawItems(); });
  $("more").addEventListener("click", () => { limit += PAGE; drawItems(); });
  $("reject").addEventListener("change", () => change("POST", "api/settings", { reject: $("reject").checked ? 0.05 : null }));
  $("take-folders").addEventListener("click", () => change("POST", "api/folders", {}, "The folders are classes now"));
  $("take-labels").addEventListener("click", () => change("POST", "api/named", {}, "The labels are classes now"));
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
  $("show-check").addEventListener("click", openCheck);
  for (const id of ["zoom", "pick", "check", "keys"]) $(`close-${id}`).addEventListener("click", () => $(id).close());
  // Back to the card that was zoomed last.
  $("zoom").addEventListener("close", () => { if (current) $(current.list).querySelector(`[data-id="${current.id}"]`)?.focus(); });
  target(document.body, undefined, assign);
  theme();
  keys({
    assign: (n) => queued(() => {
      const named = state.classes.filter((c) => c.id !== 0);
      const c = n === 0 ? 0 : named[n - 1]?.id;
      return selected.size && c !== undefined ? assign([...selected], c) : undefined;
    }),
    confirm: () => queued(() => selected.size && confirm()), pick: pickClass, check: openCheck,
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
  const name = () => {
    $("theme").textContent = dark() ? "Light" : "Dark";
    $("theme").title = $("theme").ariaLabel = `${$("theme").textContent} colours`;
  };
  const kept = localStorage.getItem("fewcal-theme");
  if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  $("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    localStorage.setItem("fewcal-theme", root.dataset.theme);
    name();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  name();
}

await refresh();
if (state) {
  wire();
  drawItems();
  document.documentElement.dataset.ready = "yes";
  // Features come in batches: no more than two redraws a second.
  const silent = "The server does not answer; changes are not saved. If it was stopped, start fewcal studio again and open the link that it prints.";
  listen(
    (session, revision) => {
      if ($("problem").textContent === silent) problem("");
      if ((session !== state.session || revision > state.revision) && !waiting) waiting = setTimeout(refresh, 150);
    },
    (refused) => problem(refused ? "The server was started again; open the link that it printed." : silent),
  );
}
