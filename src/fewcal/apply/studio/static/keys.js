// The keyboard: single keys, unless a field has the focus or a dialog is open.

export function keys(acts) {
  const moves = { ArrowLeft: () => -1, ArrowRight: () => 1, ArrowUp: () => -acts.across(), ArrowDown: () => acts.across() };
  const plain = {
    n: acts.next, u: acts.undo, r: acts.redo, z: acts.zoom, w: acts.why, c: acts.create, "/": acts.filter, "?": acts.help,
    Delete: acts.clear, Backspace: acts.clear, Escape: acts.none,
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const field = event.target.closest("input, textarea, select");
    if (field) {
      if (event.key === "Escape") field.blur();
      return;
    }
    const act = /^[0-9]$/.test(event.key) ? () => acts.assign(Number(event.key)) : plain[event.key];
    const inside = event.target.closest(".cards");
    if (act) {
      event.preventDefault();
      act();
    } else if (moves[event.key] && (inside || event.target === document.body)) {
      event.preventDefault();
      acts.move(moves[event.key](), event.shiftKey);
    }
  });
}
