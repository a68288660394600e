"""A headless browser for the tests of the report; what it sees is checked whatever the test is about."""

import os
import re
from contextlib import ExitStack
from urllib.parse import unquote

import pytest
from chromium import NAMES, find_browser
from waiting import PATIENCE


@pytest.fixture(scope="session")
def browser():
    """Chromium or Chrome as the machine has it; without one the tests that need it are skipped, or fail where CI is true."""
    executable, arguments = find_browser()
    if executable is None:
        reason = f"no browser: none of {', '.join(NAMES)} is in PATH"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    from extras import playwright as library

    with (
        library.sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=executable, args=arguments) as started,
    ):
        yield started


@pytest.fixture(scope="session")
def idle_pages(browser):
    """Pages that no test uses at the moment, by their options: to make one takes longer than most tests."""
    return {}


@pytest.fixture
def open_report(browser, idle_pages):
    """Open `index.html` of a directory as a double click does; afterwards check that nothing went wrong unseen."""
    with ExitStack() as stack:

        def opened(root, address="", *, errors=(), **options):
            options = {"viewport": {"width": 1200, "height": 800}, **options}
            idle = idle_pages.setdefault(repr(options), [])
            page = idle.pop() if idle else browser.new_context(**options).new_page()
            page.mouse.move(0, 0)
            report = Report(page, root)
            stack.callback(idle.append, page)
            stack.callback(report.close)
            stack.callback(report.check, errors)
            page.goto(f"{(root / 'index.html').as_uri()}{address}")
            report.settled()
            return report

        yield opened


class Report:
    """An open report."""

    def __init__(self, page, root):
        self.page, self.root = page, root
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
        """Leave the page as if it were new."""
        self.page.evaluate("localStorage.clear()")
        self.page.goto("about:blank")
        for event, listener in self.listeners.items():
            self.page.remove_listener(event, listener)

    def check(self, errors):
        """No request but for files of the run, no dialog, and no message in the console but those expected."""
        assert [url for url in self.requests if not url.startswith(self.root.as_uri() + "/")] == []
        assert self.dialogs == []
        assert [text for text in self.errors if not any(re.search(error, text) for error in errors)] == []

    def until(self, condition):
        """Wait for a condition in JavaScript; Playwright's own way to wait is `eval`, which the page forbids."""
        waiting = f"""() => new Promise(resolve => {{
            const end = performance.now() + {1000 * PATIENCE};
            const look = () => {{
                if ({condition}) resolve(true);
                else if (performance.now() > end) resolve(false);
                else setTimeout(look, 5);
            }};
            look();
        }})"""
        assert self.page.evaluate(waiting), f"has not come true: {condition}"

    def settled(self):
        """Wait until what was asked for is shown."""
        self.until("document.querySelector('#panes').ariaBusy !== 'true'")

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
            self.settled()

    def look_at(self, view):
        """Choose a view; at once, where a click would first wait for the page to stand still."""
        self.page.evaluate("view => document.querySelector(`#views [value=${view}]`).click()", view)
        self.settled()

    def text(self, selector):
        return self.page.locator(selector).first.inner_text()

    def texts(self, selector):
        return self.page.locator(selector).all_inner_texts()

    def loaded(self):
        """The files that were asked for, relative to the run, in order, without the page itself."""
        paths = [unquote(url.removeprefix(self.root.as_uri() + "/")) for url in self.requests]
        return [path for path in paths if not path.startswith("index.html")]

    def picture(self, side=0):
        """Where a pane's picture lies and its scale: left, top, CSS pixels to a pixel."""
        script = "image => [image.getBoundingClientRect(), image.naturalWidth]"
        bounds, width = self.page.locator(".stage > img").nth(side).evaluate(script)
        return bounds["left"], bounds["top"], bounds["width"] / width

    def point(self, x, y, side=0):
        """Move the pointer to a point of the picture, in its pixels; say where that is."""
        left, top, scale = self.picture(side)
        self.page.mouse.move(left + x * scale, top + y * scale)
        return left + x * scale, top + y * scale

    def numbers(self, selector):
        """A table of numbers: for every row its cells."""
        script = """table => Object.fromEntries([...table.tBodies[0].rows].map(
            row => [row.cells[0].textContent, [...row.cells].slice(1).map(cell => cell.textContent)]))"""
        return self.page.locator(f"{selector} table").first.evaluate(script)

    def violations(self):
        """What axe-core finds."""
        from extras import axe

        found = axe.Axe().run(self.page).response["violations"]
        return [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found]
