"""The Chinese README has the commands, programs, numbers, links and pictures of the English one."""

import io
import re
import tokenize

from documents import ROOT, Block

ENGLISH = (ROOT / "README.md").read_text()
CHINESE = (ROOT / ".github" / "README.zh-CN.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def without_comments(kind, text):
    """Return a program without its comments that only explain; those behind a `print` are what it prints."""
    if kind != "python":
        return text
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [each.string for each in tokens if each.type != tokenize.COMMENT or each.line.startswith("print(")]


def blocks(text):
    return [(kind, without_comments(kind, block)) for kind, block in BLOCK.findall(text)]


def links(text, folder):
    """Return what a document links and shows, relative to the top of the repository."""
    prose = BLOCK.sub("", text)
    targets = [*re.findall(r"\]\(([^)\s]+)\)", prose), *re.findall(r"""src="([^"]+)\"""", prose)]
    ups = len([*folder.relative_to(ROOT).parts])
    moved = [
        each.removeprefix("../" * ups) if each.startswith("../") else "/".join([*folder.relative_to(ROOT).parts, each])
        for each in targets
    ]
    return sorted(each for each in moved if each not in {"README.md", ".github/README.zh-CN.md"})


def code_words(text):
    return sorted(re.findall(r"`([^`\n]+)`", BLOCK.sub("", text)))


def test_both_have_the_same_commands_and_programs():
    assert blocks(CHINESE) == blocks(ENGLISH)
    commands = [command.line for kind, text in BLOCK.findall(CHINESE) for command in Block(kind, text).commands]
    assert len(commands) > 10


def test_both_link_and_show_the_same():
    assert links(CHINESE, ROOT / ".github") == links(ENGLISH, ROOT)
    assert "](.github/README.zh-CN.md)" in ENGLISH
    assert "](../README.md)" in CHINESE


def test_both_set_the_same_words_as_code():
    assert code_words(CHINESE) == code_words(ENGLISH)


def numbers(text):
    prose = re.sub(r"\]\([^)]*\)|<img[^>]*>", "", BLOCK.sub("", text))
    return sorted(re.findall(r"(?<![\w.])\d+(?:[.-]\d+)*", prose, re.ASCII))


def test_both_name_the_same_numbers():
    assert numbers(CHINESE) == numbers(ENGLISH)
    assert len(numbers(ENGLISH)) > 10


def test_headings_correspond():
    levels = [re.findall(r"^#+", BLOCK.sub("", text), re.MULTILINE) for text in (ENGLISH, CHINESE)]
    assert levels[1].count("##") == levels[0].count("##") + 1  # the terms


def test_the_chinese_text_uses_the_terms_of_the_field():
    for term in ("hook 函数", "特征图", "类激活图"):
        assert term in CHINESE, term
    assert CHINESE.count("钩子函数") == 1  # the other name, among the terms
    assert not re.findall(r"[\u4e00-\u9fff][,;:?!](?![\w`*/])", BLOCK.sub("", CHINESE))  # marks of Chinese text
