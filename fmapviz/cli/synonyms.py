"""The words of other tools for commands and flags, each with what to type here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fmapviz.cli.options import as_typed, written_options
from fmapviz.core import registry
from fmapviz.core.synonyms import meant_option

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from fmapviz.core.members import NamedMember

_DRAWS = "`fmapviz MODEL INPUT...` draws"

# Hints, each with the words that it answers.
_COMMANDS = {
    "`fmapviz layers MODEL` lists the layers of a model": "summary info inspect describe modules module structure print "
    "torchinfo architecture nodes graph tree arch dump-layers list-layers",
    "`fmapviz runs` lists the runs, `fmapviz models` the models, `fmapviz layers MODEL` the layers": "list ls",
    "`fmapviz runs` lists the runs": "history status results experiments outputs jobs",
    "`fmapviz report RUN --open` opens the report of a run; `tensorboard --logdir runs/` shows all": "open show view browse "
    "display serve ui web tensorboard board gallery",
    "`fmapviz runs remove RUN` removes a run": "rm remove delete del clean prune purge erase drop uninstall",
    "`fmapviz verify DIR` checks the files of a run; --repair redraws what is damaged": "check validate fsck repair "
    "fix test doctor audit",
    "`fmapviz diff MODEL INPUT... --against FILE` compares two networks": "compare difference cmp versus vs cka",
    "`fmapviz guide` lists the pages of the guide": "docs doc man manual tutorial examples documentation readme howto",
    "`fmapviz extract` writes one picture of a shard to a file": "export get unpack fetch cat",
    "fmapviz.toml holds options, `fmapviz guide folders-and-scripts` describes it": "config settings configure init",
    "`fmapviz models` lists the models": "zoo architectures networks backbones model",
    "`fmapviz guide training` says how to watch a network while it is trained": "watch train fit training callback monitor",
    "`fmapviz top RUN` draws the images with the largest values of each channel": "rank ranking topk exemplars",
    f"{_DRAWS} feature maps": "visualize visualise draw plot predict infer inference forward start exec execute hook hooks "
    "capture dump features activations featuremaps feature-maps process convert render viz vis",
    "`fmapviz MODEL INPUT... --plan` estimates size and time": "plan dry-run estimate preview dryrun",
    "`fmapviz rerun RUN` draws a finished run again": "reproduce replay repeat redo redraw again",
    "the same command continues an interrupted run": "resume continue restart retry",
    f"{_DRAWS} gradients and heat maps with --view": "explain attribution cams heatmap heatmaps grad-cam",
}  # fmt: skip

# Flags of the commands that are no options of Python's functions.
_FLAGS = {
    "--plan": "dry-run dryrun simulate estimate preview noop no-op check-only what-if",
    "--open": "show browser launch browse display web view-report open-report preview-report gui",
    "--quiet": "silent no-progress no-progress-bar no-verbose hush less-verbose",
    "--verbose": "debug vv vvv log-level loglevel progress log info trace",
    "--json": "jsonl json-lines ndjson machine-readable porcelain output-json as-json",
    "--null": "print0 null-data z nul zero-terminated",
    "--version": "about ver",
    "--help": "usage man examples",
    "--yes": "force assume-yes y no-prompt noconfirm",
    "--hash": "checksum checksums md5 sha sha256 deep full",
    "-k": "k topk top-k num-images n-images count limit",
    "--receptive-field": "rf fields field receptive-fields",
    "--engine": "ray distributed cluster backend",
    "--against": "other second versus vs compare-with baseline weights-b model-b b",
}  # fmt: skip

_SETTINGS = ("config", "cfg", "settings", "config-file", "conf", "options-file", "rcfile")  # with a file in other tools

COMMANDS = {word: hint for hint, words in _COMMANDS.items() for word in words.split()}
FLAGS: dict[str, list[str]] = {}
for _flag, _words in _FLAGS.items():
    for _word in _words.split():
        FLAGS.setdefault(_word, []).append(_flag)


def meant_command(word: str) -> str | None:
    """Return a hint for a command of another tool, or for a view in the place of one; None if the word is in no table.

    Example:
        >>> meant_command("rm")
        '`fmapviz runs remove RUN` removes a run'
    """
    word = word.lower().replace("_", "-")
    if word in registry.views():
        return f"`fmapviz MODEL INPUT... --view {word}` draws it"
    return COMMANDS.get(word)


def meant_flag(word: str, known: Collection[str]) -> str | None:
    """Return a hint for an option of another tool, as it is typed; None if the word is in no table.

    Args:
        word: The option without dashes in front.
        known: The options of the command, such as `--out`.
    """
    if word.lower().replace("_", "-") in _SETTINGS:
        return "fmapviz.toml in the working directory, or above it, holds options; --no-config ignores it"
    flag = next((flag for flag in FLAGS.get(word.lower().replace("_", "-"), ()) if flag in known), None)
    if flag:
        return f"did you mean {flag}?"
    written = written_options(known)
    pair = "--against" in known
    views: Mapping[str, NamedMember] = registry.offered_views(pair=pair)
    hint = as_typed(meant_option(word, written, {"views": views, "to": registry.offered_formats(pair=pair)}) or "")
    return hint if {*re.findall(r"(?<!\S)--[a-z-]+", hint)} <= {*known} else None
