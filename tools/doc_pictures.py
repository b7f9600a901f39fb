"""Pictures of the running program for the documentation: `python tools/doc_pictures.py [DOCS]`.

- studio, studio-why, studio-phone: `fewcal studio --demo`, where letters are labelled as a person would do it;
- pictures, texts: the sheets of `fewcal classify` for pictures of letters and for sentences;
- report: the page of `fewcal report` for the features of the quickstart.

Everything is shown by Chromium, driven by tests/browser.py, and nothing is downloaded. `--only NAME` makes one of the
three groups alone.
"""

from __future__ import annotations

import argparse
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
# Whether all pictures in the window are there; the studio loads others when they are scrolled to.
LOADED = """[...document.images].every(image => {
  const box = image.getBoundingClientRect();
  return image.complete || box.bottom < 0 || box.top > innerHeight;
})"""
QUALITY = 82  # of a WebP picture in the documentation
# What the page on texts shows.
EXAMPLES = """text,label
my parcel has not arrived yet,delivery
where is the order from last week,delivery
the zip of the jacket broke,defect
the screen stays black,defect
please send the amount back to my card,refund
i was charged twice,refund
"""
TEXTS = """the courier left it with nobody
one of the legs is loose
can i have my money back
it has been in transit for ten days
the battery is empty after an hour
i paid for two and got one
"""


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
    """What the window shows, as a small WebP."""
    page.wait_for(LOADED)
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        page.screenshot(Path(file.name), whole=False)
        with Image.open(file.name) as picture:
            picture.convert("RGB").save(path, quality=QUALITY, method=6)
    if page.errors:
        raise SystemExit(f"{path}: errors on the page: {page.errors}")
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


def fewcal(*arguments: object) -> None:
    """Run the command line."""
    subprocess.run([sys.executable, "-m", "fewcal", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def sheets(browser: Browser, target: Path, folder: Path) -> None:
    """Contact sheets of pictures and of texts."""
    from fewcal.apply.studio.demo import demo_letters, shown
    from fewcal.features.glyphs import draw_examples

    for letter in demo_letters()[:4]:
        name = letter.name.replace(" letter", "")
        for where, rows, seed in (("photos", 2, 1), ("new", 5, 2)):
            (folder / where / name).mkdir(parents=True)
            for i, drawing in enumerate(draw_examples(letter, rows, seed=seed)):
                Image.fromarray(shown(drawing)).resize((128, 128)).save(folder / where / name / f"{i}.png")
    fewcal(
        "classify",
        "--support",
        folder / "photos",
        "--query",
        folder / "new",
        "-e",
        "glyphs",
        "--html",
        folder / "p.html",
    )
    taken(browser.open(folder / "p.html", width=1000, height=900), target / "pictures.webp")
    (folder / "examples.csv").write_text(EXAMPLES, encoding="utf-8")
    (folder / "new.txt").write_text(TEXTS, encoding="utf-8")
    fewcal("classify", "--support", folder / "examples.csv", "--query", folder / "new.txt", "--html", folder / "t.html")
    taken(browser.open(folder / "t.html", width=1100, height=760), target / "texts.webp")


def report(browser: Browser, target: Path, folder: Path) -> None:
    """The report of a run on the features of the quickstart."""
    from fewcal.features.synthetic import make_features

    make_features(base=80, novel=20, rows=40).save(folder / "features")
    protocol = ("--shot", "1", "--tasks", "500")
    fewcal(
        "evaluate",
        folder / "features",
        "--methods",
        "simpleshot,lr_l2,support-only,hgdc",
        *protocol,
        "--out",
        folder / "run",
        "-q",
    )
    fewcal("report", folder / "run", "--features", folder / "features", "--out", folder / "r.html", "-q")
    taken(browser.open(folder / "r.html", width=1200, height=860), target / "report.webp")


def studio(browser: Browser, target: Path, folder: Path) -> None:
    """The studio with labelled letters, light and dark, on a screen and on a phone."""
    truth, names = json.loads(subprocess.check_output([sys.executable, "-c", TRUTH], text=True))
    command = [sys.executable, "-m", "fewcal", "studio", f"{folder}/letters", "--demo", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        page = browser.open(server.stdout.readline().partition(": ")[2].strip(), width=1400, height=900)
        page.wait_for("document.documentElement.dataset.ready === 'yes'")
        page.wait_for("document.querySelectorAll('#items .card').length > 100")
        page.wait_for("document.querySelector('#work').hidden")
        label(page, truth, names, 24)
        page.wait_for("document.querySelector('#estimate').textContent.includes('correct')")
        page.js("document.activeElement.blur(); window.scrollTo(0, 0)")
        key(page, "Escape")
        taken(page, target / "studio.webp")
        page.click("#items .card")
        key(page, "w")
        page.wait_for("document.querySelectorAll('#why .near img').length > 5")
        page.js("window.scrollTo(0, 0)")
        page.scheme(True)
        taken(page, target / "studio-why.webp")
        page.click("#close-why")
        page.resize(400, 860)
        page.js("window.scrollTo(0, document.querySelector('#next').offsetTop - 20)")
        taken(page, target / "studio-phone.webp")
    finally:
        server.terminate()
        server.wait(60)


GROUPS = {"studio": studio, "sheets": sheets, "report": report}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("docs", type=Path, nargs="?", default=ROOT / "docs")
    parser.add_argument("--only", choices=GROUPS)
    options = parser.parse_args()
    with Browser() as browser:
        for name, group in GROUPS.items():
            if options.only in (None, name):
                with tempfile.TemporaryDirectory() as folder:
                    group(browser, options.docs, Path(folder))


if __name__ == "__main__":
    main()
