from __future__ import annotations

import subprocess
import sys

import pytest

from fmapviz.core.user_code import CodeReference, check_reference, import_module_of, parse_arguments, parse_reference
from fmapviz.errors import RequestError, UserCodeError
from fmapviz.models.load import check_name


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("my_net.py:build", CodeReference("my_net.py", "build")),
        ("a dir/my net.py:Net", CodeReference("a dir/my net.py", "Net")),
        ("my.package:Net.make", CodeReference("my.package", "Net.make")),
        ("net.py:build()", CodeReference("net.py", "build", {})),
        ("net.py:build(n=5, w=(1, -2.5), s='a:b(c)', d={'x': [None, True]})",
         CodeReference("net.py", "build", {"n": 5, "w": (1, -2.5), "s": "a:b(c)", "d": {"x": [None, True]}})),
        ("C:\\nets\\my.py:build", CodeReference("C:\\nets\\my.py", "build")),
        ("netz.py:größe", CodeReference("netz.py", "größe")),
    ],
)  # fmt: skip
def test_a_reference_is_parsed(text, reference):
    assert parse_reference(text) == reference


@pytest.mark.parametrize(
    "text", ["", "net.py", "net.py:", ":build", "net.py:1st", "net.py:a-b", "net.py:build()x", "net.py:b c"]
)
def test_references_of_another_form_are_refused_with_an_example(text):
    with pytest.raises(RequestError) as caught:
        parse_reference(text)
    assert "my_net.py:build" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "(5)", "(*a)", "(**a)", "(n=)", "(n=1", "(n=1)(m=2)", "(n=1) + f()", "(n=1).x", "(n=1, n=2)", "(n=1\0)",
        "(n=__import__('os').system('touch CANARY'))", "(n=open('CANARY', 'w'))", "(n=[x for x in (1,)])", "(n=lambda: 1)",
        "(n=f'{1}')", "(n=a)", "(n=2**99)", f"(n={'(' * 5000}1{')' * 5000})", f"(n={'-' * 100000}1)",
    ],
)  # fmt: skip
def test_arguments_that_are_no_literals_are_refused_and_never_evaluated(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError):
        parse_arguments(text)
    assert list(tmp_path.iterdir()) == []


def test_user_code_is_found_without_torch_and_without_running_it(tmp_path):
    (tmp_path / "canary.py").write_text("open('CANARY', 'w')\n")
    (tmp_path / "package").mkdir()
    script = (
        "import sys; from fmapviz.models.load import check_name\n"
        "check_name('canary.py:build'); check_name('canary:build'); check_name('package.sub:build')\n"
        "assert 'torch' not in sys.modules and 'canary' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    assert not (tmp_path / "CANARY").exists()


@pytest.mark.parametrize(
    "text",
    [
        "nowhere.py:build",
        "nowhere:build",
        "no.where:build",
        "/no/where/net.py:build(n=5)",
        "n" * 5000 + ".py:x",
        "n" * 5000 + ":x",
    ],
)
def test_missing_user_code_is_an_error(text):
    for check in (check_name, check_reference):
        with pytest.raises(RequestError, match="no such"):
            check(text)


@pytest.mark.parametrize("spec", ["https://example.org/net.py:build", "file:///net.py:build"])
def test_user_code_at_an_address_is_refused(spec):
    with pytest.raises(RequestError, match="no such model"):
        check_name(spec)


def test_an_imported_script_does_not_receive_the_arguments_of_fmapviz(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fmapviz", "net.py:build", "photo.jpg", "--to", "png"])
    file = tmp_path / "argued.py"
    file.write_text(
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--width', default=3)\n"
        "width = parser.parse_args().width\n"
    )
    assert import_module_of(CodeReference(str(file), "build")).width == 3
    assert sys.argv[1] == "net.py:build"


@pytest.mark.parametrize(
    ("code", "hint"),
    [("import sys; sys.exit(3)", "if __name__ == '__main__'"), ("from .blocks import Block", "my_pkg.net:build")],
)
def test_a_script_that_cannot_be_imported_has_a_hint(code, hint, tmp_path):
    (tmp_path / "script_alone.py").write_text(code)
    with pytest.raises(UserCodeError) as caught:
        import_module_of(CodeReference(str(tmp_path / "script_alone.py"), "build"))
    assert hint in caught.value.hint
