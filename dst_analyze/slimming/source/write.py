"""`write_source`: write a slim model as a readable Python file, with its weights in safetensors beside it.

Names from the model are written as attributes only if they are plain identifiers, and otherwise as quoted literals,
like all other values: no name in a model can become code.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from safetensors.torch import save
from torch import fx

from dst_analyze.run.files.atomic_io import write_bytes
from dst_analyze.slimming.attention import HeadAttention
from dst_analyze.slimming.source.comparison import is_same_model
from dst_analyze.slimming.source.constructors import WITH_PARTS, Imports
from dst_analyze.slimming.source.example_inputs import example_lines
from dst_analyze.slimming.source.layers import PARTS
from dst_analyze.slimming.source.literals import SourceError, identifier, literal, wrapped
from dst_analyze.slimming.source.modules import all_paths, kept_kinds, write_modules


def write_source(slim: fx.GraphModule, path: str | Path) -> Path:
    """Write a slim model as a Python file with ``build_model()``, and its weights beside it.

    Args:
        slim: The model, of `slim_model`.
        path: The Python file to write; the weights get its name with the suffix ".safetensors".

    Returns:
        The path of the Python file.

    Raises:
        SourceError: A part of the model cannot be written as source, such as a class of the running script.

    Example:
        >>> import pandas as pd, tempfile, torch
        >>> from dst_analyze import rank_layers, slim_model, suggest_widths, trace_model, write_source
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
        >>> table = pd.DataFrame({"layer": ["0", "2"] * 2, "alpha": [1, 1, 2, 2], "remaining": [0.4, 0.8, 0.2, 0.7]})
        >>> plan = suggest_widths(trace_model(net, torch.randn(1, 4)), rank_layers(table))
        >>> write_source(slim_model(net, plan), f"{tempfile.mkdtemp()}/slim.py").name
        'slim.py'
    """
    path = Path(path)
    source = source_of_model(slim).encode()
    write_bytes(path.with_suffix(".safetensors"), weights_of(slim))
    write_bytes(path, source)
    return path


def weights_of(slim: fx.GraphModule) -> bytes:
    """Return the contents of the file of weights."""
    tensors = {
        name: tensor.detach().cpu().contiguous().clone()
        for name, tensor in (
            *slim.named_parameters(remove_duplicate=False),
            *slim.named_buffers(remove_duplicate=False),
        )
    }
    saved: bytes = save(tensors)
    return saved


def source_of_model(slim: fx.GraphModule) -> str:
    """Return the text of the Python file of a slim model, split as the model's own classes are.

    The text is executed and compared with the model. A class that does not compute the same is written into the
    forward of its caller.
    """
    for flat in _ways_to_split(slim):
        try:
            text, scattered = _text(slim, flat)
            if is_same_model(text, slim):
                shorter = _text(slim, flat | scattered)[0] if scattered else text
                return shorter if len(shorter) < len(text) and is_same_model(shorter, slim) else text
        except SourceError:
            raise
        except Exception:  # a form that cannot be split in this way
            continue
    return _text(slim, all_paths(slim))[0]


def _ways_to_split(slim: fx.GraphModule) -> Iterator[set[str]]:
    """Yield sets of modules to write into their callers: none, then those of one class after another, then all."""
    yield set()
    kinds = kept_kinds(slim)
    yield from (set(paths) for paths in kinds.values())


def _text(slim: fx.GraphModule, flat: Collection[str]) -> tuple[str, set[str]]:
    """Return the text, and the modules of kinds that it has many classes for, one for each form of their calls."""
    name = identifier(re.sub(r"\W", "_", type(slim).__name__))
    imports = Imports()
    classes = write_modules(slim, name, imports, reserved=_RESERVED, flat=flat)
    helpers = list(_helpers("\n".join(written.text for written in classes), slim))
    count = sum(parameter.numel() for parameter in slim.parameters())
    heading = [
        f'"""{name}: {count:,} parameters.',
        "",
        "Written by dst-analyze. `build_model()` gives the model, its weights from the safetensors file beside it.",
        '"""',
    ]
    texts = [*helpers, *(written.text for written in classes)]
    functional = any("F." in text for text in texts)
    ordered = any("OrderedDict(" in text for text in texts)
    top = [*heading, "", *imports.standard(ordered), "", *imports.lines(functional), "", f"WEIGHTS = {_WEIGHTS}"]
    parts = ["\n".join(top), *texts, _builder(slim, name), example_lines(slim)]
    forms = Counter(written.kind for written in classes)
    scattered = {path for written in classes if forms[written.kind] > _MOST_FORMS for path in written.calls}
    return "\n\n\n".join(part for part in parts if part) + "\n", scattered


_MOST_FORMS = 6
_WEIGHTS = 'Path(__file__).with_suffix(".safetensors")'
_RESERVED = ("HeadAttention", "StochasticDepth", WITH_PARTS, PARTS, "OrderedDict", "build_model", "example_inputs")

_PARTS = '''class Parts(nn.Module):
    """A named part of the model; what it does is written in the forward of the module that holds it."""

    def __init__(self, /, **parts: object) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)'''
_WITH_PARTS = '''def with_parts(module: nn.Module, **parts: nn.Module) -> nn.Module:
    """Return a layer with some of its children replaced."""
    for name, part in parts.items():
        setattr(module, name, part)
    return module'''

_DEPTH = '''class StochasticDepth(nn.Module):
    """Drops its input at random while training: whole batches, or row by row."""

    def __init__(self, p: float, mode: str) -> None:
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or self.p == 0.0:
            return x
        rows = x.shape[0] if self.mode == "row" else 1
        kept = torch.empty([rows] + [1] * (x.ndim - 1), dtype=x.dtype, device=x.device).bernoulli_(1.0 - self.p)
        return x * (kept / (1.0 - self.p) if self.p < 1.0 else kept)'''


def _helpers(text: str, slim: fx.GraphModule) -> Iterator[str]:
    if f"{PARTS}(" in text:
        yield _PARTS
    if f"{WITH_PARTS}(" in text:
        yield _WITH_PARTS
    if "StochasticDepth(" in text:
        yield _DEPTH
    if any(isinstance(module, HeadAttention) for module in slim.modules()):
        yield inspect.getsource(HeadAttention).rstrip()


# --- what the file offers ---------------------------------------------------------------------------------------


def _builder(slim: fx.GraphModule, name: str) -> str:
    still = [literal(own) for own, parameter in slim.named_parameters() if not parameter.requires_grad]
    lines = [
        "def build_model(weights: Path | None = WEIGHTS) -> nn.Module:",
        '    """Return the model with its weights; with None, with new ones."""',
        f"    model = {name}()",
        "    if weights is not None:",
        "        tensors = load_file(weights)",
        "        for name, tensor in (*model.named_parameters(), *model.named_buffers()):",
        "            if tensor.shape != tensors[name].shape:",
        '                raise ValueError(f"{name} is {list(tensors[name].shape)} in {weights}")',
        "            tensor.data = tensors[name].clone()  # into memory that is aligned, as the file need not be",
    ]
    if still:
        lines += [
            *wrapped(f"    for name in ({', '.join(still)},):", "").split("\n"),
            "        model.get_parameter(name).requires_grad_(False)",
        ]
    return "\n".join([*lines, "    return model"])
