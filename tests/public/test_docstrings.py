"""Public names have Google-style docstrings: every parameter, the result, and an example that runs."""

from __future__ import annotations

import doctest
import inspect
import re
from textwrap import dedent

import pytest

import dst_analyze

MADE_BY = {
    "MaskedModel": "mask_model",
    "SlimPlan": "suggest_widths",
    "SweepRecord": "read_run",
    "Verification": "verify_plan",
}
"""Classes that users do not construct: their docstrings name the function that does."""

DESCRIBED = [name for name in dst_analyze.__all__ if name != "__version__"]


def sections(name: str) -> dict[str, str]:
    """Return the sections of a docstring by title, dedented; the text before the first one under ""."""
    parts = re.split(r"^([A-Z][a-z]+):\n(?=    )", inspect.getdoc(getattr(dst_analyze, name)) or "", flags=re.MULTILINE)
    return {"": parts[0], **{title: dedent(text) for title, text in zip(parts[1::2], parts[2::2], strict=True)}}


def missing(name: str) -> list[str]:
    """Return what the docstring of a public name lacks."""
    value, found = getattr(dst_analyze, name), sections(name)
    signature = inspect.signature(value)
    described = "\n".join(found.get(title, "") for title in ("Args", "Attributes"))
    lacks = [
        f"argument {parameter}"
        for parameter in (() if f"`{MADE_BY.get(name)}`" in found[""] else signature.parameters)
        if not re.search(rf"^(\*\*|\*)?{parameter}( \(.+?\))?:", described, re.MULTILINE)
        and not (inspect.isclass(value) and f"``{parameter}``" in found[""])  # results may describe fields in prose
    ]
    returns_none = signature.return_annotation in (None, "None", inspect.Signature.empty)
    if not (inspect.isclass(value) or returns_none or {"Returns", "Yields"} & set(found)):
        lacks.append("Returns")
    return lacks if {"Example", "Examples"} & set(found) else [*lacks, "Example"]


@pytest.mark.parametrize("name", DESCRIBED)
def test_the_first_line_is_short_and_a_sentence(name):
    first = sections(name)[""].splitlines()[0]
    assert len(first) <= 100
    assert first.endswith(".")


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_docstring_has_every_argument_the_result_and_an_example(name):
    assert missing(name) == []


@pytest.mark.parametrize("name", DESCRIBED)
def test_an_example_runs(name, tmp_path, monkeypatch, inline):
    """Examples are doctests or plain code; each runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    found = sections(name)
    example = found.get("Example") or found["Examples"]
    if ">>>" not in example:
        code = "\n".join(line for line in example.splitlines() if not line.startswith("```"))
        exec(compile(code, f"<example of {name}>", "exec"), {"__name__": "example"})
        return
    test = doctest.DocTestParser().get_doctest(example, {}, name, None, 0)
    failures: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=failures.append)
    assert not failures, "".join(failures)
