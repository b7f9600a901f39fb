// The check of the examples: recall, labels to look at, near duplicates, confusions.

import { get } from "./api.js";
import { $, el, percent } from "./dom.js";
import { shown } from "./why.js";

const HARD = 48; // shown at once
const share = (part, whole) => (whole ? percent(part / whole) : "–");

function table(label, header, rows) {
  const cell = (tag) => (text, n) => el(tag, { scope: tag === "th" ? "col" : null, class: n && typeof text === "string" && /^[\d–]/.test(text) ? "num" : "" }, text);
  return el("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": label }, el("table", {},
    el("thead", {}, el("tr", {}, header.map(cell("th")))),
    el("tbody", {}, rows.map(([first, ...rest]) => el("tr", {}, el("th", { scope: "row" }, first), rest.map((text) => cell("td")(text, 1)))))));
}

function classes(check) {
  const byName = new Map(check.classes.map((c) => [c.name, c]));
  const rows = check.needs.map((name) => byName.get(name)).map((c) =>
    [c.name, String(c.examples), share(c.right, c.tested), c.confused ?? ""]);
  return [el("h3", {}, "Classes, those first that another example helps most"),
    table("Recall by class", ["class", "examples", "recall", "mostly confused with"], rows)];
}

function suspects(check, state, acts) {
  const ids = new Map(state.classes.map((c) => [c.name, c.id]));
  const kept = check.suspects.filter((s) => ids.has(s.answer));
  const list = (of) => el("ul", { class: "suspects" }, of.map((s) => el("li", {},
    el("button", { type: "button", class: "look", onclick: () => acts.zoom(s.item), "aria-label": `Zoom ${s.label}, answered ${s.answer}` }, shown(s.item, state)),
    el("p", {}, el("strong", {}, s.label), ` is answered ${s.answer}, ${percent(s.answer_probability)} against ${percent(s.label_probability)}`),
    el("button", { type: "button", onclick: () => acts.assign(s.item, ids.get(s.answer)) }, `Make it ${s.answer}`))));
  const likely = kept.filter((s) => s.likely);
  const hard = kept.filter((s) => !s.likely);
  return [
    ...(likely.length ? [el("h3", {}, `Labels to look at (${likely.length})`),
      el("p", { class: "quiet" }, "Left out, these examples are surely answered otherwise. Where one label of twenty is wrong, about 40% of these are wrong."), list(likely)] : []),
    ...(hard.length ? [el("details", {}, el("summary", {}, `Hard examples (${hard.length}): answered otherwise, but not surely`), list(hard.slice(0, HARD)))] : [])];
}

function duplicates(check, state) {
  if (!check.duplicates.length) return [];
  return [el("h3", {}, "Near duplicates"),
    el("p", { class: "quiet" }, "Nearly the same: one of each group teaches as much as all, and two labels in one group contradict each other."),
    el("ul", { class: "groups" }, check.duplicates.map((group) => el("li", {}, group.map((id) => {
      const item = state.items.find((i) => i.id === id);
      return el("figure", {}, shown(id, state), el("figcaption", {}, `${state.classes.find((c) => c.id === item?.label)?.name ?? ""}: ${item?.name ?? ""}`));
    }))))];
}

function confusions(check) {
  const names = check.classes.map((c) => c.name);
  const rows = check.confusion.map((row, i) => {
    const total = row.reduce((a, b) => a + b, 0);
    return [names[i], ...row.map((n, j) => el("span", { class: i === j ? "heat right" : "heat", data: { share: String(Math.ceil((4 * n) / (total || 1))) } }, n ? String(n) : "·"))];
  });
  return [el("h3", {}, "Answers (columns) to the examples of each class (rows)"), table("Confusion matrix", ["", ...names], rows)];
}

// Fill the dialog; `acts` has zoom(item) and assign(item, class).
export async function showCheck(state, acts) {
  const body = $("check-body");
  let check;
  try {
    check = await get("api/check");
  } catch (error) {
    body.replaceChildren(el("p", {}, error.message));
    return;
  }
  body.replaceChildren(...(check.classes && check.tested ? [
    el("p", {}, el("strong", {}, `${check.right} of ${check.tested} examples`), ` are answered correctly when they are left out (${share(check.right, check.tested)}).`,
      el("span", { class: "quiet" }, " Examples that were proposed are harder than most items; those alone in their class are not tested.")),
    ...suspects(check, state, acts), ...classes(check), ...duplicates(check, state), ...confusions(check),
  ] : [el("p", {}, "Give two classes two examples each: then every example can be answered by the others.")]));
}
