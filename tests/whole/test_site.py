"""The guide as a site, `make site`: its pages, and what Chromium shows of them on a phone and on a screen."""

import os
import re
import subprocess
import sys
import threading
from collections import Counter
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from documents import DOCUMENTS as ALL
from documents import ROOT
from extras import needs
from markdown_it import MarkdownIt
from waiting import PATIENCE, wait_until

from fmapviz.cli.guide import PAGES

pytest_plugins = ["browser"]  # its fixtures

DOCUMENTS = {name: path for name, path in ALL.items() if name != "SKILL"}  # that is for agents in the repository
CONFIGURATION = ROOT / ".mkdocs.yml"
ELEMENTS = {"a", "code", "em", "h1", "h2", "h3", "h4", "img", "li", "ol", "p", "pre", "strong", "table", "td", "th", "ul"}
WIDTHS = (390, 1400)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; a link or an anchor that does not exist is an error."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", CONFIGURATION, "--site-dir", place]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return place


@pytest.fixture
def address(site):
    """The address of the site on a server: browsers search only there."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Elements(HTMLParser):
    """Count the elements of a page's text, without what the theme adds."""

    def __init__(self, html, *, all_of_it=True):
        super().__init__()
        self.counts, self.within = Counter(), all_of_it
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.within |= tag == "article"
        if self.within and tag in ELEMENTS and dict(attributes).get("class") != "headerlink":
            self.counts[tag] += tag != "a" or "href" in dict(attributes)

    def handle_endtag(self, tag):
        self.within &= tag != "article"


def page_of(document):
    return "index.html" if document == "README" else f"guide/{document}.html"


def test_the_site_has_the_pages_in_the_order_of_the_guide():
    pages = re.findall(r"fmapviz/guide/([\w-]+)\.md", CONFIGURATION.read_text())
    assert pages == list(PAGES)


@pytest.mark.thorough
@needs("mkdocs", "site")
def test_pages_read_as_on_github(site):
    for document, path in DOCUMENTS.items():
        github = Elements(MarkdownIt("commonmark").enable("table").render(path.read_text()))
        shown = Elements((site / page_of(document)).read_text(), all_of_it=False)
        assert shown.counts == github.counts, document


@pytest.mark.thorough
@needs("mkdocs", "site")
def test_the_links_of_llms_txt_lead_to_pages(site):
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text())
    assert {*links} == {*map(page_of, DOCUMENTS), "guide/json.schema.json"}
    assert all((site / link).is_file() for link in links)


@pytest.mark.thorough
@needs("mkdocs", "site")
def test_pages_load_nothing_from_elsewhere_and_fit_the_screen(site, address, browser):
    pages = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    assert {page_of(document) for document in DOCUMENTS} < {*pages}
    for width in WIDTHS:
        page, asked, said = browser.new_page(viewport={"width": width, "height": 900}), [], []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.on("response", lambda answer, said=said: said.extend([answer.url] if answer.status >= 400 else []))
        page.on("console", lambda message, said=said: said.append(message.text))
        page.on("pageerror", lambda error, said=said: said.append(str(error)))
        for name in pages:
            page.goto(address + name, timeout=1000 * PATIENCE)
            assert page.evaluate("[...document.images].every(image => image.naturalWidth)"), name
            assert page.evaluate("document.documentElement.scrollWidth") == width, name
        assert [url for url in asked if not url.startswith(address)] == []
        assert said == []
        page.close()


@pytest.mark.thorough
@needs("mkdocs", "site")
@pytest.mark.parametrize(("words", "found"), [("E_DECODE", "guide/exit-codes.html"), ("SLURM jobs", "guide/clusters.html")])
def test_a_search_finds_the_page(address, browser, words, found):
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(address)
    search, first = page.get_by_placeholder("Search"), page.locator(".md-search-result__item").first

    def found_something():
        """Type again: what is typed before the script of the page runs is lost."""
        search.fill("")
        search.press_sequentially(words)
        page.wait_for_timeout(500)
        return first.is_visible()

    assert wait_until(found_something)
    links = page.locator(".md-search-result__link").evaluate_all("links => links.map(link => link.href)")
    assert found in links[0]
    page.close()
