"""The parts of a model's graph that are drawn: layers, joins of paths, and folded repeated blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal

import networkx as nx

from dst_analyze.model.tracing.skip_cause import SkipCause
from dst_analyze.run.record import GraphNode, ModelGraph, SkippedLayer

_MOST_PARTS, _MOST_LINES, _MOST_PASSED = 5_000, 10_000, 20_000
_MOST_TRIES = 200  # runs of blocks that may turn out to be foldable or not
_ALIKE_BLOCKS, _ALIKE_LAYERS = 3, 5  # at least so many in a row are folded
_MINOR = (SkipCause.NORM, SkipCause.PER_CHANNEL)  # skipped weights that are not drawn
_SIGNS = {"add": "+", "iadd": "+", "add_": "+", "sub": "−", "mul": "×", "imul": "×", "mul_": "×", "cat": "concat"}
_SIGNS |= {"concat": "concat", "matmul": "matmul", "bmm": "matmul", "scaled_dot_product_attention": "attention"}


@dataclass(frozen=True)
class Part:
    """One box of the drawing; ``rows`` name its layers, with a row for each folded block."""

    kind: Literal["layers", "join", "end", "other", "run"]
    title: str
    place: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, tuple[str, ...]], ...] = ()
    block: Structure | None = None  # of a run: how its first block is built

    @property
    def layers(self) -> Iterator[str]:
        """All layers in this box."""
        return (layer for _, layers in self.rows for layer in layers)


@dataclass(frozen=True)
class Structure:
    """Parts and the lines between them, by index; there are no cycles."""

    parts: tuple[Part, ...]
    lines: tuple[tuple[int, int], ...]

    @property
    def folded(self) -> bool:
        """True if blocks are folded."""
        return any(part.kind == "run" for part in self.parts)

    @property
    def layers(self) -> set[str]:
        """All layers that are drawn."""
        return {layer for part in self.parts for layer in part.layers}


def structure_of(graph: ModelGraph, skipped: Collection[SkippedLayer] = (), *, fold: bool = True) -> Structure | None:
    """Return the layers and joins of a graph; lines run through all other nodes.

    None if there are too many parts or lines for a readable picture.
    """
    drawn = _drawn(graph, _skipped_modules(skipped))
    if drawn.number_of_nodes() > _MOST_PARTS or drawn.number_of_edges() > _MOST_LINES:
        return None
    runs = _Folding(graph, drawn).runs() if fold else []
    parts = {number: _part(graph.nodes[number], drawn.in_degree(number)) for number in drawn}
    blocks = [_block(graph, drawn, run) for run in runs]
    for run, block in zip(runs, blocks, strict=True):
        _contract(drawn, run)
        parts[run.first] = _folded(graph, run, block)
    order = list(nx.lexicographical_topological_sort(drawn))
    places = {number: place for place, number in enumerate(order)}
    lines = sorted((places[a], places[b]) for a, b in drawn.edges)
    if _passed(len(order), lines) > _MOST_PASSED:
        return None
    return Structure(tuple(parts[number] for number in order), tuple(lines))


def _passed(count: int, lines: Sequence[tuple[int, int]]) -> int:
    """Return how many layers of the picture are passed by the longest line of each part, all together."""
    depth, farthest = [0] * count, [0] * count
    for source, target in lines:  # sorted by their sources, which come before their targets
        depth[target] = max(depth[target], depth[source] + 1)
    for source, target in lines:
        farthest[source] = max(farthest[source], depth[target] - depth[source] - 1)
    return sum(farthest)


def _skipped_modules(skipped: Collection[SkippedLayer]) -> set[str]:
    """Return modules with skipped weights, which are drawn as not analysed."""
    return {s.name.removesuffix(".weight") for s in skipped if s.cause not in _MINOR}


def _drawn(graph: ModelGraph, skipped_modules: Collection[str]) -> nx.DiGraph:
    drawn = nx.DiGraph()
    sources: list[dict[int, None]] = []  # of each node: the drawn ones its values come from, in their order
    for number, node in enumerate(graph.nodes):
        found = {source: None for given in node.inputs for source in sources[given]}
        shown = node.layers or node.op in ("input", "output") or len(found) > 1 or node.scope in skipped_modules
        if shown:
            drawn.add_node(number)
            drawn.add_edges_from((source, number) for source in found)
        sources.append({number: None} if shown else found)
    drawn.remove_nodes_from([n for n in list(drawn) if graph.nodes[n].op == "input" and not drawn.out_degree(n)])
    return drawn


def _part(node: GraphNode, paths: int) -> Part:
    if node.layers:
        prefix = f"{node.scope}." if node.scope else ""
        columns = tuple(name.removeprefix(prefix) for name in node.layers) if len(node.layers) > 1 else ("",)
        title = node.scope if len(node.layers) > 1 else node.layers[0]
        return Part("layers", title or node.op, node.place, columns, (("", node.layers),))
    if node.op in ("input", "output"):
        return Part("end", node.op)
    return Part("join", _SIGNS.get(node.op, node.op)) if paths > 1 else Part("other", node.scope or node.op)


# --- folding ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """Equal blocks in a row: the path of each, and its nodes in order."""

    blocks: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def first(self) -> int:
        return self.blocks[0][1][0]

    @property
    def nodes(self) -> list[int]:
        return [node for _, nodes in self.blocks for node in nodes]


class _Folding:
    """Finds runs of equal modules in one container, from the outermost inwards."""

    def __init__(self, graph: ModelGraph, drawn: nx.DiGraph) -> None:
        self._nodes, self._drawn, self._trial = graph.nodes, drawn, drawn.copy()
        self._seen: set[tuple[Any, ...]] = set()
        self._tries = 0

    def runs(self) -> list[_Run]:
        inner = [n for n in sorted(self._drawn) if self._nodes[n].op not in ("input", "output")]
        return list(self._below("", inner))

    def _below(self, path: str, nodes: Sequence[int]) -> Iterator[_Run]:
        prefix = f"{path}." if path else ""
        children: dict[str, list[int]] = {}
        for node in nodes:
            scope = self._nodes[node].scope
            if scope.startswith(prefix) and scope != path:
                children.setdefault(prefix + scope[len(prefix) :].partition(".")[0], []).append(node)
        for signature, found in groupby(children.items(), key=lambda child: self._signature(*child)):
            blocks = [(name, tuple(members)) for name, members in found]
            single, seen = len(signature) == 1, signature in self._seen
            self._seen.add(signature)
            if len(blocks) >= (_ALIKE_LAYERS if single else _ALIKE_BLOCKS - seen):
                run = _Run(tuple(blocks[0 if single or seen else 1 :]))  # the first of its kind is drawn in full
                if self._foldable(run):
                    yield run
                    blocks = blocks[: -len(run.blocks)]
            for name, members in blocks:
                if len(members) > 1:
                    yield from self._below(name, members)

    def _signature(self, path: str, nodes: Sequence[int]) -> tuple[Any, ...]:
        """Return what equal blocks share: operations, names of layers, and connections."""
        place = {node: at for at, node in enumerate(nodes)}
        return tuple(
            (
                self._nodes[node].op,
                tuple(layer.removeprefix(path) for layer in self._nodes[node].layers),
                tuple(sorted(place[source] for source in self._drawn.predecessors(node) if source in place)),
            )
            for node in nodes
        )

    def _foldable(self, run: _Run) -> bool:
        """Return True if the run has layers and folding it makes no cycle."""
        if not any(self._nodes[node].layers for node in run.nodes) or self._leads_apart(run):
            return False
        self._tries += 1
        if self._tries > _MOST_TRIES:
            return False
        trial = self._trial.copy()
        _contract(trial, run)
        if not nx.is_directed_acyclic_graph(trial):
            return False
        self._trial = trial
        return True

    def _leads_apart(self, run: _Run) -> bool:
        """Return True if paths lead from its blocks to different places, as in a U-Net: folded, they would be one."""
        inside = set(run.nodes)
        targets = [
            {target for node in nodes for target in self._drawn.successors(node) if target not in inside}
            for _, nodes in run.blocks
        ]
        return any(one and one != targets[-1] for one in targets)


def _contract(graph: nx.DiGraph, run: _Run) -> None:
    """Replace all nodes of a run by its first."""
    inside = set(run.nodes)
    before = [a for a, b in graph.in_edges(inside) if a not in inside]
    after = [b for a, b in graph.out_edges(inside) if b not in inside]
    graph.remove_nodes_from(inside)
    graph.add_node(run.first)
    graph.add_edges_from((source, run.first) for source in before)
    graph.add_edges_from((run.first, target) for target in after)


def _block(graph: ModelGraph, drawn: nx.DiGraph, run: _Run) -> Structure | None:
    """Return how the first block of a run is built, between an end for what comes in and one for what goes out."""
    path, nodes = run.blocks[0]
    if len(nodes) < 2:
        return None
    place = {node: at for at, node in enumerate(nodes, 1)}
    last = len(nodes) + 1
    lines = {(place.get(a, 0), place[b]) for b in nodes for a in drawn.predecessors(b)}
    lines |= {(place[a], last) for a in nodes if any(b not in place for b in drawn.successors(a))}
    parts = [_part(graph.nodes[node], drawn.in_degree(node)) for node in nodes]
    parts = [replace(part, title=part.title.removeprefix(path).lstrip(".") or part.title) for part in parts]
    return Structure((Part("end", "in"), *parts, Part("end", "out")), tuple(sorted(lines)))


def _folded(graph: ModelGraph, run: _Run, block: Structure | None) -> Part:
    def layers(nodes: Sequence[int]) -> tuple[str, ...]:
        return tuple(name for node in nodes for name in graph.nodes[node].layers)

    first, nodes = run.blocks[0]
    names = layers(nodes)
    columns = tuple(name.removeprefix(first).lstrip(".") for name in names)
    rows = tuple((path, layers(members)) for path, members in run.blocks)
    what = "blocks" if len(nodes) > 1 else "layers"
    return Part("run", f"{len(rows)} {what} alike", columns=columns, rows=rows, block=block)
