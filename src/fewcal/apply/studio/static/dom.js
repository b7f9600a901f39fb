// Elements from data. Names of classes and files only ever become text nodes and attributes, never markup.

export const $ = (id) => document.getElementById(id);

// The colour of a class by its id, which it keeps: hues a golden angle apart never come back, and neighbours differ most.
const colour = (id) => (id === 0 ? "var(--edge)" : `oklch(${[0.6, 0.52, 0.67][id % 3]} .14 ${((137.508 * id) % 360).toFixed(1)})`);

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "own") node.style.setProperty("--own", colour(value));
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

// A name that may be broken after what joins its parts: a_b, a-b, a.b, a/b.
export const breakable = (name) => name.split(/(?<=[_\-./])/).flatMap((part, n) => (n ? [el("wbr"), part] : [part]));

export const percent = (p) => `${Math.round(100 * p)}%`;

export function announce(text) {
  $("live").textContent = "";
  requestAnimationFrame(() => { $("live").textContent = text; });
}

export function problem(text) {
  if ($("problem").textContent === text) return; // announced once
  $("problem").textContent = text;
  $("problem").hidden = !text;
}

export function duration(seconds) {
  if (seconds === null) return "";
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s left`;
  return `${Math.round(seconds / 60)} min left`;
}

// Make a list hold these elements. Those that are there already stay untouched, with focus and what is open or typed.
export function place(list, nodes) {
  const kept = new Set(nodes);
  for (const node of [...list.children]) if (!kept.has(node)) node.remove();
  nodes.forEach((node, n) => { if (list.children[n] !== node) list.insertBefore(node, list.children[n] ?? null); });
}

// The address of a picture. Browsers keep them: another server on the same port has another session.
export const picture = (state, id, size) => `api/items/${id}/${size}.jpg?of=${state.session}`;
