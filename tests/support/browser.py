"""A headless browser for the tests of the report. Every test also checks requests, dialogs and the console."""

import os
import re
from contextlib import ExitStack
from urllib.parse import unquote

import pytest
from chromium import NAMES, find_browser
from waiting import PATIENCE


@pytest.fixture(scope="session")
def browser():
    """The machine's Chromium or Chrome; without one, tests are skipped, or fail with CI=true."""
    executable, arguments = find_browser()
    if executable is None:
        reason = f"no browser: none of {', '.join(NAMES)} is in PATH"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    from extras import playwright as library

    with (
        library.sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=executable, args=arguments, timeout=1000 * PATIENCE) as started,
    ):
        yield started


@pytest.fixture(scope="session")
def idle_pages(browser):
    """Unused pages by their options: creating one takes longer than most tests."""
    return {}


@pytest.fixture
def open_report(browser, idle_pages):
    """Open a page of a directory, `index.html`, as a double click does; check the page after the test."""
    with ExitStack() as stack:

        def opened(root, address="", *, name="index.html", errors=(), **options):
            options = {"viewport": {"width": 1200, "height": 800}, **options}
            idle = idle_pages.setdefault(repr(options), [])
            page = idle.pop() if idle else browser.new_context(**options).new_page()
            page.set_default_timeout(1000 * PATIENCE)
            page.mouse.move(0, 0)
            report = Report(page, root, name)
            stack.callback(idle.append, page)
            stack.callback(report.close)
            stack.callback(report.check, errors)
            page.goto(f"{(root / name).as_uri()}{address}")
            report.settled()
            return report

        yield opened


class Report:
    """An open report."""

    def __init__(self, page, root, name):
        self.page, self.root, self.name = page, root, name
        self.requests, self.errors, self.dialogs = [], [], []
        self.listeners = {
            "request": lambda request: self.requests.append(request.url),
            "console": lambda message: self.errors.append(message.text),
            "pageerror": lambda error: self.errors.append(str(error)),
            "dialog": lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()),
        }
        for event, listener in self.listeners.items():
            page.on(event, listener)

    def close(self):
        """Reset the page for another test."""
        self.page.evaluate("localStorage.clear()")
        self.page.goto("about:blank")
        for event, listener in self.listeners.items():
            self.page.remove_listener(event, listener)

    def check(self, errors):
        """Fail on a request outside the run, a dialog, or an unexpected message in the console."""
        assert [url for url in self.requests if not url.startswith(self.root.as_uri() + "/")] == []
        assert self.dialogs == []
        assert [text for text in self.errors if not any(re.search(error, text) for error in errors)] == []

    def until(self, condition):
        """Wait for a condition in JavaScript; Playwright's own wait uses `eval`, which the page forbids."""
        waiting = f"""() => new Promise(resolve => {{
            const end = performance.now() + {1000 * PATIENCE};
            const look = () => {{
                if ({condition}) resolve(true);
                else if (performance.now() > end) resolve(false);
                else setTimeout(look, 5);
            }};
            look();
        }})"""
        assert self.page.evaluate(waiting), f"not true after {PATIENCE} s: {condition}"

    def settled(self):
        """Wait until the requested pictures are shown."""
        self.until("document.querySelector('#panes').ariaBusy !== 'true'")

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
            self.settled()

    def look_at(self, view):
        """Choose a view without waiting for animations, as a click does."""
        self.page.evaluate("view => document.querySelector(`#views [value=${view}]`).click()", view)
        self.settled()

    def text(self, selector):
        return self.page.locator(selector).first.inner_text()

    def texts(self, selector):
        return self.page.locator(selector).all_inner_texts()

    def loaded(self):
        """Return the requested files in order, relative to the run, without the page itself."""
        paths = [unquote(url.removeprefix(self.root.as_uri() + "/")) for url in self.requests]
        return [path for path in paths if not path.startswith(self.name)]

    def picture(self, side=0):
        """Return position and scale of a pane's picture: left, top, CSS pixels per pixel."""
        script = "image => [image.getBoundingClientRect(), image.naturalWidth ?? image.width]"
        bounds, width = self.page.locator(".viewport").nth(side).locator("> img, > canvas").evaluate(script)
        return bounds["left"], bounds["top"], bounds["width"] / width

    def point(self, x, y, side=0):
        """Move the pointer to a pixel of the picture; return its position on the page."""
        left, top, scale = self.picture(side)
        self.page.mouse.move(left + x * scale, top + y * scale)
        return left + x * scale, top + y * scale

    def numbers(self, selector):
        """Return the rows of a table of numbers by their first cell."""
        script = """table => Object.fromEntries([...table.tBodies[0].rows].map(
            row => [row.cells[0].textContent, [...row.cells].slice(1).map(cell => cell.textContent)]))"""
        return self.page.locator(f"{selector} table").first.evaluate(script)

    def violations(self):
        """Return the violations that axe-core finds."""
        from extras import axe

        found = axe.Axe().run(self.page).response["violations"]
        return [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found]
