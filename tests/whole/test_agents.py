"""What agents read: the skill, and llms.txt with its links; `test_documentation.py` runs the commands of the skill."""

import re

from documents import GUIDE, ROOT, SKILL, text_of
from extras import yaml

from fmapviz.cli.guide import PAGES
from fmapviz.cli.pages import first_sentence, read_page

LLMS = (GUIDE / "llms.txt").read_text()


def test_the_skill_has_the_head_that_agents_read():
    """Format: https://agentskills.io/specification"""
    _, head, text = text_of("SKILL").split("---\n", 2)
    fields = yaml.safe_load(head)
    assert fields["name"] == SKILL.parent.name == "fmapviz"
    assert {*fields} == {"name", "description"}
    assert 100 < len(fields["description"]) <= 1024
    assert "Use it when" in fields["description"]
    assert text.startswith("\n# ")
    assert len(text_of("SKILL").splitlines()) <= 120


def test_the_skill_is_in_the_package_and_printed(fmapviz):
    """The repository has the file once: agents in it follow a link."""
    printed = fmapviz("--generate", "skill").stdout.decode()
    assert printed == text_of("SKILL")
    assert (GUIDE / "skill" / "SKILL.md").samefile(SKILL)


def test_llms_txt_has_the_form_of_its_specification():
    """A title, a summary, text without headings, then sections of links with a sentence: https://llmstxt.org"""
    title, _, rest = LLMS.partition("\n\n")
    summary, _, rest = rest.partition("\n\n")
    assert re.fullmatch(r"# \w+", title)
    assert re.fullmatch(r"> \S.*\.", summary)
    text, *sections = re.split(r"^## .*\n", rest, flags=re.MULTILINE)
    assert "#" not in text
    assert sections
    for section in sections:
        assert re.fullmatch(r"\n(?:- \[[^]]+\]\([^)]+\): \S.*[.?]\n)+\n?", section), section


def test_llms_txt_lists_every_page_with_its_first_sentence():
    links = {target: (title, text) for title, target, text in re.findall(r"^- \[(.+)\]\((.+)\): (.+)$", LLMS, re.MULTILINE)}
    pages = {f"{page}.md" for page in PAGES}
    assert {*links} == {*pages, "../../README.md", "json.schema.json"}
    for target in links:
        assert (GUIDE / target).resolve().is_relative_to(ROOT)
        assert (GUIDE / target).is_file()
    for page in PAGES:
        title, text = links[f"{page}.md"]
        assert read_page(page).startswith(f"# {title}\n")
        assert text.replace("`", "") == first_sentence(read_page(page)), page
