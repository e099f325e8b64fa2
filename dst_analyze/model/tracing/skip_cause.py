"""`SkipCause`: why a weight is not measured. Without torch, since readers of run folders use it."""

from __future__ import annotations

from enum import StrEnum


class SkipCause(StrEnum):
    """Why a weight is not measured.

    Each reason in ``manifest.json`` starts with one of these values, so they belong to the run folder's format. The
    explanation after it may be reworded at any time.
    """

    EMBEDDING = "embedding"
    NORM = "normalisation"
    PER_CHANNEL = "bias or scale"
    UNREACHED = "not reached by the example's forward pass"
    NO_PRODUCT = "reaches no matmul or convolution"
    UNREGISTERED = "a trainable tensor that is not registered as a parameter of any module"
    DTYPE = "dtype"
    NOT_INCLUDED = "not matched by --include"
    EXCLUDED = "left out by --exclude"

    @classmethod
    def of_reason(cls, reason: str) -> SkipCause | None:
        """Return the cause that a reason in a run folder starts with; None if it is none of these."""
        named = reason.partition(": ")[0]
        return next((cause for cause in cls if cause == named), None)
