"""The slider of a report in a browser, which leads to the steps of a training."""

from step_runs import STEPS
from waiting import wait_until


def text_of(position, steps=STEPS):
    return f"step {steps[position]} ({position + 1} of {len(steps)})"


def shown(report):
    """Return the text at the slider, and the files that the panes show, relative to the run."""
    files = report.page.locator(".viewport > img").evaluate_all("all => all.map(one => decodeURIComponent(one.src))")
    return report.text("#step-shown"), [file.removeprefix(f"{report.root.as_uri()}/") for file in files]


def slide(report, position):
    """Move the slider with the mouse's event."""
    script = """(slider, position) => { slider.value = position;
        slider.dispatchEvent(new Event("input", {bubbles: true})); }"""
    report.page.locator("#step").evaluate(script, position)
    report.settled()


def loads(report, *files):
    """Wait until the page has requested files."""
    assert wait_until(lambda: report.page.evaluate("true") and {*files} <= {*report.loaded()})
