"""Model collections: builders of torchvision's and timm's models, and the inputs that models take.

Weights are always random; nothing is downloaded.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from dst_analyze.errors import ModelError
from dst_analyze.model.inputs.inputs import Inputs, as_inputs
from dst_analyze.model.loading import torchvision_compat
from dst_analyze.model.user_errors import did_you_mean

# --- building ------------------------------------------------------------------------------------------------------

_WEIGHTS = ("weights", "weights_backbone", "pretrained", "pretrained_backbone")


def builder(collection: str, name: str, arguments: Mapping[str, Any]) -> Callable[..., nn.Module]:
    """Return the function that builds a model of a collection."""
    if asked := [argument for argument in arguments if argument in _WEIGHTS]:
        raise ModelError(
            f"{collection}:{name} is built with random weights; {asked[0]!r} cannot be given.",
            hint="to start from trained weights, write a file whose build_model() loads them",
        )
    return COLLECTIONS[collection](name)


def _from_torchvision(name: str) -> Callable[..., nn.Module]:
    models = _module("torchvision", torchvision_compat.torchvision_module).models
    known: list[str] = models.list_models()
    if name not in known:
        raise _unknown("torchvision", name, known)
    build = models.get_model_builder(name)
    takes = inspect.signature(build).parameters
    return _quiet(functools.partial(build, **{key: None for key in ("weights", "weights_backbone") if key in takes}))


def _from_timm(name: str) -> Callable[..., nn.Module]:
    torchvision_compat.make_importable()
    timm = _module("timm", lambda: importlib.import_module("timm"))
    if not timm.is_model(name):  # refuses `hf-hub:...` too, whose configuration would be downloaded
        raise _unknown("timm", name, timm.list_models())
    return _quiet(functools.partial(timm.create_model, name, pretrained=False))


COLLECTIONS: dict[str, Callable[[str], Callable[..., nn.Module]]] = {
    "torchvision": _from_torchvision,
    "timm": _from_timm,
}


def _module(name: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ModelError(f"{name} is not installed.", hint=f"pip install {name}") from error


def _unknown(collection: str, name: str, known: Iterable[str]) -> ModelError:
    return ModelError(
        f"{collection} has no model {name!r}.",
        hint=did_you_mean(name, known, f"{collection}.list_models() in Python shows its names"),
    )


def _quiet(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Return the builder without its warnings, which concern the collection's future defaults."""

    @functools.wraps(build)
    def quietly(**arguments: Any) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return build(**arguments)

    return quietly


# --- inputs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    """A source of random inputs that is the same in every run and leaves global generators alone."""

    batch: int
    dtype: torch.dtype
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def floats(self, *shape: int) -> torch.Tensor:
        """Return a batch of normally distributed values; ``shape`` is that of one sample."""
        return torch.randn(self.batch, *shape, generator=self.generator).to(self.dtype)

    def tokens(self, below: int, *shape: int) -> torch.Tensor:
        """Return a batch of integers from 0 to ``below`` - 1; ``shape`` is that of one sample."""
        return torch.randint(below, (self.batch, *shape), generator=self.generator)


def known_inputs(model: nn.Module, draw: Draw) -> Iterator[Inputs]:
    """Yield the inputs that a model of a known collection should take, likeliest first."""
    for source in (_torchvision_inputs, _timm_inputs, _transformers_inputs, _dummy_inputs):
        try:
            yield from list(source(model, draw))
        except Exception:  # an unfamiliar configuration: try the next source
            continue


def takes_any_image_list(model: nn.Module) -> bool:
    """True for torchvision's detectors, whose inputs need no trial run (its operators may be missing)."""
    return _is_from(model, "torchvision.models.detection")


def _is_from(model: nn.Module, package: str) -> bool:
    return any(f"{kind.__module__}.".startswith(f"{package}.") for kind in type(model).__mro__)


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _channels(model: nn.Module) -> int:
    """Return the channels that the first convolution reads; a user may have changed the usual three."""
    return next((layer.in_channels for layer in model.modules() if isinstance(layer, _CONVOLUTIONS)), 3)


def _torchvision_inputs(model: nn.Module, draw: Draw) -> Iterator[Inputs]:
    recipe = next((recipe for package, recipe in _TORCHVISION.items() if _is_from(model, package)), None)
    if recipe is not None:
        yield from recipe(model, draw)


def _images(size: int) -> Callable[[nn.Module, Draw], Iterator[Inputs]]:
    def recipe(model: nn.Module, draw: Draw) -> Iterator[Inputs]:
        side = getattr(model, "image_size", size)
        yield Inputs((draw.floats(_channels(model), side, side),))

    return recipe


def _image_lists(model: nn.Module, draw: Draw) -> Iterator[Inputs]:
    yield Inputs((list(draw.floats(3, 224, 224).sigmoid()),))


def _image_pairs(model: nn.Module, draw: Draw) -> Iterator[Inputs]:
    yield Inputs((draw.floats(3, 128, 128), draw.floats(3, 128, 128)))


def _clips(model: nn.Module, draw: Draw) -> Iterator[Inputs]:
    for side in (112, 224):
        yield Inputs((draw.floats(_channels(model), 16, side, side),))


# Subpackages before the package that holds them: the first match counts.
_TORCHVISION: dict[str, Callable[[nn.Module, Draw], Iterator[Inputs]]] = {
    "torchvision.models.detection": _image_lists,
    "torchvision.models.video": _clips,
    "torchvision.models.optical_flow": _image_pairs,
    "torchvision.models.inception": _images(299),
    "torchvision.models.quantization.inception": _images(299),
    "torchvision.models": _images(224),
}


def _timm_inputs(model: nn.Module, draw: Draw) -> Iterator[Inputs]:
    config = getattr(model, "pretrained_cfg", None) or getattr(model, "default_cfg", None)
    if isinstance(config, Mapping) and "input_size" in config:
        channels, *sides = config["input_size"]
        built_for = getattr(getattr(model, "patch_embed", None), "img_size", None) or sides
        yield Inputs((draw.floats(_channels(model), *built_for),))
        yield Inputs((draw.floats(channels, *sides),))


def _transformers_inputs(model: nn.Module, draw: Draw) -> Iterator[Inputs]:
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "main_input_name"):
        return
    main: Any = model.main_input_name
    names = [main] if isinstance(main, str) else list(main)
    if getattr(config, "is_encoder_decoder", False):
        names.append("decoder_input_ids")
    takes = inspect.signature(model.forward).parameters
    everything = [name for name in _TRANSFORMERS if name in takes and not name.startswith("decoder_")]
    for chosen in (names, everything):
        if chosen and all(name in _TRANSFORMERS for name in chosen):
            yield Inputs((), {name: _TRANSFORMERS[name](config, draw) for name in chosen})


_PARTS = ("text_config", "vision_config", "audio_config", "encoder", "decoder")


def _setting(config: Any, default: Any, *names: str) -> Any:
    """Return a value of a configuration, or of one of the configurations nested in it."""
    parts = [config, *filter(None, (getattr(config, part, None) for part in _PARTS))]
    values = (getattr(part, name, None) for part in parts for name in names)
    return next((value for value in values if value is not None), default)


def _token_ids(config: Any, draw: Draw) -> torch.Tensor:
    longest = _setting(config, 16, "max_position_embeddings", "n_positions", "max_target_positions")
    return draw.tokens(_setting(config, 8, "vocab_size"), min(16, longest))


def _pixels(config: Any, draw: Draw) -> torch.Tensor:
    size = _setting(config, 224, "image_size")
    sides = (size, size) if isinstance(size, int) else (size["height"], size["width"]) if "height" in size else size
    frames = [frames] if (frames := _setting(config, 0, "num_frames")) else []
    return draw.floats(*frames, _setting(config, 3, "num_channels", "in_channels"), *sides)


def _spectrogram(config: Any, draw: Draw) -> torch.Tensor:
    return draw.floats(_setting(config, 80, "num_mel_bins"), 2 * _setting(config, 1500, "max_source_positions"))


def _wave(config: Any, draw: Draw) -> torch.Tensor:
    return draw.floats(4000)


# Argument names of Hugging Face models, and how to draw values for them.
_TRANSFORMERS: dict[str, Callable[[Any, Draw], torch.Tensor]] = {
    "input_ids": _token_ids,
    "decoder_input_ids": _token_ids,
    "pixel_values": _pixels,
    "input_features": _spectrogram,
    "input_values": _wave,
}


def _dummy_inputs(model: nn.Module, draw: Draw) -> Iterator[Inputs]:
    dummy = getattr(model, "dummy_inputs", None)
    if dummy is not None:
        yield as_inputs(dummy, model)
