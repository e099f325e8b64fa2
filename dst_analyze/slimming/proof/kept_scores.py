"""The trainings of proofs as a folder keeps them, so that none is repeated, also by a proof at another size."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal

from pydantic import Field

from dst_analyze.errors import FolderError
from dst_analyze.run.config import Json, Number, Size
from dst_analyze.run.files.atomic_io import broken, listed_sums, replace_files, writing
from dst_analyze.run.reader import read_json
from dst_analyze.slimming.proof.candidates import Candidate

Ratios = dict[str, dict[str, float]]
"""By the share of all weights that is left, what magnitude pruning leaves of each layer."""

_ASKED = "asked.json"


class KeptScore(Json):
    """The score of one training; of the dense model also what magnitude pruning would leave of it."""

    plan: str
    steps: int
    score: Number | None
    magnitudes: Ratios = Field(default_factory=dict)


class AskedProof(Json):
    """What a proof was asked for."""

    seeds: Size | Literal["auto"] = "auto"
    fine_tune: bool = False
    check_length: bool = False


class KeptScores:
    """The scores in a folder; without a folder nothing is kept."""

    def __init__(self, folder: Path | None, steps: int) -> None:
        self.folder, self._steps = folder, steps

    def read(self, candidate: Candidate, seed: int) -> KeptScore | None:
        """Return the score of a training, None if it is not kept or is of other trainings."""
        name = training_name(candidate, seed)
        if self.folder is None or name not in listed_sums(self.folder):
            return None
        try:
            if broken(self.folder, only=name):
                return None
            kept = read_json(self.folder / name, KeptScore)
        except FolderError:
            return None
        return kept if kept.plan == _digest(candidate) and kept.steps == self._steps else None

    def save(self, candidate: Candidate, seed: int, score: float | None, magnitudes: Ratios) -> None:
        """Keep the score of a training."""
        kept = KeptScore(plan=_digest(candidate), steps=self._steps, score=score, magnitudes=magnitudes)
        self._write(training_name(candidate, seed), kept)

    def save_asked(self, asked: AskedProof) -> None:
        """Keep what was asked for, so that a lost result is made again as it was."""
        self._write(_ASKED, asked)

    def _write(self, name: str, value: Json) -> None:
        if self.folder is None:
            return
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        replace_files(self.folder, {name: f"{value.model_dump_json(exclude_defaults=True)}\n".encode()})


def asked_proof(folder: Path) -> AskedProof:
    """Return what the last proof was asked for; the defaults if that is lost."""
    try:
        return AskedProof() if broken(folder, only=_ASKED) else read_json(folder / _ASKED, AskedProof)
    except FolderError:
        return AskedProof()


def training_name(candidate: Candidate, seed: int) -> str:
    """Return the name of a training's file, the same for the same widths and seed."""
    size = "" if candidate.plan is None else f"-{_digest(candidate)[:12]}"
    return f"{candidate.name}{size},seed={seed}.json"


def _digest(candidate: Candidate) -> str:
    """Return a hash of the removed units, which alone determine a training; reasons in the plan do not count."""
    text = "" if candidate.plan is None else json.dumps(candidate.plan.removal)
    return hashlib.sha256(text.encode()).hexdigest()
