"""Drives a headless Chromium as a person would, with keys, a pointer and eyes, by the Chrome DevTools Protocol over a pair of pipes."""
import base64
import collections
import contextlib
import fcntl
import json
import os
import pathlib
import queue
import threading
import time

from tools.browser.headless import browser

# Key: (code, number, text).
KEYS = {"Enter": ("Enter", 13, "\r"), "Tab": ("Tab", 9, ""), "Escape": ("Escape", 27, ""), " ": ("Space", 32, " "),
        "ArrowLeft": ("ArrowLeft", 37, ""), "ArrowUp": ("ArrowUp", 38, ""), "ArrowRight": ("ArrowRight", 39, ""),
        "ArrowDown": ("ArrowDown", 40, ""), "Delete": ("Delete", 46, "")}
MODIFIERS = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}


class Connection:
    """Sends commands and keeps the events that come meanwhile. Messages are JSON, each ended by a zero byte."""

    def __init__(self, to_browser, from_browser, timeout):
        self.out, self.timeout, self.number = to_browser, timeout, 0
        self.messages, self.events = queue.Queue(), collections.deque()
        threading.Thread(target=self.read, args=(from_browser,), daemon=True).start()

    def read(self, source):
        rest = b""
        while piece := os.read(source, 1 << 16):
            *whole, rest = (rest + piece).split(b"\0")
            for message in whole:
                self.messages.put(json.loads(message))
        self.messages.put(None)

    def next(self, timeout):
        message = self.messages.get(timeout=timeout)
        if message is None:
            raise RuntimeError("the browser has ended")
        if "id" not in message:
            self.events.append(message)
        return message

    def call(self, method, params, session):
        self.number += 1
        number, message = self.number, {"id": self.number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data):]
        while True:
            try:
                answer = self.next(self.timeout)
            except queue.Empty:
                raise TimeoutError(f"{method}: no answer for {self.timeout:g} s") from None
            if answer.get("id") == number:
                break
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def drain(self):
        with contextlib.suppress(queue.Empty):
            while True:
                self.next(0)


class Page:
    """A page in a browser. `faults` are errors of its scripts, what its policy refused, and what it asked of other hosts."""

    def __init__(self, connection, url):
        self.connection, self.session, self.origin, self.found = connection, None, url, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM", "Accessibility"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        self.go(url)

    def call(self, method, **params):
        return self.connection.call(method, params, self.session)

    def go(self, url):
        self.call("Page.navigate", url=url)

    def close(self):
        self.call("Page.close")

    def value(self, expression):
        """Returns what a JavaScript expression gives, as JSON; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails'].get('exception', {}).get('description')}")
        return answer["result"].get("value")

    def wait(self, expression):
        """Waits until the expression gives an element or something else that is true, and returns it. A hang fails the test, slowness does not."""
        end = time.monotonic() + self.connection.timeout
        while True:
            try:
                if value := self.value(f"(found => found instanceof Node || found)({expression})"):
                    return value
            except RuntimeError:
                pass  # as while a document is being replaced by another
            if time.monotonic() > end:
                raise AssertionError(f"never came true: {expression}\n{self.value('document.body.innerText')}")
            time.sleep(0.02)

    def text(self, selector):
        return self.value(f"document.querySelector({json.dumps(selector)}).innerText")

    def click(self, selector):
        box = self.wait(f"""(element => {{
          element.scrollIntoView({{block: 'center', behavior: 'instant'}});
          const {{left, top, width, height}} = element.getBoundingClientRect();
          return width > 0 && [left + width / 2, top + height / 2];
        }})(document.querySelector({json.dumps(selector)}))""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def press(self, key, *modifiers, times=1):
        code, number, text = KEYS[key]
        held = sum(MODIFIERS[name] for name in modifiers)
        words = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": held}
        if text and not held & ~MODIFIERS["Shift"]:
            words["text"] = text
        for _ in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown", **words)
            self.call("Input.dispatchKeyEvent", type="keyUp", **{name: word for name, word in words.items() if name != "text"})

    def type(self, text):
        """Types into what has the focus, in place of what is selected."""
        self.call("Input.insertText", text=text)

    def fill(self, selector, text):
        self.value(f"(input => {{ input.focus(); input.select(); }})(document.querySelector({json.dumps(selector)}))")
        self.type(text) if text else self.press("Delete")

    def look_as(self, width, height=900, scheme="light", motion="no-preference"):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        self.call("Emulation.setEmulatedMedia", features=[{"name": name, "value": value} for name, value in features.items()])

    def screenshot(self, path):
        path = pathlib.Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def choose_file(self, selector, *paths):
        node = self.call("Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)})")["result"]["objectId"]
        self.call("DOM.setFileInputFiles", files=[os.fspath(path) for path in paths], objectId=node)

    def drop_file(self, path):
        """Drops a file into the middle of the window."""
        data = {"items": [], "files": [os.fspath(path)], "dragOperationsMask": 1}
        x, y = self.value("[innerWidth / 2, innerHeight / 2]")
        for kind in ("dragEnter", "dragOver", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)
            # The page says whether it takes the file when it has been told of it, which a busy machine may delay.
            self.value("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")

    def accessible(self):
        """(role, name) of everything that a screen reader meets."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")]

    def faults(self):
        self.connection.drain()
        for event in list(self.connection.events):
            if event.get("sessionId") != self.session:
                continue
            self.connection.events.remove(event)
            method, params = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.found.append(details.get("exception", {}).get("description", details["text"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] == "error" and params["entry"]["source"] != "network":
                self.found.append(params["entry"]["text"])
            elif method == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith((self.origin, "blob:", "data:")):
                    self.found.append(f"asks for {url}")
        return self.found


@contextlib.contextmanager
def driven(program, timeout=60):
    """Yields a function that opens a page in a browser of its own."""
    pipes = [os.pipe(), os.pipe()]
    # Above 10, so that none is one of the two numbers by which the browser knows them.
    (commands, to_browser), (from_browser, answers) = [[fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in pipe] for pipe in pipes]
    for end in (*pipes[0], *pipes[1]):
        os.close(end)

    def before():
        os.dup2(commands, 3)
        os.dup2(answers, 4)

    with browser(program, "--remote-debugging-pipe", preexec_fn=before, pass_fds=(3, 4)):
        os.close(commands)
        os.close(answers)
        connection = Connection(to_browser, from_browser, timeout)
        try:
            yield lambda url: Page(connection, url)
        finally:
            os.close(to_browser)
