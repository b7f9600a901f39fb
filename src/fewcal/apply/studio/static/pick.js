// A class by the beginning of its name, of any number of them; a name that is none yet becomes a class.

import { $, el } from "./dom.js";

let found = []; // what the list shows: [id or null for a new class, name]
let at = 0;

function draw(classes) {
  const typed = $("pick-name").value.trim().toLowerCase();
  const begins = (c) => c.name.toLowerCase().startsWith(typed);
  const holds = (c) => c.name.toLowerCase().includes(typed);
  const ordered = [...classes.filter(begins), ...classes.filter((c) => !begins(c) && holds(c))];
  found = ordered.map((c) => [c.id, c.name]);
  if (typed && !classes.some((c) => c.name.toLowerCase() === typed)) found.push([null, $("pick-name").value.trim()]);
  at = Math.min(at, Math.max(0, found.length - 1));
  $("pick-list").replaceChildren(...found.map(([id, name], n) =>
    el("li", { id: `pick-${n}`, role: "option", "aria-selected": String(n === at), data: { n: String(n) }, own: id ?? 0 },
      el("span", { class: "dot" }), id === null ? `New class: ${name}` : name)));
  $("pick-name").setAttribute("aria-activedescendant", found.length ? `pick-${at}` : "");
  $(`pick-${at}`)?.scrollIntoView({ block: "nearest" });
}

// Opens the list; `classes` come as they shall be shown, and `chosen` gets an id, or null and a new name.
export function pick(title, classes, chosen) {
  const input = $("pick-name");
  const take = (n) => {
    if (!found[n]) return;
    $("pick").close();
    chosen(...found[n]);
  };
  $("pick-title").textContent = title;
  input.value = "";
  at = 0;
  input.oninput = () => { at = 0; draw(classes); };
  input.onkeydown = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) at = Math.max(0, Math.min(found.length - 1, at + step));
    else if (event.key === "Enter") take(at);
    else return;
    event.preventDefault();
    if ($("pick").open) draw(classes);
  };
  $("pick-list").onclick = (event) => take(Number(event.target.closest("li")?.dataset.n ?? -1));
  draw(classes);
  $("pick").showModal();
  input.focus();
}
