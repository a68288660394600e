"""`fmapviz --generate`: a man page that groff and mandoc read without a remark, and other files."""

import json
import re
import shutil
import subprocess
from importlib.resources import files

import pytest
from typer.main import get_command

from fmapviz.cli import manual
from fmapviz.cli.app import app
from fmapviz.cli.commands import commands
from fmapviz.cli.generated import GENERATORS, generate
from fmapviz.cli.pages import codes_in, rows_of_codes
from fmapviz.cli.shells import SCRIPTS
from fmapviz.errors import RequestError


@pytest.fixture(scope="module")
def context():
    group = get_command(app)
    return group.context_class(group, info_name="fmapviz")


@pytest.fixture(scope="module")
def page(context):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        return generate("man", context)


@pytest.fixture
def shown(page, tmp_path):
    """The words of the page as groff shows them."""
    if shutil.which("groff") is None:
        pytest.skip("no groff")
    done = subprocess.run(
        ["groff", "-ww", "-man", "-Tutf8", "-P-cbou"], input=page, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return " ".join(re.sub(r"-\n +", "-", done.stdout).split())


def test_the_page_has_every_command_option_value_and_code(page, context, shown):
    assert ".TH FMAPVIZ 1 2023-11-14" in page
    squeezed = shown.replace(" ", "")
    for name, command in context.command.commands.items():
        assert f"FMAPVIZ{name.upper()}" in squeezed.upper()
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                assert all(option in squeezed for option in parameter.opts), parameter.opts
    for member in commands().values():
        for example, does in member.examples:
            assert f"{example}{does}".replace(" ", "").replace("`", "") in squeezed, example
    for code in (code for row in rows_of_codes() for code in codes_in(row) if code.isdigit()):
        assert re.search(rf"\b{code}\b", shown)
    for heading in ("NAME", "SYNOPSIS", "OPTIONS", "EXIT STATUS", "ENVIRONMENT", "FILES", "SEE ALSO"):
        assert heading in shown
    assert "--install-completion" not in shown


def test_mandoc_has_no_remark(page):
    if shutil.which("mandoc") is None:
        pytest.skip("no mandoc")
    done = subprocess.run(["mandoc", "-T", "lint"], input=page, capture_output=True, text=True, check=False)
    remarks = [line for line in done.stdout.splitlines() if "longer than 80 bytes" not in line]  # a long word
    assert remarks == []


@pytest.mark.parametrize(
    "text", [".TH evil", "'br", "\\fBbold", "a`b", "`a` `b", "", " \n.", "é — ß", "-\\-", "x\x1b[1my", "`.x` .y", "a\\"]
)
def test_any_text_is_shown_as_it_is(text):
    if shutil.which("groff") is None:
        pytest.skip("no groff")
    page = f".TH X 1 2023-11-14\n.SH NAME\n{manual._text(text)}\n"
    done = subprocess.run(
        ["groff", "-ww", "-man", "-Tutf8", "-P-cbou"], input=page, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    (shown,) = re.findall(r"NAME\n(.*?)\n *(?:X\(1\)|.*2023)", f"{done.stdout}", re.DOTALL)
    if text.count("`") % 2 == 0:
        text = text.replace("`", "")
    expected = "".join(ch for ch in " ".join(text.split()) if ch.isprintable())
    assert "".join(shown.split()).replace("`", "") == "".join(expected.split()).replace("`", "")


def test_other_files_are_generated(context):
    schema = files("fmapviz").joinpath("guide", "json.schema.json").read_text()
    assert json.loads(generate("schema", context)) == json.loads(schema)
    assert [generate(f"complete-{shell}", context) for shell in SCRIPTS] == [text.rstrip() for text in SCRIPTS.values()]
    skill = files("fmapviz").joinpath("guide", "skill", "SKILL.md").read_text()
    assert generate("skill", context) == skill.rstrip()
    assert GENERATORS.keys() == {"man", "schema", "skill", *(f"complete-{shell}" for shell in SCRIPTS)}
    with pytest.raises(RequestError, match="nothing to generate is called 'mna'"):
        generate("mna", context)


@pytest.mark.parametrize("words", [["--generate", "complete-zsh"], ["--generate=complete-zsh"]])
def test_the_command_prints_a_file(command_line_alone, words):
    done = command_line_alone("from fmapviz.__main__ import main; main()", *words)
    assert (done.returncode, done.stdout.decode()) == (0, SCRIPTS["zsh"])
