"""How errors, hints and notices fit into a terminal."""

import sys

import fake_terminal
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from fmapviz.cli.printing import wrap
from fmapviz.core.platforms import in_shell
from fmapviz.errors import quote

WORDS = st.text("abcdefghijklmnopqrstuvwxyzäß.,;:-/_数据", min_size=1, max_size=12).filter(
    lambda each: not each.startswith("-")
)
NAMES = st.text("abc XYZ/_.-数据", min_size=1, max_size=50).filter(lambda each: each == each.strip())
# What a user copies from a message.
COPIED = st.one_of(
    NAMES.map(quote),
    st.lists(NAMES, min_size=1, max_size=4).map(lambda words: f"`{in_shell('fmapviz', *words)}`"),
    NAMES.map(lambda name: f"--layers {in_shell(name)}"),
    NAMES.map(lambda name: f"fmapviz.diff(one, {name!r}, images)"),
    st.sampled_from(["pip install 'fmapviz[video]'", "pip install --upgrade fmapviz", "size=(240, 320)"]),
)
TEXTS = st.lists(st.one_of(WORDS, COPIED.map(lambda text: (text,))), min_size=1, max_size=30)


@settings(max_examples=50)
@given(parts=TEXTS, columns=st.integers(40, 200))
@example(parts=["the", "network's", ("'it's here.png'",), "users'", ("'a b'",)], columns=40)
@example(parts=[*":::::", ("--layers --X",), ("`fmapviz X`",)], columns=40)
@example(parts=[":", ("--layers X--X",), ":::::::::::据"], columns=40)
@example(parts=["a" * 24, ("size=(240, 320)",)], columns=40)
def test_lines_break_at_spaces_and_never_in_what_is_copied(parts, columns):
    copied = [part[0] for part in parts if isinstance(part, tuple)]
    text = " ".join(("notice:", *(part if isinstance(part, str) else part[0] for part in parts)))
    shown = wrap(text, columns)
    assert shown.replace("\n  ", " ") == text
    assert all(shown.count(each) >= copied.count(each) for each in copied)
    first, *others = shown.split("\n")
    for line in (first, *others):
        # A longer line holds one piece, which is a copied one.
        assert cell_len(line) <= columns or any(line.strip().removeprefix("notice: ").startswith(each) for each in copied)
    for line, following in zip((first, *others), others, strict=False):  # no line ends too early
        piece = next(
            (each for each in sorted(copied, key=len, reverse=True) if following[2:].startswith(each)), following.split()[0]
        )
        assert cell_len(f"{line} {piece}") > columns


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_a_command_of_another_program_stays_whole_to_its_end(columns):
    command = f'{sys.executable} -c \'import torch; torch.save(torch.load("a b.pth", weights_only=False), "weights.pth")\''
    shown = wrap(
        f"hint: if you trust the file, run this beside its source code; it runs what is in the file: {command}", columns
    )
    assert shown.split("\n")[-1].strip().endswith(command)


def test_messages_fit_into_a_terminal_and_are_whole_lines_elsewhere(warm, fmapviz, tmp_path):
    name = "a long name with spaces of an image.png"
    with (tmp_path / "results").open("w") as results:  # the width of standard error counts
        ended = fake_terminal.run_in_terminal(
            warm, fake_terminal.COMMAND, "shapesnet", name, place=tmp_path, size=(40, 45, 0, 0), stdout=results, TERM="xterm"
        )
    shown = [line for line in fake_terminal.text_of(ended.shown) if line]
    expected = ["error: no such file:", f"  '{name}'", "hint: no similar name in", f"  '{tmp_path}'"]
    assert shown[-4:] == expected
    piped = fmapviz("shapesnet", name, cwd=tmp_path).stderr.decode()
    assert piped.splitlines()[-2:] == [f"error: no such file: '{name}'", f"hint: no similar name in '{tmp_path}'"]
