"""A headless Chromium that tests drive by the DevTools protocol, over a WebSocket.

The protocol: https://chromedevtools.github.io/devtools-protocol/tot/
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # it refuses to start as root otherwise
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-port=0",
)
START_SECONDS = 60.0
# Key codes that a page's default actions need, https://www.w3.org/TR/uievents-key/
KEYS = {"Tab": 9, "Enter": 13, " ": 32, "Backspace": 8}
TEXTS = {"Enter": "\r", " ": " "}


class Chromium:
    """A page in the browser; each test has a new one.

    Attributes:
        requests: URLs that the page has requested, without data: and blob:.
        console: What it has written to the console, errors and warnings of the browser included.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._sent = 0
        self.requests: list[str] = []
        self.console: list[str] = []
        for domain in ("Page", "Network", "Runtime", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result."""
        self._sent += 1
        self._socket.send(json.dumps({"id": self._sent, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=180))
            if message.get("id") == self._sent:
                assert "error" not in message, (method, message)
                return message["result"]
            self._note(message.get("method"), message.get("params", {}))

    def _note(self, event: str | None, about: Any) -> None:
        if event == "Network.requestWillBeSent" and about["request"]["url"].startswith("http"):
            self.requests.append(about["request"]["url"])
        elif event == "Runtime.consoleAPICalled":
            self.console += [str(one.get("value", one.get("description"))) for one in about["args"]]
        elif event == "Runtime.exceptionThrown":
            self.console.append(about["exceptionDetails"]["exception"]["description"])
        elif event == "Log.entryAdded":
            self.console.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def run(self, expression: str) -> Any:
        """Return the value of JavaScript."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, (expression, found)
        return found["result"].get("value")

    def wait(self, condition: str, seconds: float = 20) -> None:
        """Wait until JavaScript is true."""
        deadline = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < deadline, f"not in time: {condition}; the page says: {self.text()}"
            time.sleep(0.02)

    def text(self, selector: str = "main") -> str:
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def says(self, text: str, selector: str = "main") -> None:
        """Wait until an element has a text."""
        self.wait(f"(document.querySelector({json.dumps(selector)})?.innerText ?? '').includes({json.dumps(text)})")

    def press(self, key: str, times: int = 1) -> None:
        about = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": KEYS[key]}
        for _ in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown", text=TEXTS.get(key, ""), **about)
            self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text: str) -> None:
        """Replace the value of the focused field."""
        self.run("document.activeElement.select()")
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        x, y = self._center(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def _center(self, selector: str) -> tuple[float, float]:
        box = self.run(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def choose(self, file: Path, selector: str = "input[type=file]") -> None:
        """Choose a file in the dialog of a file input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", files=[str(file)], nodeId=node)

    def drop(self, file: Path, selector: str) -> None:
        x, y = self._center(selector)
        data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def look(self, width: int, height: int = 800, *, dark: bool = False, paper: bool = False) -> None:
        """Set the window's size, the color scheme, and whether the page is printed."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="print" if paper else "", features=[scheme])

    def shot(self) -> bytes:
        """Return what the window shows, as a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])


class Browser:
    """A running Chromium."""

    def __init__(self, address: str) -> None:
        self._address = address

    @contextlib.contextmanager
    def page(self) -> Iterator[Chromium]:
        with connect(self._address, max_size=None) as whole:
            whole.send(json.dumps({"id": 1, "method": "Target.createTarget", "params": {"url": "about:blank"}}))
            target = json.loads(whole.recv(timeout=180))["result"]["targetId"]
            page = re.sub(r"/devtools/.*", f"/devtools/page/{target}", self._address)
            with connect(page, max_size=None, max_queue=None) as socket:  # a full queue would delay its end
                yield Chromium(socket)
            whole.send(json.dumps({"id": 2, "method": "Target.closeTarget", "params": {"targetId": target}}))
            whole.recv(timeout=180)


@contextlib.contextmanager
def running(program: str, profile: Path) -> Iterator[Browser]:
    """Start a Chromium with a new profile, and end it."""
    log = profile / "log"
    command = [program, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            deadline = time.monotonic() + START_SECONDS
            while not (address := re.search(r"DevTools listening on (ws://\S+)", log.read_text())):
                assert process.poll() is None and time.monotonic() < deadline, f"{program}: {log.read_text()}"
                time.sleep(0.02)
            yield Browser(address[1])
        finally:
            process.kill()
