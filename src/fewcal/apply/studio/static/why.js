// The panel that shows what supports an answer.

import { get } from "./api.js";
import { $, breakable, el, percent, picture } from "./dom.js";

function bars(pairs, label) {
  return el("ul", { class: "bars", "aria-label": label }, pairs.map(([name, share]) => {
    const bar = el("span", { class: "fill" });
    bar.style.width = `${100 * Math.min(1, share)}%`;
    return el("li", {}, el("span", { class: "what" }, breakable(name)), el("span", { class: "track", "aria-hidden": "true" }, bar),
      el("span", { class: "share" }, percent(share)));
  }));
}

export function shown(item, state) {
  const found = state.items.find((i) => i.id === item);
  if (found?.text !== undefined) return el("span", { class: "text" }, found.text);
  return el("img", { src: picture(state, item, "thumbnail"), alt: found?.name ?? "", loading: "lazy" });
}

let newest = 0;

export async function explain(item, state) {
  const mine = ++newest;
  if ($("why").hidden || !item) return;
  let story;
  try {
    story = await get(`api/items/${item.id}/why`);
  } catch (error) {
    if (mine === newest) $("why-body").replaceChildren(el("p", {}, error.message));
    return;
  }
  if (mine !== newest) return; // another item was chosen meanwhile
  const parts = [el("figure", { class: "subject" }, shown(item.id, state), el("figcaption", {}, item.name))];
  if (story.probabilities.length) parts.push(el("h3", {}, "Probabilities"), bars(story.probabilities, "Probabilities"));
  else parts.push(el("p", {}, "Answers come with examples of two classes."));
  if (story.outlier !== null)
    parts.push(el("p", { class: "quiet" }, `About ${percent(story.outlier)} of the members of your classes are as unlike them as this item; below ${percent(state.reject ?? 0.05)} it is set aside.`));
  if (story.nearest.length) {
    parts.push(el("h3", {}, "Most similar examples"), el("ul", { class: "near" }, story.nearest.map((near) =>
      el("li", {}, shown(near.id, state), el("span", {}, breakable(near.class), `, similarity ${near.similarity.toFixed(2).replace("-", "−")}`)))));
  }
  if (story.bases.length) {
    parts.push(el("h3", {}, `Base classes that shape ${story.answer}`), el("ul", { class: "near" }, story.bases.map((base) =>
      el("li", {}, base.picture ? el("img", { src: `api/base.jpg?name=${encodeURIComponent(base.name)}`, alt: "" }) : null,
        el("span", {}, `${base.name}, ${percent(base.share)} of its mean`)))));
  }
  $("why-body").replaceChildren(...parts);
}
