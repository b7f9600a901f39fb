// The keyboard: single keys, unless a field has the focus or a dialog is open; labels are given in the zoom as well.

export function keys(acts) {
  const moves = { ArrowLeft: () => -1, ArrowRight: () => 1, ArrowUp: () => -acts.across(), ArrowDown: () => acts.across() };
  const labels = { l: acts.pick, u: acts.undo, r: acts.redo, Delete: acts.clear, Backspace: acts.clear };
  const plain = {
    n: acts.next, z: acts.zoom, w: acts.why, c: acts.create, k: acts.check, "/": acts.filter, "?": acts.help, Escape: acts.none,
  };
  document.addEventListener("keydown", (event) => {
    const dialog = document.querySelector("dialog[open]");
    const zoomed = dialog?.id === "zoom";
    if (event.ctrlKey || event.metaKey || event.altKey || (dialog && (!zoomed || document.querySelector("#pick[open]")))) return;
    const field = event.target.closest("input, textarea, select");
    if (field) {
      if (event.key === "Escape") field.blur();
      return;
    }
    const card = event.target.closest(".card");
    // Enter on any other button is a click.
    const confirms = event.key === "Enter" && (zoomed ? !event.target.closest("button") : card?.getAttribute("aria-pressed") === "true");
    const act = confirms ? acts.confirm : /^[0-9]$/.test(event.key) ? () => acts.assign(Number(event.key))
      : labels[event.key] ?? (zoomed ? undefined : plain[event.key]);
    if (act) {
      event.preventDefault();
      act();
    } else if (moves[event.key] && (zoomed || card || event.target === document.body)) {
      event.preventDefault();
      acts.move(moves[event.key](), event.shiftKey && !zoomed);
    }
  });
}
