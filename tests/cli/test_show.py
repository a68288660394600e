"""`--show`: the pictures that a terminal receives, in its own protocol, and nothing where it has none or is no terminal."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cases import thorough
from conftest import captured
from extras import needs
from fake_terminal import (
    COMMAND,
    ITERM2,
    KITTY,
    OWN,
    PLAIN,
    VT340,
    WEZTERM,
    XTERM,
    pictures_in_sixels,
    pictures_of_iterm2,
    pictures_of_kitty,
    pixels_of,
    run_in_terminal,
    text_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from waiting import PATIENCE

from fmapviz.cli.terminal import _graphics_in

STAR = str(Path(__file__).parents[2] / "sample_images/shapes/star.jpg")
RING = str(Path(__file__).parents[2] / "sample_images/shapes/ring.jpg")
RUN = ("shapesnet", STAR, "--out", "out", "--layers", "features.0*,features.1*", "--show")
FINDING = (
    f"{OWN}import sys; from fmapviz.cli import terminal; terminal.TIMEOUT_SECONDS = float(sys.argv[2]); "
    "found = terminal.find_graphics(1); open(sys.argv[1], 'w').write(f'{found and found.protocol} {found and found.colors}')"
)
VARIABLES = {
    "kitty": {"TERM": "xterm-kitty", "KITTY_WINDOW_ID": "1"},
    "ghostty": {"TERM": "xterm-ghostty"},
    "iterm2": {"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app", "LC_TERMINAL": "iTerm2"},
    "wezterm": {"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"},
    "xterm": {"TERM": "xterm"},
    "tmux": {"TERM": "tmux-256color", "TMUX": "/tmp/tmux-0/default,1,0", "TERM_PROGRAM": "iTerm.app"},
}


def escapes(shown):
    """Return what changes the cursor or shows a picture, without the status line and the questions."""
    return shown.replace(b"\r\x1b[K", b"").count(b"\x1b")


@pytest.fixture(scope="module")
def files(warm, tmp_path_factory):
    """The PNG files of a run, by name."""
    place = tmp_path_factory.mktemp("files")
    assert captured(warm, [*RUN[:-1], "--to", "png"], directory=place).returncode == 0
    names = ["input.png", "00_features.0.conv.maps.png", "01_features.1.conv.maps.png"]
    return {name: (place / "out/shapesnet/star.jpg" / name).read_bytes() for name in names}


@pytest.fixture
def find(warm, tmp_path):
    """Return what is found in a terminal that gives an answer, all that it received, and what is left for the shell."""

    def found(answer, *, variables=VARIABLES["xterm"], **circumstances):
        server = f"{warm}.cli"
        file = tmp_path / "found"
        patience = PATIENCE if re.search(rb"\x1b\[\?[\d;]*c", answer) else 0.2  # what comes is no whole answer
        words = [server, FINDING, file, patience]
        ended = run_in_terminal(*words, place=tmp_path, answer=answer, **circumstances, **variables)
        assert ended.code == 0, ended.shown
        return file.read_text(), ended

    return found


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("answer", "graphics"),
    [
        (KITTY, "kitty 256"),
        (ITERM2, "iterm2 256"),
        (WEZTERM, "iterm2 256"),
        (XTERM, "sixel 256"),
        (VT340, "sixel 16"),
        (PLAIN, "None None"),
        (b"", "None None"),
        (b"\x1b_Gi=31;OK\x1b\\", "None None"),  # without the last answer: it may still come
        (b"garbage \xff\x00 4c [?4c", "None None"),
        (b"\x1b_Gi=31;ENOTSUP:no\x1b\\\x1b[?62c", "None None"),
    ],
)
@pytest.mark.parametrize("variables", [VARIABLES["iterm2"], *thorough(VARIABLES["xterm"], VARIABLES["kitty"])], ids=str)
def test_the_answer_of_a_terminal_decides_whatever_the_variables_say(find, answer, graphics, variables):
    found, ended = find(answer, variables=variables)
    assert found == graphics
    assert ended.left == b"", "the shell's prompt would show it"
    assert answer == b"" or answer not in ended.shown, "the answer was echoed"


@pytest.mark.thorough
@pytest.mark.parametrize(("answer", "graphics"), [(XTERM, "sixel 256"), (KITTY, "None None"), (PLAIN, "None None")])
def test_a_multiplexer_is_asked_for_its_attributes_only(find, answer, graphics):
    """tmux would take the question of kitty as the title of its window, and shows sixels of its own."""
    answer = answer[answer.rindex(b"\x1b[?") :]
    for variables in (VARIABLES["tmux"], {"TERM": "screen"}):
        found, ended = find(answer, variables=variables)
        assert found == graphics
        assert escapes(ended.shown) == ended.shown.count(b"\x1b[c") == 1


@pytest.mark.parametrize("kind", ["dumb", "linux", ""])
def test_a_terminal_that_shows_questions_is_not_asked(find, kind):
    found, ended = find(KITTY, variables={"TERM": kind, "KITTY_WINDOW_ID": "1"})
    assert (found, escapes(ended.shown)) == ("None None", 0)


@pytest.mark.parametrize("name", VARIABLES)
def test_keys_typed_before_are_left_for_the_shell_and_variables_decide(find, name):
    typed = b"ls -l\r"
    found, ended = find(KITTY, variables=VARIABLES[name], typed=typed)
    expected = {"kitty": "kitty", "ghostty": "kitty", "iterm2": "iterm2", "wezterm": "iterm2"}
    assert found.split()[0] == expected.get(name, "None")
    assert ended.left.replace(b"\r", b"\n") == typed.replace(b"\r", b"\n")
    assert escapes(ended.shown) == 0


def test_a_terminal_of_another_session_is_not_asked(warm, tmp_path):
    program = FINDING.removeprefix(OWN)
    ended = run_in_terminal(f"{warm}.cli", program, "found", PATIENCE, place=tmp_path, answer=KITTY, **VARIABLES["kitty"])
    assert (escapes(ended.shown), (tmp_path / "found").read_text()) == (0, "kitty 256")


@pytest.mark.thorough
@given(
    st.lists(
        st.sampled_from([KITTY, ITERM2, XTERM, PLAIN, b"\x1b", b"[?", b";4;", b"c", b"\x1b_G", b"\x1b\\", b"\xff"])
        | st.binary(max_size=9),
        max_size=6,
    ).map(b"".join)
)
@settings(max_examples=80, deadline=None)
def test_any_answer_is_read(answer):
    found = _graphics_in(answer)
    assert found is None or (b"\x1b[?" in answer and 2 <= found.colors <= 256)


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        (KITTY, pictures_of_kitty),
        (ITERM2, pictures_of_iterm2),
        pytest.param(XTERM, pictures_in_sixels, marks=needs("textual_image", "show")),
    ],
    ids=["kitty", "iterm2", "sixel"],
)
@pytest.mark.parametrize("to", ["png", "tensorboard", *thorough("tar", "html")])
@pytest.mark.sampled
def test_a_terminal_receives_the_pictures_of_the_files(warm, tmp_path, files, *, answer, read, to):
    ended = run_in_terminal(warm, COMMAND, *RUN, "--to", to, place=tmp_path, answer=answer, **VARIABLES["xterm"])
    assert ended.code == 0
    pixels = [each if isinstance(each, np.ndarray) else pixels_of(each) for each in read(ended.shown)]
    assert len(pixels) == len(files)
    for one, other in zip(pixels, map(pixels_of, files.values()), strict=True):
        assert one.shape == other.shape
        # Sixels have 256 colours of 101 levels for each of red, green and blue.
        exact, is_grey = read is not pictures_in_sixels, np.ptp(other, 2).max() == 0
        assert np.abs(one.astype(int) - other).max() <= (0 if exact else 2 if is_grey else 64)
    captions = [line for line in text_of(ended.shown) if line.startswith("star.jpg: ")][-3:]
    assert captions == [f"star.jpg: {file}" for file in files] or to in {"tensorboard", "tar"}
    assert len(captions) == 3


def test_pictures_are_shrunk_to_the_terminal_and_never_enlarged(warm, tmp_path):
    size = (20, 40, 150, 200)
    ended = run_in_terminal(
        warm, COMMAND, *RUN, "--to", "png", place=tmp_path, answer=KITTY, size=size, **VARIABLES["xterm"]
    )
    first, *others = map(pixels_of, pictures_of_kitty(ended.shown))
    assert first.shape[:2] == (96, 96)
    assert all(max(each.shape[1] / 150, each.shape[0] / 170) == pytest.approx(1, abs=0.01) for each in others)


@pytest.mark.thorough
def test_another_terminal_gets_a_notice(warm, tmp_path):
    """Whatever it says about itself."""
    ended = run_in_terminal(warm, COMMAND, *RUN, "--to", "png", place=tmp_path, answer=PLAIN, **VARIABLES["iterm2"])
    notice = "notice: this terminal shows no pictures; kitty, iTerm2, WezTerm and terminals with sixels do"
    assert ended.code == 0
    assert text_of(ended.shown).count(notice) == 1
    assert not re.search(rb"\x1b_Ga=T|\x1b\]1337|\x1bP", ended.shown)


@pytest.mark.parametrize("option", ["-q", "--json"])
def test_scripts_get_no_pictures(warm, tmp_path, option):
    ended = run_in_terminal(warm, COMMAND, *RUN, "--to", "png", option, place=tmp_path, answer=KITTY, **VARIABLES["kitty"])
    assert ended.code == 0
    assert not re.search(rb"\x1b\[c|\x1b[_P\]]|notice: (this|--show)", ended.shown)


@pytest.mark.parametrize("variables", [VARIABLES["kitty"], *thorough(VARIABLES["iterm2"])])
def test_a_file_receives_no_escape_sequence(warm, tmp_path, variables):
    """Neither do messages, which go to a terminal that says it could show pictures."""
    with (tmp_path / "results").open("w+b") as file:
        ended = run_in_terminal(warm, COMMAND, *RUN, "--to", "png", place=tmp_path, answer=KITTY, stdout=file, **variables)
        file.seek(0)
        results = file.read()
    assert results == b"out/shapesnet\n"
    assert b"notice: --show is for a terminal, and standard output is not one" in ended.shown
    assert b"\x1b_G" not in ended.shown
    assert b"1337" not in ended.shown


@pytest.mark.thorough
def test_two_images_a_model_a_comparison_and_top_images_are_shown(warm, tmp_path):
    def shown(*words):
        ended = run_in_terminal(warm, COMMAND, *words, "--show", place=tmp_path, answer=KITTY, **VARIABLES["xterm"])
        assert ended.code == 0, ended.shown
        names = [line for line in text_of(ended.shown) if ".png" in line]
        assert len(names) == len(pictures_of_kitty(ended.shown))
        return names

    few = ("--layers", "features.0*", "--out", "out")
    assert shown("shapesnet", RING, STAR, *few, "--to", "png,stats", "--name", "two") == [
        *(f"{image}: {file}" for image in ("ring.jpg", "star.jpg") for file in ("input.png", "00_features.0.conv.maps.png"))
    ]
    assert shown("top", "out/two", "-k", "1") == ["_top: 00_features.0.conv.top.png"]
    assert shown("shapesnet", *few, "--view", "kernels", "--to", "png", "--name", "k") == [
        "_model: 00_features.0.conv.kernels.png"
    ]
    (_, difference) = shown("diff", "shapesnet", STAR, *few, "--against", "random", "--to", "png", "--name", "d")
    assert difference == "star.jpg: 00_features.0.conv.diff.png"


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [bytes(40), *thorough(b"", b"\x89PNG\r\n\x1a\n")])
def test_a_damaged_picture_is_left_out(warm, tmp_path, fmapviz, damage):
    words = [*RUN[:-1], "--to", "png"]
    assert fmapviz(*words).returncode == 0
    (tmp_path / "out/shapesnet/star.jpg/input.png").write_bytes(damage)
    size = (6, 10, 64, 64)
    ended = run_in_terminal(warm, COMMAND, *words, "--show", place=tmp_path, answer=KITTY, size=size, **VARIABLES["xterm"])
    assert (ended.code, len(pictures_of_kitty(ended.shown))) == (0, 2)


@pytest.mark.thorough
def test_pictures_of_an_event_file_are_those_that_tensorboard_reads(fmapviz, tmp_path):
    from fmapviz.formats.tensorboard import read_pictures

    assert fmapviz(*RUN[:-1], "--to", "tensorboard").returncode == 0
    unit = tmp_path / "out/shapesnet/star.jpg"
    (file,) = unit.glob("events*")
    expected = [
        (value.tag, value.tensor.string_val[2])
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
    ]
    assert [*read_pictures(unit)] == expected
    assert len(expected) == 3


@pytest.mark.thorough
def test_without_the_package_a_terminal_with_sixels_gets_a_hint(warm, tmp_path):
    """Before the first image, as a format whose package is missing."""
    program = COMMAND.replace("from fmapviz", "import sys; sys.modules['textual_image'] = None; from fmapviz", 1)
    diff = ("diff", *RUN, "--against", "random")
    for words in (RUN, diff, ("top", "none", "--show")):
        ended = run_in_terminal(warm, program, *words, place=tmp_path, answer=XTERM, **VARIABLES["xterm"])
        text = ended.shown.decode()
        message = "error: pictures in this terminal need the package textual-image\r\nhint: pip install 'fmapviz[show]'"
        assert message in text
        assert pictures_in_sixels(ended.shown) == []
        assert not (tmp_path / "out").exists()
