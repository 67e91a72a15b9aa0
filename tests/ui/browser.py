"""A headless Chromium process and a page in it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ui.devtools import TIMEOUT, DevTools, connected

NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1366, 768
#: The browser does not know the certificate authority of the control plane.
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--ignore-certificate-errors", "--remote-debugging-port=0", "--no-first-run",
    f"--window-size={WIDTH},{HEIGHT}", "--hide-scrollbars",
)  # fmt: skip


def chromium() -> str:
    """Return the path of Chromium; skip the test if there is none."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    pytest.skip("Chromium is not on the PATH (Debian: chromium)")


@contextmanager
def browsing() -> Iterator[DevTools]:
    """Start Chromium with an empty page."""
    command = chromium()
    with tempfile.TemporaryDirectory(prefix="phalanx-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [command, *OPTIONS, f"--user-data-dir={folder}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            with connected(_port(Path(folder) / "DevToolsActivePort")) as page:
                for part in ("Page", "Log"):
                    page.send(f"{part}.enable")
                yield page
        finally:
            process.kill()
            process.wait()


def _port(file: Path) -> int:
    """Wait until the browser listens; return its port."""
    end = time.monotonic() + TIMEOUT
    while not (file.exists() and "\n" in file.read_text()):
        assert time.monotonic() < end, "Chromium does not listen"
        time.sleep(0.05)
    return int(file.read_text().splitlines()[0])
