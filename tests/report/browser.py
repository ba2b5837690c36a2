"""A page in a real browser: Debian's Chromium, driven by its own chromedriver, from a file and without a network.

For a look: ``python -m tests.report.browser PAGE.html OUT.png --width 390 --dark --whole``.
"""

import argparse
import base64
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--force-prefers-reduced-motion"]  # fmt: skip
READY = """return document.readyState === 'complete'
    && (!document.getElementById('summary') || !!document.documentElement.dataset.ready)"""
PATIENCE = 180  # seconds; pages are ready in two, but machines may be busy


def absent() -> str | None:
    """Why there is no browser here, or None if there is one."""
    missing = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    return (
        f"not installed: {', '.join(missing)} (Debian: apt-get install chromium chromium-driver)" if missing else None
    )


class Browser:
    """One Chromium with one page."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in [*FLAGS, f"--user-data-dir={profile}"]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, Service(executable_path=shutil.which("chromedriver")))

    def open(
        self, page: Path, width: int = 1280, height: int = 900, dark: bool = False, scripts: bool = True, part: str = ""
    ) -> None:
        """Show a file, at the #part given, and wait until it is ready; what the console said of earlier pages is forgotten."""
        self.resize(width, height)
        self.dark(dark)
        self._tell("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.problems()
        self.driver.get("about:blank")  # or else an address that differs only in its #part would not load anew
        self.driver.get(page.resolve().as_uri() + part)
        self.until("return document.readyState === 'complete'" if not scripts else READY)

    def resize(self, width: int, height: int = 900) -> None:
        self._tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def dark(self, on: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self._tell("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript in the page; give what it returns."""
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str, *arguments: Any) -> Any:
        """Wait until the script returns something true, and give it."""
        return WebDriverWait(self.driver, PATIENCE, poll_frequency=0.05).until(
            lambda _: self.run(script, *arguments), script
        )

    def problems(self) -> list[str]:
        """Errors and warnings of the console since the last question."""
        return [m["message"] for m in self.driver.get_log("browser") if m["level"] in ("SEVERE", "WARNING")]

    def screenshot(self, out: Path, whole: bool = False) -> None:
        """A picture of the window, or of the whole page."""
        shot = self._tell(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole, **(self._extent() if whole else {})
        )
        out.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self.driver.quit()

    def _extent(self) -> dict[str, Any]:
        size = self._tell("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def _tell(self, command: str, **arguments: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, arguments)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """The browser of all tests; without Chromium they are skipped, unless SOFTMAX_RNN_BROWSER=required."""
    reason = absent()
    if reason and os.environ.get("SOFTMAX_RNN_BROWSER") == "required":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    found = Browser(tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.report.browser", description="A picture of a page.")
    parser.add_argument("page", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--whole", action="store_true", help="the whole page, not just the first screen")
    given = parser.parse_args()
    if absent():
        parser.error(str(absent()))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(Path(profile))
        try:
            browser.open(given.page, given.width, given.height, given.dark)
            browser.screenshot(given.out, given.whole)
            print("\n".join(browser.problems()) or f"{given.out}: no errors in the console")
        finally:
            browser.close()


if __name__ == "__main__":
    main()
