"""`fmapviz layers`: list the layers of a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fmapviz.cli.layer_tables import TABLES, check_tables, layer_record, plain_table
from fmapviz.cli.options import as_typed, read_options, takes_options, word_option
from fmapviz.cli.printing import print_json, print_line, print_message, results_only, show_status
from fmapviz.cli.process import importing
from fmapviz.cli.run import JsonOption, ModelArgument, running_option
from fmapviz.config import InputOptions, RunConfig, split
from fmapviz.core.files import format_bytes, make_folders, write_over, writing_to
from fmapviz.core.urls import is_url
from fmapviz.errors import RequestError, first_few, printable
from fmapviz.models.load import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping

FieldOption = Annotated[
    bool,
    running_option(
        "--receptive-field", help="Add the input pixels that a position depends on: size, stride, first row and column."
    ),
]


@takes_options(only=("layers", "exclude", "types", "size", "fit"))
def list_layers(
    model: ModelArgument,
    *,
    receptive_field: FieldOption = False,
    to: Annotated[
        list[str] | None,
        word_option(
            "--to",
            words=("md", "csv", "json"),
            commas=True,
            metavar="md|csv|json,...",
            help="Print Markdown, CSV or a JSON array.",
            show_default="a table",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Write the files of --to to DIR.", show_default="standard output"),
    ] = None,
    json: JsonOption = False,
    **options: Any,  # some fields of RunConfig and InputOptions
) -> None:
    """List the layers of MODEL in the order of execution, with shapes. Needs no image and no weights."""
    check_name(model)
    forms = split(to or ())
    check_tables(forms)
    if out is not None and (not forms or is_url(out)):
        raise RequestError("--out needs --to, and a local directory", hint=f"--to {','.join(TABLES)} --out DIR")
    if json and forms:
        raise RequestError("--json and --to exclude each other", hint="--to json prints an array, --json an object per line")
    typed = read_options(options)
    prepared = InputOptions(**typed[InputOptions])

    show_status(f"loading {model} ...")
    with importing():
        from fmapviz.observe.layers import find_layers, notice_blocks, notice_left_out
        from fmapviz.run.layer_list import load_and_list, remember_model

    with results_only():
        listed = load_and_list(model, preprocessing=prepared, **typed[RunConfig])
        loaded, rows, outputs = listed.model, listed.rows, listed.outputs
        remember_model(model, loaded)
        fields = None
        if receptive_field:
            from fmapviz.features.fields.receptive_field import fields_by_layer

            fields = fields_by_layer(loaded, rows)
    if not options["types"] and all(row.type.startswith("Conv3") for row in rows):
        print_message("notice: the model has no Conv2d layer: these are its Conv3d layers")
    every_layer, choice = find_layers(loaded.module), typed[RunConfig]
    if not options["types"]:
        names = {row.name for row in rows}
        narrowing = {"include": choice.get("layers", ()), "exclude": choice.get("exclude", ())}
        left_out = notice_left_out(every_layer, [layer for layer in every_layer if layer.name in names], **narrowing)
        for notice in filter(None, [left_out, None if choice else notice_blocks(model, every_layer)]):
            print_message(f"notice: {printable(as_typed(notice))}")
    if outputs:
        parts = ", ".join(f"{key} {' x '.join(map(str, shape))}".strip() for key, shape in outputs.items())
        print_message(f"notice: the network returns {printable(parts)}; --output KEY chooses the class scores")
    if listed.uncounted:
        operators = printable(first_few(list(listed.uncounted)))
        print_message(f"notice: MACs are unknown where {operators} computes: it has no formula in torch.utils.flop_counter")
    if json:
        for row in rows:
            print_json({"event": "layer", **layer_record(row, fields)})
        executed = sum(row.index is not None for row in rows)
        counts = {"layers": len(rows), "executed": executed}
        size = {"parameters": listed.parameters, "parameter_bytes": listed.parameter_bytes, "macs": listed.macs}
        print_json({"event": "summary", "model": model, **counts, **size, "outputs": outputs, "exit_code": 0})
        return
    tables = {form: TABLES[form](rows, fields) for form in forms} or {"": plain_table(rows, fields)}
    if out is None:
        print_line("\n\n".join(tables.values()))
    else:
        _write(tables, model, Path(out))
    macs = "" if listed.macs is None else f", {listed.macs:,} MACs"
    print_message(f"{model}: {listed.parameters:,} parameters ({format_bytes(listed.parameter_bytes)}){macs}")


def _write(tables: Mapping[str, str], model: str, folder: Path) -> None:
    """Write tables to files, replacing former ones, and print their paths."""
    from fmapviz.store.run import stem_of

    with writing_to(folder):
        make_folders(folder)
    for form, text in tables.items():
        path = folder / f"{stem_of(model)}.layers.{form}"
        with writing_to(path):
            write_over(path, f"{text}\n".encode())
        print_line(printable(str(path)))
