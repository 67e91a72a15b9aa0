"""Chromium without a window, as a process of the test's own, and a page in it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ui.devtools import PATIENCE, DevTools, connected

NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1366, 768
#: The control plane vouches for itself: its authority is none that a browser knows.
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--ignore-certificate-errors", "--remote-debugging-port=0", "--no-first-run",
    f"--window-size={WIDTH},{HEIGHT}", "--hide-scrollbars",
)  # fmt: skip


def chromium() -> str:
    """The browser, if there is one on this machine."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    pytest.skip("Chromium is not on the PATH (Debian: chromium)")


@contextmanager
def browsing() -> Iterator[DevTools]:
    """An empty page of a laptop's size."""
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
    """Where the browser listens, once it does."""
    end = time.monotonic() + PATIENCE
    while not (file.exists() and "\n" in file.read_text()):
        assert time.monotonic() < end, "Chromium does not listen"
        time.sleep(0.05)
    return int(file.read_text().splitlines()[0])
