// The grids of items: which are shown, in which order, and one button for each.

import { $, el, percent, picture, place } from "./dom.js";

export const PAGE = 200;
const DOUBTFUL = 0.6;

export function name(state, id) {
  return state.classes.find((c) => c.id === id)?.name ?? "";
}

// What the filters leave, in the order that was chosen.
export function filtered(state) {
  const word = $("filter").value.trim().toLowerCase();
  const show = $("show").value;
  const of = $("of").value;
  const order = $("order").value;
  const otherwise = state.check?.otherwise ?? {};
  const kept = state.items.filter((item) => {
    const labelled = item.label !== undefined;
    if (show === "open" && (labelled || item.state === "failed")) return false;
    if (show === "labelled" && !labelled) return false;
    if (show === "otherwise" && !(item.id in otherwise)) return false;
    if (show === "failed" && item.state !== "failed") return false;
    if (show === "doubtful" && (labelled || !(item.top && item.top[0][1] < DOUBTFUL))) return false;
    if (of !== "" && String(labelled ? item.label : item.answer) !== of) return false;
    return !word || item.name.toLowerCase().includes(word) || (item.text ?? "").toLowerCase().includes(word);
  });
  const doubt = (item) => item.doubt ?? -1;
  if (show === "otherwise") return kept.sort((a, b) => otherwise[b.id][1] - otherwise[a.id][1]);
  if (order === "doubt") kept.sort((a, b) => doubt(b) - doubt(a) || a.id - b.id);
  if (order === "sure") kept.sort((a, b) => doubt(a) - doubt(b) || a.id - b.id);
  if (order === "name") kept.sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
  return kept;
}

// For screen readers alone.
const unseen = (text) => el("span", { class: "hidden" }, ` ${text} `);

function verdict(state, item) {
  if (item.state === "failed") return el("span", { class: "verdict bad", title: item.error }, "unreadable");
  if (item.state === "waiting") return el("span", { class: "verdict quiet" }, "…", unseen("no features yet"));
  const id = item.label ?? item.answer;
  if (id === undefined) return el("span", { class: "verdict quiet" }, "?", unseen("no answer yet"));
  const labelled = item.label !== undefined;
  const rather = labelled && state.check?.otherwise[item.id];
  return el("span", { class: `verdict${labelled ? " labelled" : ""}`, own: id }, el("span", { class: "dot" }),
    unseen(labelled ? "labelled" : "answer"), el("span", { class: "what", title: name(state, id) }, name(state, id)),
    rather && el("span", { class: "rather", title: `Left out, it is answered ${name(state, rather[0])} (${percent(rather[1])})` },
      `⚠ ${name(state, rather[0])}`));
}

// The probability of the answer. What is set aside because it resembles no class is not the most probable one: it has none.
function share(item) {
  if (item.label !== undefined) return el("span", { class: "share good", "aria-hidden": "true" }, "✓");
  if (!item.top || item.answer !== item.top[0][0]) return null;
  return el("span", { class: "share" }, percent(item.top[0][1]));
}

export function card(state, item) {
  const short = item.name.split("/").pop();
  const body = item.text !== undefined ? el("span", { class: "text" }, item.text)
    : item.state === "failed" ? el("span", { class: "text" }, item.error)
    : el("img", { src: picture(state, item.id, "thumbnail"), alt: "", loading: "lazy", decoding: "async", draggable: "false" });
  const button = el("button", {
    type: "button", class: "card", draggable: "true", title: item.name, "aria-pressed": "false",
    data: { id: String(item.id) },
  }, body);
  const answer = verdict(state, item);
  const last = item.text !== undefined ? answer : el("span", { class: "foot" }, el("span", { class: "name" }, short));
  last.append(share(item) ?? "");
  button.append(...new Set([answer, last]));
  return el("li", {}, button);
}

// Put cards into a list, keeping those that did not change, so that focus and loaded pictures stay.
export function fill(list, state, items) {
  const old = new Map([...list.children].map((li) => [li.dataset.key, li]));
  const fresh = items.map((item) => {
    const key = JSON.stringify([item, name(state, item.label ?? item.answer), state.check?.otherwise[item.id]]);
    if (old.has(key)) return old.get(key);
    const made = card(state, item);
    made.dataset.key = key;
    const before = [...list.children].find((li) => li.firstChild.dataset.id === String(item.id));
    const image = before?.querySelector("img");
    if (image) made.querySelector("img")?.replaceWith(image);
    return made;
  });
  place(list, fresh);
}
