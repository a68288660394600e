"""The pages of the guide: their texts, and which one a word names."""

from __future__ import annotations

import re
from importlib.resources import files

from fmapviz.errors import RequestError, nearest, quote

# In the order in which `fmapviz guide` lists them.
PAGES = (
    "models", "weights", "layers-and-views", "class-activation-maps", "attribution", "detectors", "tokens", "top-images",
    "looks", "films", "training", "comparing", "report", "tensorboard", "numbers", "own-views", "own-formats",
    "folders-and-scripts", "exit-codes", "many-images", "remote-stores", "clusters", "python", "security", "reliability",
    "performance", "how-it-is-built",
)  # fmt: skip
CODES = "exit-codes"  # the page with a row for each


def find_page(words: str) -> str:
    """Return the page of a name, or the only one whose name contains it, or the page `own-NAME`.

    Raises:
        RequestError: No page has or contains the name, or several contain it.

    Example:
        >>> find_page("Exit codes"), find_page("views"), find_page("formats")
        ('exit-codes', 'layers-and-views', 'own-formats')
    """
    name = "-".join(words.lower().removesuffix(".md").split())
    pages = [page for page in PAGES if page == name]
    pages = pages or [page for page in PAGES if name and f"-{name}-" in f"-{page}-" and not page.startswith("own-")]
    pages = pages or [page for page in PAGES if page == f"own-{name}"]
    if len(pages) != 1:
        near = near_pages(words)
        hint = f"{near}`fmapviz guide` lists all pages" if near else f"there are: {', '.join(PAGES)}"
        raise RequestError(f"no such page: {quote(words)}", hint=hint)
    return pages[0]


def read_page(page: str) -> str:
    """Return the Markdown of a page."""
    return files("fmapviz").joinpath("guide", f"{page}.md").read_text(encoding="utf-8")


def near_pages(word: str) -> str:
    """Return the pages with a similar name, or those that mention the word most often."""
    if similar := nearest(word, PAGES, cutoff=0.6):
        return f"did you mean {', '.join(map(quote, similar))}? "
    counts = {page: read_page(page).lower().count(word.lower().strip()) for page in PAGES if word.strip()}
    mentions = sorted((page for page in PAGES if counts.get(page)), key=counts.__getitem__, reverse=True)[:3]
    return f"{', '.join(map(quote, mentions))} {'mention' if len(mentions) > 1 else 'mentions'} it; " if mentions else ""


def pages_with(option: str) -> list[str]:
    """Return the three pages that mention an option most often."""
    counts = {page: len(re.findall(rf"(?<![\w-]){re.escape(option)}(?![\w-])", read_page(page))) for page in PAGES}
    return sorted((page for page in PAGES if counts[page]), key=counts.__getitem__, reverse=True)[:3]


def find_code(words: str) -> str | None:
    """Return the code of a failed input, or the exit code, that words name; None if they name none.

    Raises:
        RequestError: There is no such code.

    Example:
        >>> find_code("e_decode"), find_code("exit 3"), find_code("exit code 4"), find_code("exit codes")
        ('E_DECODE', '3', '4', None)
    """
    found = re.fullmatch(r"(?:exit)?[ -]?(?:code)?[ -]?(\d+)|(e_\w*)", words.strip(), re.IGNORECASE)
    if not found:
        return None
    code, of_exit = found[0].upper() if found[2] else found[1], bool(found[1])
    known = [each for row in rows_of_codes() for each in codes_in(row) if each.isdigit() == of_exit]
    if code not in known:
        near = [] if of_exit else nearest(code, known)
        hint = f"did you mean {', '.join(near)}?" if near else f"there are: {', '.join(known)}"
        raise RequestError(f"no such {'exit ' * of_exit}code: {quote(found[1] or found[0])}", hint=hint)
    return code


def rows_of_codes() -> list[str]:
    """Return the rows of the tables of codes."""
    return [line for line in read_page(CODES).splitlines() if re.match(r"\| (?:\d|`E_)", line)]


def codes_in(row: str) -> list[str]:
    """Return the codes that a row explains."""
    return re.findall(r"\w+", row.split("|")[1])


def first_sentence(text: str) -> str:
    r"""Return the first sentence below the title of a page, without marks.

    Example:
        >>> first_sentence("# Weights\n\nWhich `--weights` a model\ngets. More.\n\nAnd more.\n")
        'Which --weights a model gets.'
    """
    paragraph = " ".join(text.split("\n\n")[1].split())
    return re.split(r"(?<=\.) ", paragraph)[0].replace("`", "")
