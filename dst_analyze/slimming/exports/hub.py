"""`hub/`: the slim model in the layout of the Hugging Face hub, with a model card.

A `PreTrainedModel` whose widths its configuration can express is written for ``from_pretrained`` of its own class, and
is loaded and compared before. Any other model has `slim_model.py` beside its weights.
"""

from __future__ import annotations

import importlib
import json
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.isolation import preserved
from dst_analyze.run.files.paths import HUB, SLIM_SOURCE
from dst_analyze.slimming.exports.hub_card import Loading, model_card
from dst_analyze.slimming.exports.hub_config import ConfigError, slim_config
from dst_analyze.slimming.exports.result import Exported, NotExportedError, SlimResult
from dst_analyze.slimming.exports.same_class import MismatchError, compare_class, fill_from

_WEIGHTS, _CONFIG, _CARD = "model.safetensors", "config.json", "README.md"
_BESIDE = 'Path(__file__).with_suffix(".safetensors")'
_MOST = 20  # gigabytes in one file: more would be split, which the card does not say


def write_hub(result: SlimResult) -> Exported:
    """Return the folder `hub`: model.safetensors, config.json, README.md and, if it is needed, slim_model.py."""
    traced = result.traced
    if traced is None:
        raise NotExportedError("the model itself is not at hand")
    why = "the model is no PreTrainedModel of transformers"
    if is_pretrained(traced.model):
        try:
            return _pretrained(result, traced.model, traced.inputs)
        except (ConfigError, MismatchError) as error:
            why = str(error)
    return _with_source(result, why)


def is_pretrained(model: nn.Module) -> bool:
    """Return True for a model of transformers: a class with ``config`` and ``save_pretrained``."""
    return any(f"{kind.__module__}.{kind.__name__}" == "transformers.modeling_utils.PreTrainedModel"
               for kind in type(model).__mro__)  # fmt: skip


# --- a model that its own class can load ------------------------------------------------------------------------


def _pretrained(result: SlimResult, model: nn.Module, inputs: Inputs) -> Exported:
    config, changed = slim_config(model, result.model)
    with preserved():
        slim: Any = type(model)(config).eval()
    fill_from(slim, result.model, model)
    with tempfile.TemporaryDirectory() as folder:
        with warnings.catch_warnings(), _without_bars():
            warnings.simplefilter("ignore")
            slim.save_pretrained(folder, max_shard_size=f"{_MOST}GB")
            loaded = type(model).from_pretrained(folder).eval()  # type: ignore[attr-defined]
        difference, sizes = compare_class(result.model, loaded, inputs)
        files = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}
    kind = type(model)
    loading = Loading(kind.__module__.partition(".")[0], kind.__name__, changed=changed)
    files[_CARD] = model_card(result, loading).encode()
    widths = ", ".join(f"{name} {before} -> {after}" for name, (before, after) in changed.items())
    return Exported(
        folders={HUB: files},
        difference=difference,
        batch_sizes=sizes,
        note=f"{kind.__name__}.from_pretrained loads it: {widths}",
    )


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep the progress bars of transformers, which has been imported with the model, from the terminal."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


# --- any other model --------------------------------------------------------------------------------------------


def _with_source(result: SlimResult, why: str) -> Exported:
    if not result.source:
        raise NotExportedError("the slim model has no source, and its class cannot be configured")
    plan = result.plan
    assert plan is not None
    config = {
        "architectures": [type(result.traced.model).__name__ if result.traced else plan.model],
        "built_by": f"{SLIM_SOURCE}: build_model()",
        "parameters": plan.new_params,
        "widths": {layer: group.new_width for group in plan.groups for layer in group.layers},
    }
    source = result.source.decode().replace(_BESIDE, f'Path(__file__).with_name("{_WEIGHTS}")')
    files = {
        _WEIGHTS: result.weights,
        _CONFIG: f"{json.dumps(config, indent=1)}\n".encode(),
        SLIM_SOURCE: source.encode(),
        _CARD: model_card(result, Loading("pytorch", "", why=why)).encode(),
    }
    return Exported(folders={HUB: files}, note=f"{why}: {SLIM_SOURCE} in it builds the model")
