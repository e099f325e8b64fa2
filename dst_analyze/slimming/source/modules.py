"""The modules of a model as classes: which of its calls are a ``forward`` of their own, and what each class holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from torch import fx, nn

from dst_analyze.slimming.conditions import Branch
from dst_analyze.slimming.source.classes import Instance, WrittenClass, method_lines, write_classes
from dst_analyze.slimming.source.constructors import Imports, constructor
from dst_analyze.slimming.source.forward.expressions import reference
from dst_analyze.slimming.source.forward.loops import with_loops
from dst_analyze.slimming.source.forward.regions import Region, copy_for_writing, regions_of
from dst_analyze.slimming.source.forward.statements import Body, write_body
from dst_analyze.slimming.source.layers import LayerWriter, Line, children
from dst_analyze.slimming.source.literals import SourceError, is_listed
from dst_analyze.slimming.source.templates import Template, rendered


def write_modules(
    slim: fx.GraphModule, name: str, imports: Imports, *, reserved: Iterable[str], flat: Collection[str] = ()
) -> list[WrittenClass]:
    """Return the classes of a model, the model's own last.

    Args:
        slim: The model.
        name: The name of its class.
        imports: The file's imports, to add to.
        reserved: Names that no class may have.
        flat: Paths of modules that are to have no ``forward`` of their own.
    """
    graph = copy_for_writing(slim.graph)
    held = _with_all_called(slim, graph)
    plan = _Plan(held, graph, imports, set(flat))
    made: dict[str, Template] = {}
    layers = LayerWriter(held, imports, made, plan.chains, slim.meta.get("was", {}))
    taken = {word: Instance("", "", []) for word in (*reserved, *_imported_names(slim), *imports.names(), name)}
    found: list[WrittenClass] = []
    for paths in _by_height(plan.bodies.keys()):
        instances = [plan.instance(path, layers) for path in paths if path]
        for written in write_classes(instances, taken):
            made |= written.calls
            found.append(written)
    whole = plan.instance("", layers)
    whole.kind = name
    whole.lines += [Line((tie,)) for tie in layers.ties()]
    del taken[name]
    (last,) = write_classes([whole], taken)
    return [*found, replace(last, text="\n".join([last.text, *_branch_lines(slim, held, imports)]))]


def _branch_lines(slim: fx.GraphModule, held: nn.Module, imports: Imports) -> Iterator[str]:
    """Yield the lines of the methods for what runs under a condition only."""
    for name, branch in slim.named_children():
        if isinstance(branch, Branch):
            graph = copy_for_writing(branch.part.graph)
            output = next(node for node in reversed(graph.nodes) if node.op == "output")
            region = regions_of(graph, {path for path, _ in held.named_modules()})
            yield ""
            yield from method_lines(name, write_body(region, held, imports, root_output=output))


def all_paths(slim: fx.GraphModule) -> set[str]:
    """Return the paths of all modules whose calls could be written as methods of their own."""
    return {region.path for region in regions_of(slim.graph).inner()}


def kept_kinds(slim: fx.GraphModule) -> dict[str, list[str]]:
    """Return the names of the modules' own classes, each with the paths of its modules."""
    found: dict[str, list[str]] = {}
    for region in regions_of(slim.graph).inner():
        found.setdefault(region.kind.__qualname__, []).append(region.path)
    return found


class _Plan:
    """The bodies of all classes; modules whose calls differ have none and stand in their callers'."""

    def __init__(self, held: nn.Module, graph: fx.Graph, imports: Imports, flat: set[str]) -> None:
        self._held, self._imports = held, imports
        self._kinds: dict[str, type[nn.Module]] = {}
        self._sequences: set[str] = set()
        output = next(node for node in reversed(graph.nodes) if node.op == "output")
        while True:
            root = regions_of(graph, flat)
            more = self._read(root)
            if not more - flat:
                break
            flat |= more
        self.bodies[""] = write_body(root, held, imports, root_output=output)
        names = list(held._modules)
        whole = isinstance(output.args[0], fx.Node) and names == [str(number) for number in range(len(names))]
        root.results = [output.args[0]] if isinstance(output.args[0], fx.Node) else []
        if whole and _is_chain(root, held):
            self._sequences.add("")

    def _read(self, root: Region) -> set[str]:
        """Write the bodies of all calls; return the modules that cannot have one."""
        self.bodies: dict[str, Body] = {}
        self.chains: set[str] = set()
        failed: set[str] = set()
        for region in root.inner():
            path, kind = region.path, region.kind
            self._kinds[path] = kind
            module = _held_at(self._held, path)
            if module is None:
                failed.add(path)
            elif kind is nn.Sequential:
                (self.chains if is_listed_or_named(module) and _is_chain(region, module) else failed).add(path)
            else:
                body = write_body(region, self._held, self._imports)
                if self.bodies.setdefault(path, body) != body:
                    failed.add(path)
                if kind.forward is nn.Sequential.forward and is_listed(module) and _is_chain(region, module):
                    self._sequences.add(path)
        return failed

    def instance(self, path: str, layers: LayerWriter) -> Instance:
        """Return a module as an instance of its class."""
        module, body = self._held.get_submodule(path), self.bodies[path]
        parts = tuple(name for name, _ in children(module))
        kind = self._kinds[path].__name__ if path else ""
        if path in self._sequences:
            return Instance(path, kind, layers.items(path), parts=parts, is_sequence=True)
        owners = {
            rendered(reference(name, module)): part for name, part in module.named_modules() if name and is_listed(part)
        }
        statements = with_loops(body.statements, owners, body.names)
        return Instance(path, kind, layers.lines(path), body.parameters, statements, parts)


def is_listed_or_named(module: nn.Module) -> bool:
    """Return True if the modules that a container holds can be the arguments of an nn.Sequential."""
    return is_listed(module) or not any(name.isdigit() for name in module._modules)


def _is_chain(region: Region, module: nn.Module) -> bool:
    """Return True if a call passes its argument through all modules in turn, as an nn.Sequential does."""
    held = [f"{region.path}.{name}".strip(".") for name in module._modules]
    if module._parameters or module._buffers or len(region.parameters) != 1 or len(region.steps) != len(held):
        return False
    value = region.parameters[0]
    for step, path in zip(region.steps, held, strict=True):
        if isinstance(step, Region):
            if step.path != path or step.parameters != [value] or len(step.results) != 1:
                return False
            value = step.results[0]
        else:
            if step.op != "call_module" or step.target != path or step.args != (value,) or step.kwargs:
                return False
            value = step
    return region.results == [value]


def _with_all_called(slim: fx.GraphModule, graph: fx.Graph) -> nn.Module:
    """Return the model's modules with one more for each that is called and holds nothing."""
    held = _copy_of_containers(slim)
    for region in regions_of(graph).inner():
        module = held
        for name in region.path.split("."):
            inner = module._modules.get(name)
            if inner is None and type(module) is nn.Module and name not in module.__dict__:
                inner = nn.Module()
                module._modules[name] = inner
                if all(key.isdigit() for key in module._modules):
                    module._modules = dict(sorted(module._modules.items(), key=lambda item: int(item[0])))
            if inner is None:
                break
            module = inner
    return held


def _copy_of_containers(module: nn.Module) -> nn.Module:
    copy = nn.Module()
    copy._parameters, copy._buffers = dict(module._parameters), dict(module._buffers)
    copy._non_persistent_buffers_set = set(module._non_persistent_buffers_set)
    for name, inner in module._modules.items():
        copy._modules[name] = _copy_of_containers(inner) if type(inner) is nn.Module else inner
    return copy


def _held_at(held: nn.Module, path: str) -> nn.Module | None:
    """Return a module that is written by what it holds; None if it is a layer, or its model does not hold it."""
    try:
        module = held.get_submodule(path)
    except AttributeError:
        return None
    return module if type(module) is nn.Module else None


def _by_height(paths: Collection[str]) -> list[list[str]]:
    """Return modules in lists, those of each before the ones that hold them."""
    heights: dict[str, int] = {}
    for path in sorted(paths, key=lambda path: path.count("."), reverse=True):
        inside = [height for other, height in heights.items() if other.startswith(f"{path}.")]
        heights[path] = 1 + max(inside, default=0)
    order = [path for path in paths if path]
    return [[path for path in order if heights[path] == height] for height in sorted({heights[path] for path in order})]


def _imported_names(slim: fx.GraphModule) -> list[str]:
    """Return the names that the layers' constructors will import."""
    scratch = Imports()
    for module in slim.modules():
        own = (nn.Module, Branch)
        if type(module) not in own and not isinstance(module, fx.GraphModule):
            try:
                constructor(module, scratch)
            except SourceError:
                continue
    return scratch.names()
