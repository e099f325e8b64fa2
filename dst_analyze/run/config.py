"""The configuration of a sweep: every option that determines its results, validated."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from dst_analyze.errors import OptionError

DEFAULT_BATCH_SIZE = 64

MOST_TRIALS = 2_000
"""More are refused: an untrusted run folder could ask for enough to fill the memory."""

QUICK_STRENGTHS = (0.3, 0.5, 0.7, 0.8, 0.9)
"""The shares of the weights that a quick run prunes from the trained dense model; its alphas."""

_MOST_STEPS = 10**12  # of anything that is counted in steps or samples

# Numbers that make no sense are errors of the file they stand in.
Count = Annotated[int, Field(ge=0, le=10**15)]
Size = Annotated[int, Field(ge=1, le=10**15)]
Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[float, Field(ge=-1e150, le=1e150)]
"""A loss, a score: what can be squared."""


class Json(BaseModel):
    """A JSON value of the run folder; unknown fields and NaN are refused on reading and writing."""

    # Pydantic up to 2.9 warns of fields whose name begins with model_.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


def _seeds(value: Any) -> Any:
    """Return seeds; a count such as 3 means 0, 1, 2."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    if value > MOST_TRIALS:
        raise ValueError(f"{value} are more than the limit of {MOST_TRIALS}")
    return tuple(range(value))


def _as_json(value: Any) -> Any:
    """Return arguments as JSON values: tuples become lists, other objects their repr."""
    return json.loads(json.dumps(value, default=repr, allow_nan=False))


def _wrong(option: str, text: str) -> PydanticCustomError:
    """Return the error for an option that does not fit the others; both are read back from its context."""
    return PydanticCustomError("option", "Value error, {option}: {text}", {"option": option, "text": text})


_HINTS = {
    "alphas": "alphas are auto, or two or more strengths of pruning, such as 1e-6,1e-5",
    "target_remaining": "give shares of the weights to keep, such as 0.5,0.2",
    **dict.fromkeys(("epochs", "steps", "max_epochs"), "give one of --steps, --epochs and --max-epochs, from 1"),
    "seeds": "seeds are a count, such as 3",
    "quick": "leave --quick out for a sweep",
    "warm_up": "give more steps, or --weights of a trained model",
}

ThresholdScale = Literal["layer", "one"]
"""Unit of thresholds: the mean magnitude of their layer's weights, or one unit for all layers."""

OnCollapse = Literal["reset", "hold"]
"""What happens to a layer that keeps at most 1 %: its thresholds are reset, or it is held there."""

RENAMED = {"threshold_unit": "threshold_scale", "operator": "backend"}
"""Options whose old names are accepted for one release."""

_OF_A_SWEEP = (
    "alphas", "alpha_scale", "target_remaining", "until_stable", "max_epochs", "control", "threshold_clock",
    "threshold_scale", "on_collapse", "threshold", "estimator",
)  # fmt: skip
"""Options that a quick run, which trains no thresholds, does not have."""

RESOLVED = ("alpha_factor", "effective_alphas")
"""Fields of a configuration that planning fills in: they follow from the others, the model and the data."""


class SweepConfig(Json):
    """All options that determine a sweep's results; its hash names the run folder.

    Aliases are the names of fields in config.json and in the hash, which never change.
    """

    model_config = ConfigDict(populate_by_name=True, loc_by_alias=False)

    model: str
    model_args: Annotated[dict[str, JsonValue], BeforeValidator(_as_json)] = {}
    model_sha256: str | None = None
    weights: str = ""  # file of the weights that trials start from; "" for the model's initialisation
    weights_sha256: str | None = None
    data: str = ""
    alphas: tuple[float, ...] | Literal["auto"] = "auto"
    quick: bool = False  # no sweep: one dense training, pruned by magnitude
    alpha_scale: float | None = Field(default=None, gt=0)
    alpha_factor: float | None = Field(default=None, gt=0)  # the resolved scale, set by planning
    effective_alphas: tuple[float, ...] = ()  # the alphas given, times this factor
    target_remaining: tuple[float, ...] = ()
    seeds: Annotated[tuple[int, ...], BeforeValidator(_seeds)] = (0,)
    epochs: int | None = Field(default=None, ge=1, le=_MOST_STEPS)
    steps: int | None = Field(default=None, ge=1, le=_MOST_STEPS)
    until_stable: bool = False
    max_epochs: int | None = Field(default=None, ge=1, le=_MOST_STEPS)
    control: Literal["shuffled-labels"] | None = None
    batch_size: int | None = Field(default=None, ge=1, le=_MOST_STEPS)
    recipe: Literal["short", "paper"] = "short"
    lr: float | None = Field(default=None, gt=0)
    optimizer: Literal["sgd", "adam", "adamw"] | None = None
    schedule: Literal["step", "cosine", "onecycle", "constant"] = "step"
    weight_decay: float | None = Field(default=None, ge=0)
    threshold_clock: float | None = Field(default=None, gt=0)
    warm_up: int | None = Field(default=None, ge=0, le=_MOST_STEPS)
    threshold_scale: ThresholdScale | None = Field(default=None, alias="threshold_unit")
    on_collapse: OnCollapse | None = None
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    amp: bool = False
    amp_dtype: Literal["bfloat16", "float16"] = "bfloat16"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    threshold: Literal["vector", "scalar", "matrix"] = "vector"
    estimator: Literal["long-tail", "clipped"] = "long-tail"
    backend: Literal["auto", "eager", "compiled"] = Field(default="auto", alias="operator")

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out fields that came later and have their default: digests of earlier runs stay as they are."""
        fields: dict[str, Any] = handler(self)
        if self.amp_dtype == "bfloat16":
            fields.pop("amp_dtype", None)
        if not self.quick:
            fields.pop("quick", None)
        return fields

    @property
    def can_be_made_again(self) -> bool:
        """True if the model can be loaded by its name; an object in memory has none."""
        return ":" in self.model or self.model.endswith(".py")

    @property
    def options(self) -> dict[str, Any]:
        """All options except the model and the data, which are separate arguments."""
        apart = ("model", "model_args", "model_sha256", "weights_sha256", "data", *RESOLVED)
        return {name: getattr(self, name) for name in type(self).model_fields if name not in apart}

    @property
    def warm_ups(self) -> int:
        """The number of warm-ups that trials may start from: one per seed, twice as many with a control."""
        return len(self.seeds) * (2 if self.control else 1)

    @property
    def factor(self) -> float:
        """The factor of alphas in training; 1 in old run folders without a scale."""
        return 1.0 if self.alpha_factor is None else self.alpha_factor

    @property
    def as_asked(self) -> SweepConfig:
        """The configuration without the fields that planning adds."""
        return self.model_copy(update={name: type(self).model_fields[name].default for name in RESOLVED})

    def scaled(self, factor: float) -> SweepConfig:
        """Return the configuration with the factor of its alphas."""
        effective = tuple(float(f"{alpha * factor:.6g}") for alpha in self.given_alphas)
        return self.model_copy(update={"alpha_factor": factor, "effective_alphas": effective})

    @property
    def given_alphas(self) -> tuple[float, ...]:
        """The given alphas, from which a search may start; none for "auto". Those of a quick run are fixed."""
        if self.quick:
            return QUICK_STRENGTHS
        return () if self.alphas == "auto" else self.alphas

    @model_validator(mode="after")
    def _sensible(self) -> SweepConfig:
        for name in ("alphas", "seeds", "target_remaining", "effective_alphas"):
            if len(getattr(self, name)) > MOST_TRIALS:
                raise _wrong(name, f"{len(getattr(self, name))} are more than {MOST_TRIALS}")
        trials = max(len(self.given_alphas), len(self.target_remaining)) * len(self.seeds)
        if trials > MOST_TRIALS:
            raise _wrong("seeds", f"{trials} trials are more than the limit of {MOST_TRIALS}")
        if not self.alphas:
            raise _wrong("alphas", "at least one is needed")
        for alpha in self.given_alphas:
            if not (math.isfinite(alpha) and alpha > 0):
                raise _wrong("alphas", f"{alpha} is not a positive number")
        for ratio in self.target_remaining:
            if not 0 < ratio < 1:
                raise _wrong("target_remaining", f"{ratio} is not a share between 0 and 1")
        for name, values in (
            ("alphas", self.given_alphas),
            ("seeds", self.seeds),
            ("target_remaining", self.target_remaining),
        ):
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise _wrong(name, f"{twice} is given twice")
        if not self.seeds:
            raise _wrong("seeds", "at least one is needed")
        wrong = next((seed for seed in self.seeds if not 0 <= seed < 2**32), None)
        if wrong is not None:
            raise _wrong("seeds", f"{wrong} is not between 0 and 2^32")
        for name in _OF_A_SWEEP if self.quick else ():
            if getattr(self, name) != type(self).model_fields[name].default:
                raise _wrong("quick", f"it makes no sweep, and --{name.replace('_', '-')} is of one: give one of them")
        if self.quick and self.warm_up == 0 and not self.weights:
            raise _wrong("warm_up", "--quick prunes a trained model, and 0 steps train none")
        lengths = [name for name in ("epochs", "steps", "max_epochs") if getattr(self, name) is not None]
        if len(lengths) > 1:
            raise _wrong(lengths[0], f"{' and '.join(lengths)} both set the length of training: give one of them")
        if self.max_epochs is not None and not self.until_stable:
            raise _wrong("max_epochs", "it limits --until-stable: give both options, or --epochs")
        return self

    @classmethod
    def checked(cls, **options: Any) -> SweepConfig:
        """Return the configuration; raise an OptionError that names a wrong option."""
        try:
            return cls(**options)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name, text = (
                (str(first["loc"][0]), first["msg"]) if first["loc"] else (first["ctx"]["option"], first["ctx"]["text"])
            )
            if first["type"] == "extra_forbidden":
                raise OptionError(
                    f"there is no option {name!r}", hint=f"options: {', '.join(sorted(cls.model_fields))}"
                ) from None
            option = f"--{name.replace('_', '-')}"
            given = f", given as {first['input']!r}" if first["loc"] else ""
            hint = _HINTS.get(name, f"`dst-analyze --help-all` says what {option} takes")
            raise OptionError(text[:1].lower() + text[1:], place=f"{option}{given}", hint=hint) from None

    @property
    def digest(self) -> str:
        """SHA-256 of the configuration without the fields that planning adds."""
        text = json.dumps(self.model_dump(mode="json", by_alias=True, exclude=set(RESOLVED)), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
