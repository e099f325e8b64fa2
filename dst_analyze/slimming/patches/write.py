"""`slim_model.patch`: a unified diff of the user's model file, where the numbers that build its layers stand in it.

The diff is written only if the changed file builds the slim model: in a copy of its folder, with the slim model's
tensors, and with the same outputs.
"""

from __future__ import annotations

import ast
import difflib
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from torch import fx, nn

from dst_analyze.errors import DstError
from dst_analyze.model.loading.load import file_named, load_model
from dst_analyze.model.loading.module_finder import package_root
from dst_analyze.model.loading.user_module import passing_imports
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.model.user_errors import headline, shorten
from dst_analyze.slimming.exports.same_class import MismatchError, compare_class, fill_from
from dst_analyze.slimming.patches.sites import Sites, UserFile, sites_of
from dst_analyze.slimming.patches.solve import ConflictError, NoLiteralError, Numbers, Place, lines_of, replaced
from dst_analyze.slimming.source.edits import layer_calls
from dst_analyze.slimming.source.places import _parameter_names, _written_arguments


@dataclass(frozen=True)
class Patch:
    """The diff, or why there is none; ``sites`` say where the user's files build each module."""

    text: str = ""
    reason: str = ""
    sites: Sites | None = None


def make_patch(traced: TracedModel, slim: fx.GraphModule, spec: str, model_args: Mapping[str, Any]) -> Patch:
    """Return the change of the model's file that builds the slim model."""
    file = file_named(spec)
    if file is None:
        return Patch()
    try:
        sites = sites_of(spec, model_args)
    except Exception as error:  # a file that builds its model only once
        return Patch(reason=f"the model cannot be built once more: {headline(error)}")
    try:
        numbers = numbers_to_change(traced, slim, sites, file)
        texts = {path: replaced(numbers.files[str(path)], values) for path, values in _by_file(numbers).items()}
        root = (package_root(file) or file.parent).resolve()
        for path in texts:
            if not path.is_relative_to(root):
                raise NoLiteralError(f"{shorten(path)} lies outside the folder of {file.name}")
        _check(traced, slim, spec, model_args, root, texts)
    except (NoLiteralError, MismatchError) as error:
        return Patch(reason=str(error), sites=sites)
    text = "".join(_diff(numbers.files[str(path)], new, path.relative_to(root)) for path, new in sorted(texts.items()))
    return Patch(text, sites=sites)


def numbers_to_change(traced: TracedModel, slim: fx.GraphModule, sites: Sites, file: Path) -> Numbers:
    """Return the numbers of the source that give every layer its new widths.

    Raises:
        NoLiteralError: A width of some layer does not stand in the source, or two layers share it.
    """
    numbers, calls = Numbers(), layer_calls(traced, slim)
    _refuse_parameters(traced, slim, calls)
    wants = list(_wants(numbers, sites, calls))
    for _, _, (_, before, after), _, _ in wants:
        if before != after and isinstance(before, int) and isinstance(after, int):
            numbers.widths.add((before, after))
    for order in (0, 1, 2):
        for name, expression, (key, before, after), scope, kind in wants:
            if kind != order:
                continue
            try:
                numbers.want(expression, after, scope)
            except ConflictError as error:
                raise NoLiteralError(f"{name}: {error}") from error
            except NoLiteralError as error:
                if before != after:
                    raise NoLiteralError(f"{key} of {name}: {error}") from error
    if not any(numbers.old[place] != value for place, value in numbers.values.items()):
        raise NoLiteralError(f"no number of {file.name} has to change")
    return numbers


def _wants(numbers: Numbers, sites: Sites, calls: Mapping[str, tuple[str, str]]) -> Iterator[Any]:
    """Yield each layer's arguments: the expression that gives one, its values before and after, and how plain it is."""
    for name, (old, new) in calls.items():
        before, after = _written_arguments(old), _written_arguments(new)
        if old != new and (not after or old.partition("(")[0] != new.partition("(")[0]):
            raise NoLiteralError(f"{name} becomes another layer, {new}")
        if name not in sites:
            if old != new:
                raise NoLiteralError(f"no call of the model's files builds {name}")
            continue
        try:
            call, scope = numbers.scope_of(sites[name])
        except NoLiteralError:
            if old != new:
                raise
            continue
        given = _given(call, new)
        for key, text in after.items():
            value, was = _integer(text), _integer(before.get(key, ""))
            if value is None or key not in given:
                if text != before.get(key):
                    raise NoLiteralError(f"line {call.lineno} of {scope.file.path.name} gives {name} no {key}")
                continue
            expression = given[key]
            kind = 0 if isinstance(expression, ast.Constant) else 1 if isinstance(expression, ast.Name) else 2
            yield name, expression, (key, was, value), scope, kind


def _given(call: ast.Call, built: str) -> dict[str, ast.expr]:
    """Return the arguments of a call in the user's file by name; those behind a starred one are not known."""
    plain = []
    for argument in call.args:
        if isinstance(argument, ast.Starred):
            break
        plain.append(argument)
    constructor = ast.parse(built, mode="eval").body if _written_arguments(built) else None
    names = _parameter_names(constructor) if isinstance(constructor, ast.Call) else []
    return {
        **dict(zip(names, plain, strict=False)),
        **{keyword.arg: keyword.value for keyword in call.keywords if keyword.arg},
    }


def _integer(text: str) -> int | None:
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return None
    return value if type(value) is int else None


def _refuse_parameters(traced: TracedModel, slim: nn.Module, calls: Mapping[str, tuple[str, str]]) -> None:
    """Raise if a parameter is cut that no layer's constructor makes."""
    new = {name: tuple(p.shape) for name, p in slim.named_parameters()}
    for name, parameter in traced.model.named_parameters():
        if name in new and new[name] != tuple(parameter.shape) and name.rpartition(".")[0] not in calls:
            raise NoLiteralError(f"{name} is a parameter that becomes {list(new[name])}")


def _by_file(numbers: Numbers) -> dict[Path, dict[Place, int]]:
    found: dict[Path, dict[Place, int]] = {}
    for place, value in numbers.values.items():
        if numbers.old[place] != value:
            found.setdefault(Path(place[0]), {})[place] = value
    return found


# --- the check in a copy ----------------------------------------------------------------------------------------


def _check(
    traced: TracedModel,
    slim: fx.GraphModule,
    spec: str,
    model_args: Mapping[str, Any],
    root: Path,
    texts: Mapping[Path, str],
) -> None:
    """Build the model from a copy with the changed files; raise if it is not the slim model."""
    file = file_named(spec)
    assert file is not None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve() / root.name
        _mirror(root, folder, {path.relative_to(root): text for path, text in texts.items()}, file.relative_to(root))
        target = spec.rpartition(":")[2] if not spec.endswith((".py", ".ipynb")) else ""
        copied = f"{folder / file.relative_to(root)}{f':{target}' if target else ''}"
        with passing_imports(folder):
            try:
                built = load_model(copied, model_args=model_args).model
            except DstError as error:
                raise MismatchError(f"the changed file builds no model: {error.cause}") from error
            fill_from(built, slim, traced.model)
            compare_class(slim, built, traced.inputs)


def _mirror(root: Path, folder: Path, texts: Mapping[Path, str], main: Path) -> None:
    """Make a folder like another, of links, with some files' texts changed."""
    folder.mkdir(parents=True)
    real = {parent for path in (*texts, main) for parent in path.parents if parent != Path()}
    for entry in root.iterdir():
        here = Path(entry.name)
        if here in real:
            inner = {path.relative_to(here): text for path, text in texts.items() if path.is_relative_to(here)}
            rest = main.relative_to(here) if main.is_relative_to(here) else Path()
            _mirror(entry, folder / here, inner, rest)
        elif here in texts:
            (folder / here).write_bytes(texts[here].encode())
        elif here == main:
            (folder / here).write_bytes(entry.read_bytes())
        else:
            os.symlink(entry, folder / here, target_is_directory=entry.is_dir())


def _diff(file: UserFile, new: str, name: Path) -> str:
    old = difflib.unified_diff(
        lines_of(file.text), lines_of(new), f"a/{name.as_posix()}", f"b/{name.as_posix()}", lineterm="\n"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in old)


def with_sites(changes: pd.DataFrame, sites: Sites | None) -> pd.DataFrame:
    """Return a table of changed lines with the line of each layer that is built in a loop or by a function."""
    if not sites:
        return changes
    rows = []
    for row in changes.itertuples(index=False):
        found = sites.get(row.layer)
        if row.place or not found:
            rows.append(tuple(row))
            continue
        place = f"{shorten(found[0].file)}:{found[0].line}"
        rows.append((row.layer, row.before, row.after, row.line, place, "built by the call in this line"))
    return pd.DataFrame(rows, columns=list(changes.columns))
