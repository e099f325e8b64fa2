"""The nodes of a graph by the module calls that they were recorded in: what each written ``forward`` holds."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn

from dst_analyze.model.graph.module_calls import ModuleCall
from dst_analyze.slimming.source.forward.public_forms import use_public_forms

Calls = tuple[ModuleCall, ...]


@dataclass(eq=False)
class Region:
    """One call of a module, or of the whole model (path ""): its steps, what it reads and what is read of it."""

    path: str
    call: ModuleCall | None = None
    steps: list[fx.Node | Region] = field(default_factory=list)
    parameters: list[fx.Node] = field(default_factory=list)
    results: list[fx.Node] = field(default_factory=list)

    @property
    def kind(self) -> type[nn.Module]:
        return self.call.kind if self.call else nn.Module

    def nodes(self) -> Iterator[fx.Node]:
        """Yield the nodes of this call and of the calls inside it."""
        for step in self.steps:
            if isinstance(step, Region):
                yield from step.nodes()
            else:
                yield step

    def inner(self) -> Iterator[Region]:
        """Yield the calls inside this one, each before those inside it."""
        for step in self.steps:
            if isinstance(step, Region):
                yield step
                yield from step.inner()

    def below(self, target: str) -> str:
        """Return a qualified name relative to this module; empty if it is another module's."""
        if not self.path:
            return target
        return target.removeprefix(f"{self.path}.") if target.startswith(f"{self.path}.") else ""


def calls_of(node: fx.Node) -> Calls:
    """Return the module calls that a node was recorded in, the outermost first."""
    calls: Calls = node.meta.get("calls", ())
    return calls


def copy_for_writing(source: fx.Graph) -> fx.Graph:
    """Return a copy of a graph in which each module reads sizes and devices from tensors of its own."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(source, {}))
    use_public_forms(graph)
    for node in reversed(list(graph.nodes)):
        if "calls" not in node.meta and node.op == "call_function" and node.users and not _is_size(node):
            user = next(iter(node.users))  # the node is an addition of surgery
            node.meta |= {key: user.meta[key] for key in ("calls", "line") if key in user.meta}
    _pass_lists_whole(graph)
    for node in reversed(list(graph.nodes)):
        if _is_size(node):
            _read_where_used(graph, node)
    return graph


def regions_of(graph: fx.Graph, flat: Collection[str] = ()) -> Region:
    """Return the whole model's region, with a region inside it for each module call that can be a method of its own.

    ``flat``: paths of modules whose steps are to stand in the caller's ``forward``.
    """
    root, broken = _by_calls(graph)
    _dissolve(root, broken, flat)
    for region in (root, *root.inner()):
        _find_borders(region, graph)
    return root


def _pass_lists_whole(graph: fx.Graph) -> None:
    """Give modules that are called with a list, and use it whole, the list in place of its items."""
    passed = {(call, name): node for node in graph.nodes for call, name in node.meta.get("passed", {}).items()}
    done: set[tuple[ModuleCall, str]] = set()
    for node in list(graph.nodes):
        for depth, call in enumerate(calls_of(node)):
            for name, count in call.lists.items():
                names = [name] if count == 1 else [f"{name}_{index}" for index in range(count)]
                items = [passed.get((call, item)) for item in names]
                if (call, name) not in done and items in [arg for arg in node.args if isinstance(arg, list)]:
                    first = _first_of(call, graph)
                    with graph.inserting_before(first):
                        whole = graph.create_node("call_function", as_list, tuple(items))
                    whole.meta = {"calls": calls_of(node)[:depth], "passed": {call: name}, "is_tensor": False}
                    if call.line is not None:
                        whole.meta["line"] = call.line
                    if name not in call.parameters:
                        call.parameters.append(name)
                    node.args = tuple(whole if arg == items else arg for arg in node.args)
                    done.add((call, name))


def as_list(*items: Any) -> list[Any]:
    """Stand for a list that is written in brackets."""
    return list(items)


def _first_of(call: ModuleCall, graph: fx.Graph) -> fx.Node:
    inside = (node for node in graph.nodes if call in calls_of(node))
    first: fx.Node = next(node for node in inside if node.op not in ("placeholder", "get_attr"))
    return first


# --- sizes --------------------------------------------------------------------------------------------------------


def _is_size(node: fx.Node) -> bool:
    if node.op == "call_method" and node.target == "size":
        return True
    if node.target is getattr:
        return node.args[1] in ("shape", "device", "dtype")
    first = node.args[0] if node.args else None
    return node.target is operator.getitem and isinstance(first, fx.Node) and _is_size(first)


def _read_where_used(graph: fx.Graph, size: fx.Node) -> None:
    """Give each module that uses a size of a tensor a reading of its own, unless its caller passes the size."""
    tensor = size.args[0]
    if not isinstance(tensor, fx.Node) or len(size.all_input_nodes) > 1:  # which axis may depend on an input
        return
    copies: dict[Calls, fx.Node] = {}
    for user in list(size.users):
        calls = calls_of(user)
        passed = size.meta.get("passed", {})
        if user.op == "output" or calls == calls_of(size) or any(call in passed for call in calls):
            continue
        source = _tensor_at_hand(size, user, calls)
        if source is None:
            continue
        if calls not in copies:
            before = _first_after(source, calls, user)
            with graph.inserting_before(before):
                copy = graph.node_copy(size, {node: node for node in size.all_input_nodes}.__getitem__)
            copy.replace_input_with(tensor, source)
            copy.meta = {"calls": calls, "is_tensor": False}
            if before is user and "line" in user.meta:
                copy.meta["line"] = user.meta["line"]
            copies[calls] = copy
        user.replace_input_with(size, copies[calls])
    if not size.users:
        graph.erase_node(size)


def _first_after(tensor: fx.Node, calls: Calls, user: fx.Node) -> fx.Node:
    """Return the first node of a call that comes after a tensor: a call reads the sizes of its arguments first."""
    node, first = tensor.next, user
    while node is not user:
        if first is user and node.op not in ("placeholder", "get_attr") and calls_of(node)[: len(calls)] == calls:
            first = node
        node = node.next
    return first


def _tensor_at_hand(size: fx.Node, user: fx.Node, calls: Calls) -> fx.Node | None:
    """Return the tensor whose size a user can read; for a device, any tensor of the same call."""
    tensor = size.args[0]
    assert isinstance(tensor, fx.Node)
    if size.target is getattr and size.args[1] == "device" and "calls" not in size.meta and calls:
        near = [node for node in user.all_input_nodes if node.meta.get("is_tensor") and node.op != "get_attr"]
        given = [node for node in size.graph.nodes if calls[-1] in node.meta.get("passed", {})]
        return next((node for node in (*near, *given) if node.meta.get("is_tensor") and node < user), tensor)
    there = calls_of(tensor)
    others = [calls_of(node) for node in tensor.users if node.op != "output" and not _is_size(node)]
    at_hand = there == calls[: len(there)] or any(reading[: len(calls)] == calls for reading in others)
    return tensor if at_hand else None


# --- the tree of calls ----------------------------------------------------------------------------------------------


def _by_calls(graph: fx.Graph) -> tuple[Region, set[ModuleCall]]:
    """Return the tree of calls, and those whose nodes do not follow one another."""
    root = Region("")
    stack: list[Region] = [root]
    seen: set[ModuleCall] = set()
    broken: set[ModuleCall] = set()
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        calls = calls_of(node)
        depth = 0
        while depth < min(len(stack) - 1, len(calls)) and stack[depth + 1].call is calls[depth]:
            depth += 1
        del stack[depth + 1 :]
        for call in calls[depth:]:
            if call in seen:
                broken.add(call)
            seen.add(call)
            region = Region(call.path, call)
            stack[-1].steps.append(region)
            stack.append(region)
        stack[-1].steps.append(node)
    return root, broken


def _dissolve(region: Region, broken: Collection[ModuleCall], flat: Collection[str]) -> None:
    """Put the steps of calls that cannot be methods of their own into their callers."""
    steps: list[fx.Node | Region] = []
    for step in region.steps:
        if isinstance(step, Region):
            _dissolve(step, broken, flat)
            kept = step.call not in broken and step.path not in flat and _is_closed(step)
            steps += [step] if kept else step.steps
        else:
            steps.append(step)
    region.steps = steps


def _is_closed(region: Region) -> bool:
    """Return True if a call uses no modules but the ones that its module holds."""
    for step in region.steps:
        target = step.path if isinstance(step, Region) else str(step.target) if step.op == "call_module" else ""
        if target and not region.below(target):
            return False
    return True


def _find_borders(region: Region, graph: fx.Graph) -> None:
    own = dict.fromkeys(region.nodes())
    if region.call is None:
        region.parameters = [node for node in graph.nodes if node.op == "placeholder"]
        return
    read = dict.fromkeys(value for node in own for value in node.all_input_nodes if value not in own)
    order = {name: index for index, name in reversed(list(enumerate(region.call.parameters)))}

    def place(node: fx.Node) -> int:
        return order.get(node.meta.get("passed", {}).get(region.call, ""), len(order))

    outside = [node for node in read if node.op != "get_attr" or not _is_own_attribute(region, node)]
    region.parameters = sorted(outside, key=place)
    region.results = [node for node in own if any(user not in own for user in node.users)]


def _is_own_attribute(region: Region, node: fx.Node) -> bool:
    return node.target == "training" or bool(region.below(str(node.target)))


def arguments_of(value: Any) -> list[fx.Node]:
    """Return the nodes in an argument, in the order of the text, each as often as it stands there."""
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)
    return found
