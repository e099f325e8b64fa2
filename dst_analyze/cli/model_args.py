"""`--model-arg NAME=VALUE`: the arguments that a model is built with."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable
from typing import Any

from dst_analyze.errors import OptionError


def parse_model_args(items: Iterable[str]) -> dict[str, Any]:
    """Return `depth=16`, `dims=[1,2]`, `name=foo` as keywords: Python literals or strings."""
    arguments: dict[str, Any] = {}
    for item in items:
        name, equals, text = (part.strip() for part in item.partition("="))
        if not equals or not name.isidentifier():
            raise OptionError(
                f"{item!r} is not of the form name=value.", place="--model-arg", hint="write --model-arg depth=16"
            )
        if name in arguments:
            raise OptionError(f"{name!r} is given twice.", place="--model-arg", hint="give each argument once")
        arguments[name] = _literal(name, text)
    return arguments


def _literal(name: str, text: str) -> Any:
    if text in ("true", "false"):  # as text, 'false' would count as true
        raise OptionError(
            f"{name}={text} may mean a bool or a string.",
            place="--model-arg",
            hint=f"write {name}={text.capitalize()} for the bool, {name}='\"{text}\"' for the string",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about invalid literals such as 3x3, which is a string here
            return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        if text.startswith(("[", "(", "{", "'", '"')):
            raise OptionError(
                f"{name}={text} is not a Python value.", place="--model-arg", hint="write dims=[1,2] or name=foo"
            ) from error
        return text
