"""`dst-analyze inspect`: the layers of a model, without training."""

from __future__ import annotations

import json

import click

from dst_analyze.cli.options import debug_option, json_option, model_options


@click.command(short_help="Show a model's layers without training.")
@model_options
@json_option
@debug_option
def inspect(
    model: str,
    model_args: tuple[str, ...],
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    debug: bool,
    as_json: bool,
) -> None:
    """Show a model's layers, and what can be analysed, without training. Runs the model's file.

    \b
    dst-analyze inspect mymodel.py:Net --model-arg depth=16
    dst-analyze inspect torchvision:resnet18 --exclude 'layer1*' --json
    """
    from dst_analyze.cli.inspection import as_json as described
    from dst_analyze.cli.inspection import inspect_model, masked_form
    from dst_analyze.cli.model_args import parse_model_args
    from dst_analyze.cli.terminal import console, escape_control, inspection_notes, layer_table, show

    arguments = parse_model_args(model_args)
    loaded, traced = inspect_model(model, arguments, include, exclude)
    form = masked_form(loaded, traced, arguments)
    if as_json:
        click.echo(json.dumps(described(loaded, traced, form), indent=2))
        return
    stdout = console()
    count = f"{len(traced.layers)} layers, {traced.params:,} parameters, {traced.macs:,} MACs per sample"
    show(stdout, f"{escape_control(loaded.name)}: {count}, called with {traced.inputs.describe()}", "")
    show(stdout, layer_table(traced, stdout.width), "")
    show(stdout, f"masked form: {escape_control(form)}", *map(escape_control, inspection_notes(traced)))
