// Files and items dropped on the page or on a class.

import { upload } from "./api.js";
import { problem, say } from "./dom.js";

const ITEMS = "application/x-fewcal-items";

export function dragItems(event, ids) {
  event.dataTransfer.setData(ITEMS, JSON.stringify(ids));
  event.dataTransfer.effectAllowed = "move";
}

export async function takeFiles(files, assign, number) {
  const wrong = [];
  const ids = [];
  for (const [n, file] of [...files].entries()) {
    say(`Adding ${n + 1} of ${files.length}`);
    try {
      ids.push(...(await upload(file)).items);
    } catch (error) {
      wrong.push(error.message);
    }
  }
  if (ids.length) await assign(ids, number);
  if (wrong.length) problem(wrong.slice(0, 3).join(" · ") + (wrong.length > 3 ? ` · and ${wrong.length - 3} more` : ""));
}

// Make an element take items and files; `number` gives its class, undefined for the page itself.
export function target(element, number, assign) {
  const known = (event) => [...event.dataTransfer.types].some((t) => t === ITEMS || t === "Files");
  element.addEventListener("dragover", (event) => {
    if (!known(event)) return;
    event.preventDefault();
    event.stopPropagation();
    element.classList.add("over");
  });
  element.addEventListener("dragleave", () => element.classList.remove("over"));
  element.addEventListener("drop", (event) => {
    element.classList.remove("over");
    if (!known(event)) return;
    event.preventDefault();
    event.stopPropagation();
    const items = event.dataTransfer.getData(ITEMS);
    if (items) {
      if (number !== undefined) assign(JSON.parse(items), number);
      return;
    }
    takeFiles(event.dataTransfer.files, assign, number);
  });
}
