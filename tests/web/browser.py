"""Chromium, driven by chromedriver over the WebDriver protocol (https://www.w3.org/TR/webdriver2/)."""

import base64
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
STARTED = "was started successfully on port "
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element in an answer


class Browser:
    """One window of Chromium."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def call(self, method: str, path: str, **body: Any) -> Any:
        answer = self._http.request(method, path, json=body if method == "POST" else None).json()["value"]
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer

    def open(self, page: Path) -> None:
        self.call("POST", "url", url=page.as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page. Its last parameter is the callback for the result."""
        return self.call("POST", "execute/async", script=script, args=list(arguments))

    def element(self, selector: str) -> str:
        found = self.call("POST", "element", using="css selector", value=selector)
        return str(found[ELEMENT])

    def type(self, selector: str, text: str) -> None:
        self.call("POST", f"element/{self.element(selector)}/value", text=text)

    def text(self, selector: str) -> str:
        return str(self.call("GET", f"element/{self.element(selector)}/text"))

    def resize(self, width: int, height: int) -> None:
        self.call("POST", "window/rect", width=width, height=height)

    def prefer(self, scheme: str) -> None:
        """Let the page see a light or dark system."""
        features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.call("POST", "goog/cdp/execute", cmd="Emulation.setEmulatedMedia", params=features)

    def screenshot(self) -> bytes:
        """The whole page as PNG."""
        shot = {"format": "png", "captureBeyondViewport": True}
        found = self.call("POST", "goog/cdp/execute", cmd="Page.captureScreenshot", params=shot)
        return base64.b64decode(found["data"])

    def console(self) -> list[str]:
        """What the page reported since the last call: errors, and violations of its policy."""
        return [entry["message"] for entry in self.call("POST", "se/log", type="browser")]


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A window of Chromium. Skips the test if there is none on this machine."""
    driver = shutil.which("chromedriver")
    program = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if driver is None or program is None:
        pytest.skip("chromium and chromedriver are not installed (Debian: chromium, chromium-driver)")
    process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if STARTED in line)
        base = f"http://127.0.0.1:{int(line.split(STARTED)[1].strip().rstrip('.'))}"
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": program, "args": [*OPTIONS, f"--user-data-dir={profile}"]},
            "goog:loggingPrefs": {"browser": "ALL"},
            "timeouts": {"script": None},
        }
        with httpx.Client(timeout=None, trust_env=False) as http:
            made = http.post(f"{base}/session", json={"capabilities": {"alwaysMatch": wanted}}).json()["value"]
            assert "sessionId" in made, made
            session = f"{base}/session/{made['sessionId']}"
            with httpx.Client(base_url=f"{session}/", timeout=None, trust_env=False) as client:
                yield Browser(client)
            http.delete(session)
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
