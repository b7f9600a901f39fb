"use strict";
(() => {
  const root = document.documentElement;
  const kept = (value) => {
    // A file opened from a disk may have no storage.
    try {
      if (value === undefined) return localStorage.getItem("fewcal-theme");
      localStorage.setItem("fewcal-theme", value);
    } catch { /* the choice lasts as long as the page */ }
    return null;
  };
  const saved = kept();
  if (saved === "dark" || saved === "light") root.dataset.theme = saved;
  const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

  const themeButton = (button) => {
    const show = () => {
      button.textContent = dark() ? "Light" : "Dark";
      button.setAttribute("aria-label", dark() ? "Switch to light colours" : "Switch to dark colours");
    };
    button.hidden = false;
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      kept(root.dataset.theme);
      show();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
    show();
  };

  const key = (row, column, numeric) => {
    const cell = row.cells[column];
    const text = cell.dataset.sort ?? (numeric ? "" : cell.textContent.trim());
    if (!numeric) return text;
    return text === "" ? null : Number(text);
  };

  const sortable = (table, status) => {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    heads.forEach((head, column) => {
      const numeric = head.classList.contains("num");
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        // Numbers begin with the largest, words with the first.
        const before = head.getAttribute("aria-sort");
        const up = before === "none" ? !numeric : before === "descending";
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...body.rows].map((row) => [key(row, column, numeric), row]);
        rows.sort(([a], [b]) => {
          if (a === null || b === null) return (a === null) - (b === null);
          const order = numeric ? a - b : a.localeCompare(b, undefined, { numeric: true });
          return up ? order : -order;
        });
        body.append(...rows.map(([, row]) => row));
        status.textContent = `Sorted by ${button.textContent.trim()}, ${up ? "ascending" : "descending"}.`;
      });
    });
  };

  // A table without room for its columns breaks long words on a screen, and on a phone becomes a list of its rows, so
  // that no number is cut.
  const ROLES = { TABLE: "table", THEAD: "rowgroup", TBODY: "rowgroup", TR: "row", TD: "cell" };
  const listable = (table) => {
    const heads = [...table.tHead.rows[0].cells].map((head) => head.textContent.trim());
    for (const part of [table, ...table.querySelectorAll("thead, tbody, tr, td")]) part.setAttribute("role", ROLES[part.tagName]);
    for (const head of table.querySelectorAll("th")) head.setAttribute("role", head.scope === "row" ? "rowheader" : "columnheader");
    for (const cell of table.tBodies[0].querySelectorAll("td")) {
      const value = document.createElement("span");
      value.append(...cell.childNodes);
      cell.append(value);
      cell.dataset.label = heads[cell.cellIndex];
    }
  };

  const fitting = (box) => {
    let seen = 0;
    let ready = false;
    new ResizeObserver(() => {
      if (!box.clientWidth || box.clientWidth === seen) return;
      seen = box.clientWidth;
      box.classList.remove("stacked", "tight");
      if (box.scrollWidth <= seen + 1) return;
      if (!matchMedia("(max-width: 60rem)").matches) {
        box.classList.add("tight");
        return;
      }
      if (!ready) listable(box.querySelector("table"));
      ready = true;
      box.classList.add("stacked");
    }).observe(box);
  };

  document.addEventListener("DOMContentLoaded", () => {
    themeButton(document.getElementById("theme"));
    const status = document.createElement("div");
    status.className = "hidden";
    status.setAttribute("role", "status");
    document.body.append(status);
    document.querySelectorAll("table[data-sortable]").forEach((table) => sortable(table, status));
    document.querySelectorAll(".scroll").forEach(fitting);
    const contents = document.querySelector("nav details");
    if (contents && matchMedia("(max-width: 70rem)").matches) contents.open = false;
    // A link into a folded part opens it.
    const reveal = () => {
      const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
      for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    };
    addEventListener("hashchange", reveal);
    reveal();
    let folded = [];
    addEventListener("beforeprint", () => {
      folded = [...document.querySelectorAll("main details:not([open])")];
      folded.forEach((part) => { part.open = true; });
    });
    addEventListener("afterprint", () => folded.forEach((part) => { part.open = false; }));
  });
})();
