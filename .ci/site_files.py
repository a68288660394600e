"""A hook of MkDocs: make the documents of the repository the pages of the site."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
# Which files, and where they are in the site. Links between them are those of the repository.
PLACES = {
    "README.md": "index.html",
    "fmapviz/guide/*.md": "guide/{stem}.html",
    "fmapviz/guide/*.json": "guide/{name}",
    "fmapviz/guide/*.txt": "{name}",  # llms.txt is looked for at the root
    ".github/[A-Z]*.md": "project/{stem}.html",
    "tests/README.md": "project/tests.html",
    ".github/notebook.ipynb": "{name}",
    ".readme/*.[jp][pn]g": "pictures/{name}",
    ".readme/views/*.jpg": "pictures/views/{name}",
    ".ci/site.css": "{name}",
}
LEFT_OUT = {".github/PULL_REQUEST_TEMPLATE.md"}
PICTURE = re.compile(r'(?<=<img src=")[^":]+(?=")')
LINK = re.compile(r"\]\(([^)]+)\)")
OPTION = re.compile(r"(?<=<code>)--?[\w-]+")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of the guide by those of the repository, and keep those of the theme."""
    ours = [
        File(
            source,
            str(ROOT),
            config.site_dir,
            use_directory_urls=False,
            dest_uri=place.format(name=path.name, stem=path.stem.lower()),
        )
        for pattern, place in PLACES.items()
        for path in sorted(ROOT.glob(pattern))
        if (source := path.relative_to(ROOT).as_posix()) not in LEFT_OUT
    ]
    return Files([*ours, *(file for file in files if file.src_dir != config.docs_dir)])


def on_page_markdown(markdown: str, *, page: Page, files: Files, **_: object) -> str:
    """Point pictures in HTML to their files in the site, as MkDocs does for those in Markdown.

    A search finds the guide before the changelog and the others.
    """
    if not page.file.src_uri.startswith("fmapviz/guide/"):
        page.meta["search"] = {"boost": 0.5}

    def locate(link: re.Match[str]) -> str:
        source = (Path(page.file.abs_src_path).parent / link[0]).resolve().relative_to(ROOT).as_posix()
        return files.src_uris[source].url_relative_to(page.file)

    return PICTURE.sub(locate, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Point the links of llms.txt, which are those of the guide's folder, to the pages of the site."""
    site, links = Path(config.site_dir), {"../../README.md": "index.html"}
    for path in (ROOT / "fmapviz/guide").iterdir():
        links[path.name] = f"guide/{path.stem}.html" if path.suffix == ".md" else f"guide/{path.name}"
    text = (site / "llms.txt").read_text()
    (site / "llms.txt").write_text(LINK.sub(lambda link: f"]({links[link[1]]})", text))


def on_page_content(html: str, **_: object) -> str:
    """Mark options, which browsers would break at their dashes."""
    return OPTION.sub(r'<span class="option">\g<0></span>', html)
