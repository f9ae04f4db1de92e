"""A headless Chromium for tests of pages: opens a page at a width, and collects the errors on it.

It speaks the WebDriver protocol with chromedriver over HTTP, so it needs nothing but Python. `missing_tools` says why
it cannot run here; a test then skips itself with that reason.
"""
import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HEIGHT = 900  # pixels of a window


def missing_tools():
    """What a browser test lacks on this machine, in words; None if it can run."""
    if not any(map(shutil.which, BROWSERS)):
        return "no browser: install the package chromium"
    if not shutil.which("chromedriver"):
        return "no driver of the browser: install the package chromium-driver"
    return None


class Browser:
    """One browser with one tab. Use it in a `with` statement, which ends it."""

    def __enter__(self):
        self.driver = subprocess.Popen([shutil.which("chromedriver"), "--port=0"], stdout=subprocess.PIPE,
                                       stderr=subprocess.DEVNULL, text=True)
        try:
            self.address = f"http://127.0.0.1:{self._port()}"
            arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                         "--force-color-profile=srgb"]
            browser = next(filter(None, map(shutil.which, BROWSERS)))
            options = {"binary": browser, "args": arguments}
            session = self._send("POST", "/session", {"capabilities": {"alwaysMatch": {
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }}})
            self.session = f"/session/{session['sessionId']}"
            self.documents, self.left = set(), set()  # which have asked for something; those from before the page
        except BaseException:
            self.driver.kill()
            self.driver.wait()
            raise
        return self

    def __exit__(self, *_):
        try:
            self._send("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait()

    def set_width(self, width, height=HEIGHT):
        """Shows pages as on a screen of `width` pixels; below 600 like a telephone."""
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                     mobile=width < 600)

    def set_dark(self, dark):
        """Whether the system asks for dark pages."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.command("Emulation.setEmulatedMedia", features=features)

    def open(self, url):
        """Loads `url` and forgets what was logged before."""
        self.console()
        self._requests()
        self.left = set(self.documents)
        self._send("POST", self.session + "/url", {"url": url})

    def url(self):
        return self._send("GET", self.session + "/url")

    def run(self, script, *arguments):
        """What `script`, the body of a JavaScript function of `arguments`, returns."""
        return self._send("POST", self.session + "/execute/sync", {"script": script, "args": list(arguments)})

    def wait_until(self, script, *arguments, seconds=120):
        """Returns the first true value of `script`. @raise TimeoutError after `seconds` without one."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = self.run(script, *arguments)
            if value:
                return value
            time.sleep(0.02)  # asking without a pause would take the processor from the page
        raise TimeoutError(f"within {seconds} s this never was true: {script}")

    def click(self, selector):
        """Clicks on the first element of a CSS selector as a user would: in sight, and with nothing on top of it."""
        self._element(selector, "click", {})

    def type(self, selector, text):
        self._element(selector, "value", {"text": text})

    def enter_frame(self, selector):
        """Makes scripts and selectors mean the page inside of a frame, until `leave_frames` or `open`."""
        self._send("POST", self.session + "/frame", {"id": self._find(selector)})

    def leave_frames(self):
        self._send("POST", self.session + "/frame", {"id": None})

    def _find(self, selector):
        return self._send("POST", self.session + "/element", {"using": "css selector", "value": selector})

    def _element(self, selector, action, body):
        element = next(iter(self._find(selector).values()))
        self._send("POST", f"{self.session}/element/{element}/{action}", body)

    def console(self):
        """The console's errors and warnings since it was last asked."""
        entries = self._send("POST", self.session + "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def requests(self):
        """The addresses that the page has asked for since this was last called.

        Those of the page before it are left out. That page may ask on, until the new one is there.
        """
        return [url for document, url in self._requests() if document not in self.left]

    def _requests(self):
        """What was asked for since this was last called: pairs of the document that asked, by its id, and the address."""
        events = [json.loads(entry["message"])["message"]
                  for entry in self._send("POST", self.session + "/se/log", {"type": "performance"})]
        sent = [(event["params"]["loaderId"], event["params"]["request"]["url"]) for event in events
                if event["method"] == "Network.requestWillBeSent"]
        self.documents.update(document for document, _ in sent if document)
        return sent

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self._send("GET", self.session + "/screenshot")))

    def command(self, name, **parameters):
        """A command of the DevTools protocol."""
        return self._send("POST", self.session + "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def _port(self):
        for line in self.driver.stdout:
            if "started successfully on port" in line:
                return int(line.rstrip(".\n").split()[-1])
        raise RuntimeError("chromedriver ended without saying its port")

    def _send(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {json.load(error)['value']['message']}") from None
