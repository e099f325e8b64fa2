"""Why a weight is not measured, as a value; without torch, so that whoever reads a run folder can ask as well."""

from __future__ import annotations

from enum import StrEnum


class SkipCause(StrEnum):
    """Why a weight is not measured.

    The values stand in ``manifest.json`` at the start of each reason, so they belong to the run folder's format. What
    follows them, an explanation for readers, may be put in other words at any time.
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
