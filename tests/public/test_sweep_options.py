"""The typed keywords of a sweep are the options of its planning, of its configuration and of the command line."""

from __future__ import annotations

import inspect
from typing import Literal, get_args, get_origin, get_type_hints

import click
import pytest

from dst_analyze import analyze, run_sweep, verify_plan
from dst_analyze.cli.main import commands
from dst_analyze.cli.option_types import section_of
from dst_analyze.run.config import SweepConfig
from dst_analyze.sweep.planning.budget import plan_within
from dst_analyze.sweep.planning.options import SweepOptions, TrainingOptions
from dst_analyze.sweep.planning.plan import plan_sweep, plan_task

HINTS = get_type_hints(SweepOptions)
OF_THE_CALL = {"emit", "out", "existing", "before", "jobs", "told"}
"""Keywords of the planning that the functions on top of it set by themselves, or take as arguments of their own."""


def keywords(function):
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def choices(hint):
    """The texts that a type allows, wherever they stand in it; none if it is not a choice."""
    if get_origin(hint) is Literal:
        return set(get_args(hint))
    return set().union(*map(choices, get_args(hint))) if get_args(hint) else set()


def test_options_are_those_of_the_plan_and_of_the_configuration():
    config = SweepConfig.checked(model="m.py")
    planned = keywords(plan_sweep) | keywords(plan_within)
    assert set(HINTS) == (planned - OF_THE_CALL) | set(config.options)


def test_options_of_a_training_are_those_of_its_task():
    assert keywords(plan_task) <= set(get_type_hints(TrainingOptions)) <= set(HINTS)


def test_options_are_those_of_the_command_line():
    sections = {"Model", "Data", "Sweep", "Training"}
    found = {p.name: p for p in commands.commands["analyze"].params}
    named = {name for name, p in found.items() if section_of(p) in sections} - {"model", "data"}
    assert named | {"device", "amp", "amp_dtype"} == set(HINTS)
    for name in HINTS:
        kind = found[name].type
        if isinstance(kind, click.Choice):
            assert set(kind.choices) == choices(HINTS[name]), name


@pytest.mark.parametrize("name", sorted(SweepConfig.checked(model="m.py").options))
def test_an_option_has_the_choices_of_its_field(name):
    assert choices(HINTS[name]) == choices(SweepConfig.model_fields[name].annotation)


@pytest.mark.parametrize("function", [run_sweep, analyze, verify_plan])
def test_keywords_are_typed_and_none_is_there_twice(function):
    (rest,) = (p for p in inspect.signature(function).parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD)
    expected = "TrainingOptions" if function is verify_plan else "SweepOptions"
    assert rest.annotation == f"Unpack[{expected}]"
    assert not keywords(function) & set(HINTS) - {"seeds"}
    assert ("seeds" in keywords(function)) is (function is verify_plan)
