"""The options of `fmapviz top` list the words that it takes."""

from typing import get_args

from typer.main import get_command

from fmapviz.cli.app import app
from fmapviz.features.top.options import BYS, Crop


def test_the_words_of_each_option_are_listed():
    group = get_command(app)
    command = group.commands["top"]
    context = command.context_class(command, info_name="top", parent=group.context_class(group, info_name="fmapviz"))
    for flag, words in {"--by": BYS, "--crop": get_args(Crop)}.items():
        (option,) = [each for each in command.params if flag in each.opts]
        completed = [each.value for each in option.shell_complete(context, "")]
        assert {*completed} == {*words}
        assert option.metavar.split("|") == completed
