"""What tests do with the page in Chromium: sign in, open addresses, wait for texts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.ui.devtools import DevTools
from tools.control_plane import Access

#: Functions for evaluated expressions: elements whose text is wider than they are.
_CLIPPED = (
    "[...document.querySelectorAll('main *, header *')].filter((one) => one.checkVisibility() "
    "&& one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX === 'visible' "
    "&& getComputedStyle(one).display !== 'inline' && one.clientWidth > 0 && !one.closest('svg'))"
    ".map((one) => one.outerHTML.slice(0, 120))"
)


def sign_in(
    page: DevTools, access: Access, hash_: str = "", token: str = "", *, state: str = "live"
) -> None:
    """Open an address and sign in with a token, by default the administrator's, until the state."""
    page.send("Page.navigate", url=f"https://{access.host}:{access.port}/ui/{hash_}")
    page.until("document.getElementById('login')?.hidden === false")
    page.evaluate(
        f"document.getElementById('token').value = {json.dumps(token or access.token)};"
        "document.querySelector('#login button').click()"
    )
    page.until("!document.getElementById('main').hidden")
    page.until(f"document.getElementById('state').textContent.startsWith({json.dumps(state)})")


def open_view(page: DevTools, hash_: str) -> None:
    """Open another address of the page."""
    page.evaluate(f"location.hash = {json.dumps(hash_)}")


def shows(page: DevTools, part: str, text: str) -> None:
    """Wait until a part of the page contains a text."""
    page.until(f"document.getElementById('{part}').textContent.includes({json.dumps(text)})")


def hides(page: DevTools, part: str, text: str) -> None:
    """Wait until a part of the page does not contain a text."""
    page.until(f"!document.getElementById('{part}').textContent.includes({json.dumps(text)})")


def click_link(page: DevTools, part: str, text: str) -> None:
    """Click the first link of a part that contains a text."""
    page.evaluate(
        f"[...document.querySelectorAll('#{part} a')]"
        f".find((one) => one.textContent.includes({json.dumps(text)})).click()"
    )


def resize(page: DevTools, width: int, height: int) -> None:
    """Change the size of the window."""
    page.send(
        "Emulation.setDeviceMetricsOverride",
        width=width, height=height, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    settle(page)


def settle(page: DevTools) -> None:
    """Wait for two frames, so that everything is drawn."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def take_screenshot(page: DevTools, name: str) -> None:
    """Write a screenshot if PHALANX_PICTURES is set."""
    if folder := os.environ.get("PHALANX_PICTURES"):
        page.screenshot(Path(folder) / f"{name}.png")


def clipped_elements(page: DevTools) -> list[str]:
    """Return visible elements whose content is wider than they are."""
    found: list[str] = page.evaluate(_CLIPPED)
    return found


def has_no_errors(page: DevTools) -> bool:
    """Return whether there is no script error, no policy violation and no horizontal overflow."""
    wide: Any = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    return bool(wide) and page.errors == []
