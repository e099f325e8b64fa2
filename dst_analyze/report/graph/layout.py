"""A layered graph layout: lines lead down with few crossings, skip connections in straight lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx
from scipy.optimize import isotonic_regression

_SWEEPS = 6
_GAP_X, _GAP_Y = 26.0, 20.0
_LANE = 4.0  # width of a line that passes a layer
_LIGHT = 0.2  # weight of a lane in the placement, where a box has 1

Node = int | tuple[int, int]  # a box, or (box, depth) where its line passes a layer
Point = tuple[float, float]


@dataclass(frozen=True)
class Layout:
    """The upper left corner of each box, the points of each line, and the total size."""

    corners: Mapping[int, Point]
    lines: Mapping[tuple[int, int], tuple[Point, ...]]
    width: float
    height: float
    rows: tuple[Point, ...]  # top and bottom of each row of boxes


def layered(sizes: Sequence[tuple[float, float]], lines: Sequence[tuple[int, int]]) -> Layout:
    """Return a layout of boxes with these sizes; ``lines`` are pairs of boxes without cycles."""
    graph = nx.DiGraph(lines)
    graph.add_nodes_from(range(len(sizes)))
    layer = {node: depth for depth, nodes in enumerate(nx.topological_generations(graph)) for node in nodes}
    routes, net = _with_lanes(graph, layer)
    rows = _ordered(net, layer)
    widths = {node: sizes[node][0] if isinstance(node, int) else _LANE for node in net}
    x = _placed(net, rows, widths)
    heights = [max((sizes[node][1] for node in row if isinstance(node, int)), default=0.0) for row in rows]
    tops = [sum(heights[:depth]) + depth * _GAP_Y for depth in range(len(rows))]
    left = min((x[node] - widths[node] / 2 for node in net), default=0.0)
    right = max((x[node] + widths[node] / 2 for node in net), default=0.0)

    def corner(node: int) -> Point:
        width, height = sizes[node]
        depth = layer[node]
        return x[node] - width / 2 - left, tops[depth] + (heights[depth] - height) / 2

    corners = {node: corner(node) for node in range(len(sizes))}
    drawn: dict[tuple[int, int], tuple[Point, ...]] = {}
    for (source, target), lane in routes.items():
        points = [(x[source] - left, corners[source][1] + sizes[source][1])]
        for node in lane:
            depth = node[1]
            points += [(x[node] - left, tops[depth]), (x[node] - left, tops[depth] + heights[depth])]
        drawn[source, target] = (*points, (x[target] - left, corners[target][1]))
    ends = tuple((top, top + height) for top, height in zip(tops, heights, strict=True))
    return Layout(corners, drawn, right - left, ends[-1][1] if ends else 0.0, ends)


def _with_lanes(
    graph: nx.DiGraph, layer: dict[Node, int]
) -> tuple[dict[tuple[int, int], list[tuple[int, int]]], nx.DiGraph]:
    """Return the graph with a lane node in each layer that a line passes; lines of a box share lanes."""
    net, routes = nx.DiGraph(), {}
    net.add_nodes_from(graph)
    for source, target in sorted(graph.edges):
        lane = [(source, depth) for depth in range(layer[source] + 1, layer[target])]
        layer |= {node: node[1] for node in lane}
        nx.add_path(net, [source, *lane, target])
        routes[source, target] = lane
    return routes, net


def _ordered(net: nx.DiGraph, layer: Mapping[Node, int]) -> list[list[Node]]:
    """Return each layer from left to right, sorted by the mean position of neighbours, in sweeps."""
    rows: list[list[Node]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for node in nx.lexicographical_topological_sort(net, key=_key):
        rows[layer[node]].append(node)
    place = {node: float(at) for row in rows for at, node in enumerate(row)}
    for sweep in range(_SWEEPS):
        near: Callable[[Node], list[Node]] = net.predecessors if sweep % 2 == 0 else net.successors
        for row in rows if sweep % 2 == 0 else reversed(rows):
            row.sort(key=lambda node: (_mean([place[n] for n in near(node)], place[node]), place[node]))
            place |= {node: float(at) for at, node in enumerate(row)}
    return rows


def _placed(net: nx.DiGraph, rows: Sequence[Sequence[Node]], widths: Mapping[Node, float]) -> dict[Node, float]:
    """Return x centres, as close to the mean of the neighbours as the boxes beside allow."""
    x: dict[Node, float] = dict.fromkeys(net, 0.0)
    for sweep in range(2 * _SWEEPS):
        near: Callable[[Node], list[Node]] = net.predecessors if sweep % 2 == 0 else net.successors
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wish = [_middle([(x[n], _weight(n)) for n in near(node)], x[node]) for node in row]
            weight = [_weight(node) for node in row]
            apart = [0.0]
            for one, other in pairwise(row):
                apart.append(apart[-1] + (widths[one] + widths[other]) / 2 + _GAP_X)
            # Isotonic regression: the closest positions that keep the order of the boxes.
            fitted = isotonic_regression([w - a for w, a in zip(wish, apart, strict=True)], weights=weight).x.tolist()
            x |= {node: value + a for node, value, a in zip(row, fitted, apart, strict=True)}
    return x


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _middle(values: Sequence[tuple[float, float]], otherwise: float) -> float:
    """Return the weighted mean of positions."""
    return sum(x * w for x, w in values) / sum(w for _, w in values) if values else otherwise


def _weight(node: Node) -> float:
    return 1.0 if isinstance(node, int) else _LIGHT


def _key(node: Node) -> tuple[int, int]:
    return (node, -1) if isinstance(node, int) else node
