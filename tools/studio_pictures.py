"""Pictures of the running studio for the documentation: `python tools/studio_pictures.py [DOCS]`.

Starts `fewcal studio --demo`, labels letters as a person would (Chromium, driven by tests/browser.py), and writes
studio.png, studio-why.png and studio-phone.png.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from browser import Browser, BrowserPage  # noqa: E402

# What the demo's letters are, told by the order in which they are drawn: the pictures need right labels.
TRUTH = """
import json
import numpy as np
from fewcal.apply.studio.demo import EACH, LETTERS, demo_letters
classes = (np.random.default_rng(0).permutation(LETTERS * EACH) // EACH).tolist()
print(json.dumps([classes, [glyph.name.replace(" letter", "") for glyph in demo_letters()]]))
"""
MOST_COLOURS = 128  # of a picture in the documentation


def key(page: BrowserPage, name: str) -> None:
    page.call("Input.dispatchKeyEvent", type="keyDown", key=name, code=name, text=name if len(name) == 1 else "")
    page.call("Input.dispatchKeyEvent", type="keyUp", key=name, code=name)


def label(page: BrowserPage, truth: list[int], names: list[str], labels: int) -> None:
    """Name the letters, then label what the studio proposes."""
    for name in names:
        page.js("document.activeElement.blur()")
        key(page, "c")
        page.call("Input.insertText", text=name)
        page.press("Enter")
        page.wait_for(f"[...document.querySelectorAll('#classes .what')].some(e => e.textContent === '{name}')")
    page.js("document.activeElement.blur()")
    for _ in range(labels):
        key(page, "n")
        item = page.wait_for("document.activeElement.closest('#next-items') && document.activeElement.title")
        key(page, str(truth[int(item[7:10]) - 1] + 1))
        page.wait_for(f"document.querySelector('#undo').title.startsWith('{item}')")


def taken(page: BrowserPage, path: Path) -> None:
    """What the window shows, as a small PNG."""
    page.images()
    page.screenshot(path, whole=False)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(MOST_COLOURS)
    small.save(path, optimize=True)


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs")
    truth, names = json.loads(subprocess.check_output([sys.executable, "-c", TRUTH], text=True))
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        command = [sys.executable, "-m", "fewcal", "studio", f"{folder}/letters", "--demo", "--no-browser"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            page = browser.open(server.stdout.readline().partition(": ")[2].strip(), width=1400, height=900)
            page.wait_for("document.documentElement.dataset.ready === 'yes'")
            page.wait_for("document.querySelectorAll('#items .card').length > 100", 120)
            page.wait_for("document.querySelector('#work').hidden", 120)
            label(page, truth, names, 14)
            page.wait_for("document.querySelector('#estimate').textContent.includes('right')")
            page.js("document.activeElement.blur(); window.scrollTo(0, 0)")
            key(page, "Escape")
            taken(page, target / "studio.png")
            page.click("#items .card")
            key(page, "w")
            page.wait_for("document.querySelectorAll('#why .near img').length > 5")
            page.js("window.scrollTo(0, 0)")
            page.scheme(True)
            taken(page, target / "studio-why.png")
            page.click("#close-why")
            page.resize(400, 860)
            page.js("window.scrollTo(0, document.querySelector('#next').offsetTop - 20)")
            taken(page, target / "studio-phone.png")
            print(f"written to {target}; errors on the page: {page.errors}")
        finally:
            server.terminate()
            server.wait(60)


if __name__ == "__main__":
    main()
