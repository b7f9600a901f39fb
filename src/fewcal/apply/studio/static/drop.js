// Files and items dropped on the page or on a class.

import { upload } from "./api.js";
import { announce, problem } from "./dom.js";

const ITEMS = "application/x-fewcal-items";

export function dragItems(event, ids) {
  event.dataTransfer.setData(ITEMS, JSON.stringify(ids));
  event.dataTransfer.effectAllowed = "move";
}

// All files of what was dropped. A folder comes as an entry, of which a browser hands out some at a time.
async function filesIn(entry) {
  if (entry.name.startsWith(".")) return [];
  if (entry.isFile) return [await new Promise((found, failed) => entry.file(found, failed))];
  const reader = entry.createReader();
  const files = [];
  for (;;) {
    const some = await new Promise((found, failed) => reader.readEntries(found, failed));
    if (!some.length) return files;
    for (const one of some) files.push(...(await filesIn(one)));
  }
}

async function droppedFiles(transfer) {
  // Entries must be taken before anything is waited for: the list is empty afterwards.
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.());
  if (!entries.some((entry) => entry?.isDirectory)) return [...transfer.files];
  return (await Promise.all(entries.filter(Boolean).map(filesIn))).flat();
}

export async function takeFiles(files, assign, number) {
  const wrong = [];
  const ids = [];
  for (const [n, file] of [...files].entries()) {
    announce(`Adding ${n + 1} of ${files.length}`);
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
  const takes = (event) => [...event.dataTransfer.types].some((t) => t === ITEMS || t === "Files");
  element.addEventListener("dragover", (event) => {
    if (!takes(event)) return;
    event.preventDefault();
    event.stopPropagation();
    element.classList.add("over");
  });
  element.addEventListener("dragleave", () => element.classList.remove("over"));
  element.addEventListener("drop", (event) => {
    element.classList.remove("over");
    if (!takes(event)) return;
    event.preventDefault();
    event.stopPropagation();
    const items = event.dataTransfer.getData(ITEMS);
    if (items) {
      if (number !== undefined) assign(JSON.parse(items), number);
      return;
    }
    droppedFiles(event.dataTransfer).then((files) => takeFiles(files, assign, number), (error) => problem(error.message));
  });
}
