"""The options of `fmapviz diff` list the words that it takes."""

from typer.main import get_command

from fmapviz.cli.app import app
from fmapviz.features.diff.series import REFERENCES


def test_the_words_of_each_option_are_listed():
    group = get_command(app)
    command = group.commands["diff"]
    context = command.context_class(command, info_name="diff", parent=group.context_class(group, info_name="fmapviz"))
    for flag, words in {"--reference": REFERENCES}.items():
        (option,) = [each for each in command.params if flag in each.opts]
        completed = [each.value for each in option.shell_complete(context, "")]
        assert {*completed} == {*words}
        assert option.metavar.split("|") == completed
