"""The families of layers, one row each: where each stage keeps what it knows about them.

To learn what is known about attention, start at its row in `FAMILIES` and open the functions that it names. To add a
layer of torch's, add a row. Each stage looks its own column up and calls what it finds there:

| column | looked up by | says |
|---|---|---|
| `audit` | `model/tracing/weight_ops.py` | which arguments of a torch function are weights |
| `skipped` | `model/tracing/skipped.py` | why the layer's parameters are not masked |
| `channels` | `channels/rule_call.py` | which channels of its inputs, weights and outputs must be removed together |
| `surgery` | `slimming/surgery/` | how the layer or call is adjusted once its tensors are smaller |
| `sums` | `slimming/exact/dependence.py` | which sums over channels it computes |
| `constants` | `slimming/exact/constancy.py` | which of its outputs are constant, given which inputs are |

The rows name functions rather than import them, because imports point back along the line of stages. A column names
functions of the stage that looks it up and of no other. Operations that are no layers (addition, `view`, `cat`) are
not in this table: their rules are in `channels/rules/`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import nn

from dst_analyze.model.tracing.skip_cause import SkipCause


@dataclass(frozen=True)
class Handlers:
    """The functions of one package that handle a family, named as ``module:function``; "" for none."""

    package: str
    layer: str  # for a call of a module
    function: str  # for a call of a torch function or tensor method

    def find(self, *, layer: bool) -> Callable[..., Any] | None:
        """Return the function for a layer's call, or the one for a function's; None if the row names none."""
        name = self.layer if layer else self.function
        return resolve(f"{self.package}.{name}") if name else None


@cache
def resolve(name: str) -> Callable[..., Any]:
    """Return the function that a row of the table names."""
    found: Callable[..., Any] = pkgutil.resolve_name(name)
    return found


@dataclass(frozen=True)
class LayerFamily:
    """A row of the table; every column is filled in, if only with a constant that means "nothing"."""

    name: str
    layers: tuple[type[nn.Module], ...]  # and the classes derived from them
    functions: tuple[str, ...]  # torch functions and tensor methods that compute the same
    audit: Mapping[str, str]  # torch function -> the function that finds the weights among its arguments
    channels: Handlers
    surgery: Handlers
    sums: Handlers
    constants: Handlers
    skipped: SkipCause | None = None  # where the family alone says why its parameters are not masked


# --- the columns ------------------------------------------------------------------------------------------------

AUDIT = "dst_analyze.model.tracing.weight_ops"
CHANNELS = "dst_analyze.channels.rules"
SURGERY = "dst_analyze.slimming.surgery"
EXACT = "dst_analyze.slimming.exact"


def _audit(finder: str, *functions: str) -> dict[str, str]:
    return dict.fromkeys(functions, f"{AUDIT}:{finder}")


def _channels(layer: str = "", function: str = "") -> Handlers:
    return Handlers(CHANNELS, layer, function)


def _for_both(name: str) -> Handlers:
    """Return a channel rule that serves both the layer and the function."""
    return _channels(name, name)


def _surgery(layer: str = "", function: str = "") -> Handlers:
    return Handlers(SURGERY, layer and f"fit_modules:{layer}", function and f"fit_calls:{function}")


def _sums(layer: str = "", function: str = "") -> Handlers:
    start = "dependence:DependenceCollector."
    return Handlers(EXACT, layer and start + layer, function and start + function)


def _constants(layer: str = "", function: str = "") -> Handlers:
    start = "constancy:ConstancyRun."
    return Handlers(EXACT, layer and start + layer, function and start + function)


NO_WEIGHTS: Mapping[str, str] = {}  # nothing in it is multiplied by data and summed
NOT_UNDERSTOOD = _channels()  # all channels that it touches stay
NO_SIZES = _surgery()  # stores no sizes
NO_SUMS = _sums()  # sums over no channels, or its channel rule says that removal is inexact
BY_EFFECT = _constants()  # decided by the `Effect` that its channel rule declares


def _without_weights(
    name: str,
    layers: tuple[type[nn.Module], ...],
    functions: tuple[str, ...],
    *,
    channels: Handlers,
    skipped: SkipCause | None = None,
    surgery: Handlers = NO_SIZES,
) -> LayerFamily:
    """Return the row of a family that multiplies no weights: the channel rule's `Effect` says the rest."""
    return LayerFamily(name, layers, functions, NO_WEIGHTS, channels, surgery, NO_SUMS, BY_EFFECT, skipped)


def _numbered(*stems: str, suffix: str = "") -> tuple[str, ...]:
    """Return the names of functions that exist for one, two and three dimensions."""
    return tuple(f"{stem}{n}d{suffix}" for stem in stems for n in (1, 2, 3))


def _torch_layers(*stems: str) -> tuple[type[nn.Module], ...]:
    """Return the layers that exist for one, two and three dimensions, as far as this torch has them."""
    return tuple(getattr(nn, name) for name in _numbered(*stems) if hasattr(nn, name))


# --- the table --------------------------------------------------------------------------------------------------

_PRODUCTS = ("matmul", "bmm", "mm", "mv", "__matmul__")
# fmt: off
_ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.RReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid,
    nn.LogSigmoid, nn.Tanh, nn.Tanhshrink, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Hardshrink, nn.Softplus,
    nn.Softshrink, nn.Softsign, nn.Threshold, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
    nn.AlphaDropout, nn.FeatureAlphaDropout,
)
# fmt: on

FAMILIES: tuple[LayerFamily, ...] = (
    LayerFamily(
        name="linear",
        layers=(nn.Linear,),
        functions=("linear",),
        audit=_audit("linear_weights", "linear"),
        channels=_channels("linear:linear_layer", "linear:linear_function"),
        surgery=_surgery("fit_linear"),
        sums=_sums("note_linear", "note_linear"),
        constants=_constants("mark_linear_layer", "mark_linear"),
    ),
    LayerFamily(
        name="bilinear",
        layers=(nn.Bilinear,),
        functions=(),
        audit=_audit("bilinear_weights", "bilinear"),
        channels=_channels("linear:bilinear_layer"),
        surgery=_surgery("fit_bilinear"),
        sums=_sums("note_bilinear"),
        constants=BY_EFFECT,
    ),
    LayerFamily(
        name="convolution",
        layers=(nn.modules.conv._ConvNd,),
        functions=_numbered("conv", "conv_transpose"),
        audit={
            **_audit("convolution_weights", *_numbered("conv"), "convolution", "_convolution"),
            **_audit("transposed_convolution_weights", *_numbered("conv_transpose")),
            **_audit("tbc_convolution_weights", "conv_tbc"),
        },
        channels=_channels("convolution:convolution_layer", "convolution:convolution_function"),
        surgery=_surgery("fit_convolution", "fit_convolution"),
        sums=_sums("note_convolution", "note_convolution"),
        constants=_constants("mark_convolution", "mark_convolution"),
    ),
    LayerFamily(
        name="recurrent",
        layers=(nn.RNNBase,),
        functions=(),
        audit={
            **_audit("rnn_weights", "rnn_tanh", "rnn_relu"),
            **_audit("lstm_weights", "lstm"),
            **_audit("gru_weights", "gru"),
        },
        channels=_channels("recurrent:recurrent_layer"),
        surgery=_surgery("fit_recurrent"),
        sums=_sums("note_recurrent"),
        constants=BY_EFFECT,
    ),
    LayerFamily(
        name="recurrent cell",
        layers=(nn.modules.rnn.RNNCellBase,),
        functions=(),
        audit={
            **_audit("rnn_cell_weights", "rnn_tanh_cell", "rnn_relu_cell"),
            **_audit("lstm_cell_weights", "lstm_cell"),
            **_audit("gru_cell_weights", "gru_cell"),
        },
        channels=_channels("recurrent:recurrent_cell"),
        surgery=_surgery("fit_recurrent_cell"),
        sums=_sums("note_recurrent"),
        constants=BY_EFFECT,
    ),
    LayerFamily(
        name="attention",
        layers=(nn.MultiheadAttention,),
        functions=("scaled_dot_product_attention",),
        audit=_audit("attention_weights", "multi_head_attention_forward"),
        channels=_channels("attention:attention_layer", "attention:dot_product_attention"),
        surgery=_surgery("fit_attention", "fit_attention"),
        sums=_sums("note_attention", "note_dot_product_attention"),
        constants=BY_EFFECT,
    ),
    LayerFamily(
        name="matrix product",
        layers=(),
        functions=_PRODUCTS,
        audit={
            **_audit("matmul_weights", *_PRODUCTS, "grouped_mm", "_grouped_mm"),
            **_audit("reversed_matmul_weights", "__rmatmul__"),
        },
        channels=_channels(function="linear:matrix_product"),
        surgery=NO_SIZES,
        sums=_sums(function="note_product"),
        constants=_constants(function="mark_product"),
    ),
    LayerFamily(
        name="added matrix product",
        layers=(),
        functions=("addmm", "baddbmm"),
        audit=_audit("added_matmul_weights", "addmm", "addmm_", "baddbmm", "addbmm", "addmv"),
        channels=_channels(function="linear:added_product"),
        surgery=NO_SIZES,
        sums=_sums(function="note_added_product"),
        constants=_constants(function="mark_added_product"),
    ),
    LayerFamily(
        name="einsum",
        layers=(),
        functions=("einsum",),
        audit=_audit("einsum_weights", "einsum"),
        channels=_channels(function="linear:einsum"),
        surgery=NO_SIZES,
        sums=_sums(function="note_einsum"),
        constants=_constants(function="mark_product"),
    ),
    LayerFamily(
        name="tensordot",
        layers=(),
        functions=("tensordot",),
        audit=_audit("tensordot_weights", "tensordot"),
        channels=NOT_UNDERSTOOD,
        surgery=NO_SIZES,
        sums=NO_SUMS,
        constants=BY_EFFECT,
    ),
    _without_weights(
        "embedding",
        (nn.Embedding, nn.EmbeddingBag),
        ("embedding",),
        skipped=SkipCause.EMBEDDING,
        channels=_channels("linear:embedding_layer", "linear:embedding_function"),
        surgery=_surgery("fit_embedding"),
    ),
    _without_weights(
        "batch norm",
        (nn.modules.batchnorm._NormBase,),
        ("batch_norm", "instance_norm"),
        skipped=SkipCause.NORM,
        channels=_channels("norms:batch_norm_layer", "norms:batch_norm_function"),
        surgery=_surgery("fit_batch_norm"),
    ),
    _without_weights(
        "layer norm",
        (nn.LayerNorm, nn.RMSNorm),
        ("layer_norm", "rms_norm"),
        skipped=SkipCause.NORM,
        channels=_channels("norms:layer_norm_layer", "norms:layer_norm_function"),
        surgery=_surgery("fit_layer_norm", "fit_layer_norm"),
    ),
    _without_weights(
        "group norm",
        (nn.GroupNorm,),
        ("group_norm",),
        skipped=SkipCause.NORM,
        channels=_channels("norms:group_norm_layer", "norms:group_norm_function"),
        surgery=_surgery("fit_group_norm", "fit_group_norm"),
    ),
    _without_weights(
        "local response norm",
        (nn.LocalResponseNorm,),
        ("local_response_norm",),
        channels=_for_both("indexing:local_response_norm"),
    ),
    _without_weights(
        "parametric ReLU",
        (nn.PReLU,),
        ("prelu",),
        channels=_channels("norms:prelu_layer", "norms:prelu_function"),
        surgery=_surgery("fit_prelu"),
    ),
    # The functions of these layers are entered with all other element-wise operations.
    _without_weights("activation", _ACTIVATIONS, (), channels=_channels("elementwise:elementwise")),
    _without_weights(
        "softmax",
        (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.Softmax2d),
        ("softmax", "log_softmax", "softmin"),
        channels=_channels("elementwise:softmax_layer", "elementwise:along_axis"),
    ),
    _without_weights("gated linear unit", (nn.GLU,), ("glu",), channels=_for_both("elementwise:gated_unit")),
    _without_weights("flatten", (nn.Flatten,), ("flatten",), channels=_for_both("shapes:reshaped")),
    _without_weights(
        "unflatten",
        (nn.Unflatten,),
        ("unflatten",),
        channels=_for_both("shapes:reshaped"),
        surgery=_surgery("fit_unflatten", "fit_unflatten"),
    ),
    _without_weights(
        "pixel shuffle",
        (nn.PixelShuffle, nn.PixelUnshuffle),
        ("pixel_shuffle", "pixel_unshuffle"),
        channels=_for_both("shapes:as_it_is"),
    ),
    _without_weights(
        "channel shuffle",
        (nn.ChannelShuffle,),
        ("channel_shuffle", "native_channel_shuffle"),
        channels=_for_both("shapes:channel_shuffle"),
    ),
    _without_weights(
        "pooling",
        _torch_layers("MaxPool", "AvgPool", "LPPool", "AdaptiveAvgPool", "AdaptiveMaxPool"),
        (
            *_numbered("max_pool", "avg_pool", "lp_pool", "adaptive_avg_pool", "adaptive_max_pool"),
            *_numbered("max_pool", "adaptive_max_pool", suffix="_with_indices"),
            *_numbered("boolean_dispatch_max_pool"),
        ),
        channels=_for_both("shapes:pooling"),
    ),
    _without_weights(
        "unpooling",
        _torch_layers("MaxUnpool"),
        _numbered("max_unpool"),
        channels=_for_both("indexing:unpooling"),
    ),
    _without_weights(
        "resizing",
        (nn.Upsample,),
        ("interpolate", "upsample"),
        channels=_for_both("shapes:resizing"),
    ),
    _without_weights(
        "padding",
        _torch_layers("ZeroPad", "ConstantPad", "ReflectionPad", "ReplicationPad", "CircularPad"),
        ("pad",),
        channels=_channels("shapes:padding_layer", "shapes:padding_function"),
    ),
    _without_weights("patches to columns", (nn.Unfold,), ("unfold",), channels=_for_both("shapes:unfold")),
    _without_weights("columns to patches", (nn.Fold,), ("fold",), channels=_for_both("indexing:fold")),
    _without_weights(
        "similarity",
        (nn.CosineSimilarity, nn.PairwiseDistance),
        ("cosine_similarity", "pairwise_distance"),
        channels=_for_both("indexing:similarity"),
    ),
)


# --- looking up -------------------------------------------------------------------------------------------------

_BY_LAYER = {layer: family for family in FAMILIES for layer in family.layers}
_BY_FUNCTION = {function: family for family in FAMILIES for function in family.functions}
_WEIGHT_FINDERS = {function: finder for family in FAMILIES for function, finder in family.audit.items()}


def family_of_layer(kind: type[nn.Module]) -> LayerFamily | None:
    """Return the family of a layer's class, or of the nearest class that it is derived from."""
    return next((_BY_LAYER[base] for base in kind.__mro__ if base in _BY_LAYER), None)


def family_of_call(module: nn.Module | None, function: str) -> LayerFamily | None:
    """Return the family of a call: its module's, or else that of the torch function of this name."""
    return _BY_FUNCTION.get(function) if module is None else family_of_layer(type(module))


def weight_finder(function: str) -> Callable[..., Any] | None:
    """Return the function that finds the weights among a torch function's arguments."""
    name = _WEIGHT_FINDERS.get(function)
    return resolve(name) if name is not None else None
