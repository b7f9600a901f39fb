"""A real browser for tests: Debian's Chromium without a window, driven over a pipe; the standard library suffices.

    with Browser() as browser:
        page = browser.open(path_or_address, width=400)
        page.js("document.title")
        assert page.errors == []

Tests take the `browser` fixture (conftest.py), which skips where there is no Chromium.
"""

from __future__ import annotations

import base64
import fcntl
import importlib.util
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from limits import PATIENCE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def _axe() -> Path | None:
    """axe-core, which knows what screen readers and keyboards need: of AXE_CORE, or of the package that brings it."""
    if "AXE_CORE" in os.environ:
        return Path(os.environ["AXE_CORE"])
    package = importlib.util.find_spec("axe_core_python")
    return None if package is None or package.origin is None else Path(package.origin).with_name("axe.min.js")


AXE = _axe()
_FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--no-default-browser-check", "--mute-audio", "--remote-debugging-pipe", "--force-prefers-reduced-motion"),
]
# Chromium talks over descriptors 3 and 4; a little Python puts the pipes there and becomes the browser.
_LAUNCH = "import os,sys; r,w=map(int,sys.argv[1:3]); os.dup2(r,3); os.dup2(w,4); os.execv(sys.argv[3],sys.argv[3:])"
_KEYS = {"Enter": ("\r", 13), "Tab": ("", 9), "Escape": ("", 27), " ": (" ", 32), "ArrowDown": ("", 40)}


class Browser:
    """One Chromium process; every page is a fresh tab."""

    def __init__(self, timeout: float = PATIENCE) -> None:
        if CHROMIUM is None:
            raise RuntimeError("no chromium on this machine")
        self.timeout = timeout
        self._folder = tempfile.mkdtemp(prefix="fewcal-browser-")
        to_read, self._write = _pipe()
        self._read, to_write = _pipe()
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(to_read), str(to_write), CHROMIUM]
        self._process = subprocess.Popen(
            [*launcher, *_FLAGS, f"--user-data-dir={self._folder}", "about:blank"],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._count = 0
        self.pages: dict[str, BrowserPage] = {}

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and remove its profile."""
        try:
            self.call("Browser.close")
            self._process.wait(10)
        except (OSError, RuntimeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self._folder, ignore_errors=True)

    def open(self, where: str | Path, width: int = 1280, height: int = 900, dark: bool = False) -> BrowserPage:
        """Open a file or an address and wait until it has loaded."""
        address = str(where) if "://" in str(where) else Path(where).resolve().as_uri()
        # A context of its own, so that no page finds what another has stored.
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", {"url": "about:blank", "browserContextId": context})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self.pages[session] = BrowserPage(self, session, context)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        page.scheme(dark)
        page.goto(address)
        return page

    # ---- the protocol ---------------------------------------------------------------------------------------------

    def call(self, method: str, params: dict[str, Any] | None = None, session: str | None = None) -> dict[str, Any]:
        """One command and its answer; events that come meanwhile go to their pages."""
        self._count += 1
        number = self._count
        message = {"id": number, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self.timeout
        while True:
            answer = self.receive(deadline)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])

    def receive(self, deadline: float) -> dict[str, Any]:
        """The next message; an event is given to its page as well."""
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise RuntimeError("the browser does not answer")
            chunk = os.read(self._read, 1 << 20)
            if not chunk:
                raise RuntimeError("the browser has ended")
            self._buffer += chunk
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message = dict(json.loads(raw))
        page = self.pages.get(message.get("sessionId", ""))
        if page is not None and "method" in message:
            page.event(message["method"], message["params"])
        return message


class BrowserPage:
    """One tab.

    Attributes
    ----------
    errors : list of str
        What went to the console as an error or a warning, exceptions, refused and failed loads.
    requests : list of str
        Addresses that the page asked for, itself and data: left out.
    """

    def __init__(self, browser: Browser, session: str, context: str) -> None:
        self.browser, self.session, self.context = browser, session, context
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        self._address = ""

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.browser.call(method, params, self.session)

    def event(self, name: str, params: dict[str, Any]) -> None:
        if name == "Page.loadEventFired":
            self._loaded = True
        elif name == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif name == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif name == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif name == "Network.requestWillBeSent":
            address = params["request"]["url"]
            if not address.startswith("data:") and address.partition("#")[0] != self._address:
                self.requests.append(address)

    def goto(self, address: str) -> None:
        """Load an address and wait for its `load` event."""
        self._loaded, self._address = False, address.partition("#")[0]
        answer = self.call("Page.navigate", url=address)
        if answer.get("errorText"):
            raise RuntimeError(f"{address}: {answer['errorText']}")
        deadline = time.monotonic() + self.browser.timeout
        while not self._loaded:
            self.browser.receive(deadline)

    def close(self) -> None:
        """Close the tab and forget all it stored."""
        self.browser.pages.pop(self.session, None)
        self.browser.call("Target.disposeBrowserContext", {"browserContextId": self.context})

    # ---- looking --------------------------------------------------------------------------------------------------

    def js(self, expression: str) -> Any:
        """The value of an expression, as JSON has it; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait_for(self, expression: str, seconds: float = PATIENCE) -> Any:
        """Wait until an expression is true, and give its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.js(expression)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"did not happen within {seconds:.0f} s: {expression}")
            time.sleep(0.05)
        return value

    def images(self) -> tuple[int, list[str]]:
        """How many pictures there are, and the alternative texts of those that did not load."""
        found = self.js(
            "Promise.all([...document.images].map(i => i.decode().then(() => [i.alt, i.naturalWidth > 0], "
            "() => [i.alt, false])))"
        )
        return len(found), [alt for alt, loaded in found if not loaded]

    def text(self, selector: str) -> list[str]:
        """Texts of all elements that a CSS selector finds."""
        return list(self.js(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent.trim())"))

    def overflow(self) -> list[str]:
        """Elements that stick out of the window to the right, those in a scrolling box left out; empty is good."""
        return list(
            self.js(
                """(() => {
                  const scrolls = (e) => e && (/(auto|scroll|hidden)/.test(getComputedStyle(e).overflowX)
                    && e !== document.body && e !== document.documentElement || scrolls(e.parentElement));
                  const wide = innerWidth + 1;
                  const out = document.documentElement.scrollWidth > wide ? ["the page itself"] : [];
                  for (const e of document.body.querySelectorAll("*"))
                    if (e.getBoundingClientRect().right > wide && !scrolls(e.parentElement))
                      out.push(e.tagName + "." + e.className + ": " + e.textContent.slice(0, 40));
                  return out;
                })()"""
            )
        )

    def contrast(self) -> list[str]:
        """Texts with a contrast below 4.5 against the colour behind them (WCAG 2, level AA); empty is good."""
        return list(
            self.js(
                """(() => {
                  const parse = (c) => [...c.match(/[\\d.]+/g).map(Number), 1].slice(0, 4);
                  const lum = (c) => c.slice(0, 3).map(v => v / 255)
                    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
                    .reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
                  const behind = (e) => {
                    for (; e; e = e.parentElement) {
                      const c = parse(getComputedStyle(e).backgroundColor);
                      if (c[3] > 0.99) return c;
                    }
                    return [255, 255, 255, 1];
                  };
                  const out = [];
                  for (const e of document.body.querySelectorAll("*")) {
                    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
                    if (!own || !e.getClientRects().length || e.closest(".hidden, script, style")) continue;
                    const [a, b] = [lum(parse(getComputedStyle(e).color)), lum(behind(e))].sort((x, y) => y - x);
                    const ratio = (a + 0.05) / (b + 0.05);
                    if (ratio < 4.5)
                      out.push(ratio.toFixed(2) + " " + e.tagName + ": " + e.textContent.trim().slice(0, 40));
                  }
                  return out;
                })()"""
            )
        )

    def faults(self) -> list[str]:
        """What axe-core finds that hinders people, with the elements; empty is good."""
        assert AXE is not None
        self.call("Page.setBypassCSP", enabled=True)
        self.js(AXE.read_text(encoding="utf-8") + "; true")
        found = self.js("axe.run().then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.html.slice(0, 120))]))")
        return [f"{name}: {elements}" for name, elements in found]

    def screenshot(self, path: str | Path, whole: bool = True) -> Path:
        """Save the page as PNG, from top to bottom or what the window shows."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        path = Path(path)
        path.write_bytes(base64.b64decode(data["data"]))
        return path

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16000), "scale": 1}}

    # ---- acting ---------------------------------------------------------------------------------------------------

    def resize(self, width: int, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, dark: bool) -> None:
        """What the reader's system prefers."""
        value = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def click(self, selector: str) -> None:
        """Click into the middle of the first element that a CSS selector finds."""
        found = self.js(
            f"""(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null;
            e.scrollIntoView({{block: "center", inline: "center"}}); const r = e.getBoundingClientRect();
            return [r.x + r.width / 2, r.y + r.height / 2]; }})()"""
        )
        if found is None:
            raise RuntimeError(f"nothing on the page is {selector}")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=found[0], y=found[1], button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Press a key: Enter, Tab, Escape, space or ArrowDown."""
        text, code = _KEYS[key]
        common = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def upload(self, selector: str, files: list[Path]) -> None:
        """Put files into an `<input type=file>`."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(f.resolve()) for f in files])


def _pipe() -> tuple[int, int]:
    """A pipe above the descriptors that the launcher fills."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]
