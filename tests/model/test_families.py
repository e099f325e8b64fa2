"""The table of families: every row is complete, and every stage finds its functions there."""

from __future__ import annotations

import pkgutil

import pytest
import torch
from torch import nn

from dst_analyze.channels import (
    propagate,  # noqa: F401  (enters the rules for operations)
    rule_call,
)
from dst_analyze.channels.rule_call import Effect, effect_of, rule_for
from dst_analyze.model import families
from dst_analyze.model.families import FAMILIES, Handlers, LayerFamily, family_of_layer
from dst_analyze.model.tracing.skip_cause import SkipCause
from dst_analyze.model.tracing.trace import trace_model
from dst_analyze.slimming.exact.remove import remove_dead_channels
from dst_analyze.slimming.surgery.build import slim

COLUMNS = {
    "channels": families.CHANNELS,
    "surgery": families.SURGERY,
    "sums": families.EXACT,
    "constants": families.EXACT,
}


def _by_name(family: LayerFamily) -> str:
    return family.name


def test_no_layer_and_no_function_is_in_two_rows() -> None:
    for column in ("name", "layers", "functions", "audit"):
        values = [getattr(family, column) for family in FAMILIES]
        flat = values if column == "name" else [entry for value in values for entry in value]
        assert len(flat) == len(set(flat)), column


@pytest.mark.parametrize("family", FAMILIES, ids=_by_name)
def test_every_name_in_a_row_is_a_function_of_the_stage_that_looks_it_up(family: LayerFamily) -> None:
    assert family.layers or family.functions
    for column, package in COLUMNS.items():
        handlers: Handlers = getattr(family, column)
        assert handlers.package == package
        for name in filter(None, (handlers.layer, handlers.function)):
            found = pkgutil.resolve_name(f"{package}.{name}")
            assert callable(found)
            assert found.__module__.startswith(package)
            assert not found.__name__.startswith("_")
    for name in family.audit.values():
        assert name.startswith(f"{families.AUDIT}:")
        assert callable(pkgutil.resolve_name(name))


@pytest.mark.parametrize("family", FAMILIES, ids=_by_name)
def test_a_row_says_something_for_its_layers_and_for_its_functions(family: LayerFamily) -> None:
    for column in COLUMNS:
        handlers: Handlers = getattr(family, column)
        assert not handlers.layer or family.layers, f"{column} of layers that do not exist"
        assert not handlers.function or family.functions, f"{column} of functions that do not exist"
    if family.channels is families.NOT_UNDERSTOOD:
        return
    for layer, exists in ((True, family.layers), (False, family.functions)):
        rule = family.channels.find(layer=layer)
        assert (rule is not None) == bool(exists)
        # A rule may leave its effect unknown; then removal is exact only where the row says which sums there are.
        if rule is not None and family.audit:
            assert (family.sums.find(layer=layer) is not None) == (effect_of(rule) is Effect.UNKNOWN)


def test_layers_with_parameters_are_audited_or_skipped_for_a_cause() -> None:
    layers = [nn.Linear(2, 2), nn.Bilinear(2, 2, 2), nn.Conv2d(1, 1, 1), nn.ConvTranspose1d(1, 1, 1), nn.LSTM(1, 1)]
    layers += [nn.GRUCell(1, 1), nn.MultiheadAttention(2, 1)]
    for layer in layers:
        family = family_of_layer(type(layer))
        assert family is not None
        assert family.audit
    for layer in (nn.Embedding(2, 2), nn.BatchNorm2d(1), nn.LayerNorm(1), nn.GroupNorm(1, 1), nn.InstanceNorm1d(1)):
        family = family_of_layer(type(layer))
        assert family is not None
        assert family.skipped in (SkipCause.EMBEDDING, SkipCause.NORM)


def test_a_derived_class_belongs_to_the_family_of_its_base() -> None:
    class Own(nn.LSTM):
        pass

    assert family_of_layer(Own) is family_of_layer(nn.RNNBase)
    assert family_of_layer(nn.Module) is None


def test_operations_outside_the_table_have_rules_of_other_names() -> None:
    named = {function for family in FAMILIES for function in family.functions}
    assert not named & set(rule_call._BY_NAME)
    assert "view" in rule_call._BY_NAME


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))  # type: ignore[no-any-return]


def test_every_stage_takes_its_function_from_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    resolve = families.resolve

    def recorded(name: str) -> object:
        asked.append(name)
        return resolve(name)

    monkeypatch.setattr(families, "resolve", recorded)
    traced = trace_model(_Net(), torch.randn(5, 4))
    small = slim(traced, {"first": [0, 1]})
    remove_dead_channels(_Net(), torch.randn(5, 4))
    assert small.get_submodule("norm").num_features == 4
    for name in (
        f"{families.AUDIT}:linear_weights",
        f"{families.CHANNELS}.linear:linear_layer",
        f"{families.CHANNELS}.norms:batch_norm_layer",
        f"{families.SURGERY}.fit_modules:fit_linear",
        f"{families.SURGERY}.fit_modules:fit_batch_norm",
        f"{families.EXACT}.dependence:DependenceCollector.note_linear",
        f"{families.EXACT}.constancy:ConstancyRun.mark_linear_layer",
    ):
        assert name in asked, name


def test_a_function_node_gets_the_rule_of_its_family() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(nn.functional.scaled_dot_product_attention, (x, x, x))
    attention = family_of_layer(nn.MultiheadAttention)
    assert attention is not None
    assert rule_for(node, None) is attention.channels.find(layer=False)
