"""What a run folder must survive: every disk operation failing or being the last one, every file flipped, cut or lost.

    python tests/support/torture.py [--minutes 10]        # `make torture`

A tiny model is swept, slimmed, proven and reported once, undisturbed. Then each job is done again in a child process
with one disk operation going wrong; after that a reader must see the old set of files or the new one, and the same
command again must end as if nothing had happened, byte for byte. tests/faults runs a part of it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from unittest.mock import patch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    os.environ |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "NO_COLOR": "1"}

from faulty_disk import FAULTS, KILLED, FaultyDisk, run_apart

from dst_analyze import read_run
from dst_analyze.cli.main import main as command
from dst_analyze.errors import FolderError
from dst_analyze.report.page import left_out
from dst_analyze.run.derived import damage_of
from dst_analyze.run.files.paths import MADE, REPORT, SUGGESTION
from dst_analyze.slimming.kept import read_suggestion
from dst_analyze.sweep.engines.engine import InProcessEngine

MODEL = """
import torch
from torch import nn

def build_model():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

def train_data():
    x = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
    return x, x[:, :3].argmax(1)

test_data = train_data
"""
WHOLE = ["m.py", "--alphas", "1e-2,3e-2", "--alpha-scale", "1", "--steps", "12", "--lr", "0.1", "--out", "run",
         "--jobs", "1", "--quiet", "--round-to", "1", "--target-params", "0.7", "--verify", "--verify-seeds", "1",
         "--baselines", "magnitude"]  # fmt: skip
JOBS = {
    "sweep": [*WHOLE, "--resume"],
    "slim": ["slim", "run", "--round-to", "1", "--target-params", "0.5"],
    "verify": ["verify", "run", "--seeds", "1", "--jobs", "1"],
    "report": ["report", "run"],
}
"""The jobs, each begun on what the one before it has left."""
UNSUMMED = (".lock", ".owner.json", "timing.json", "report.html", "run.toml")


def files_of(folder: Path) -> dict[str, bytes]:
    """Return every file of a run folder that must be the same however it came about."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name not in UNSUMMED
    }


@dataclass
class Bench:
    """A scratch folder with each job's folder before it and after it."""

    home: Path

    def prepare(self) -> None:
        """Do every job once, undisturbed."""
        (self.home / "m.py").write_text(MODEL)
        run = self.home / "run"
        for name, args in JOBS.items():
            if run.exists():
                shutil.copytree(run, self.home / f"before-{name}")
            assert self.do(args) == 0, name
            shutil.copytree(run, self.home / f"after-{name}")

    def do(self, args: list[str]) -> int:
        """Run the command here."""
        with chdir(self.home), open(os.devnull, "w") as sink, patch("sys.stdout", sink), patch("sys.stderr", sink):
            return command(args)

    def restore(self, kept: str) -> Path:
        """Put one of the kept folders in place."""
        run = self.home / "run"
        shutil.rmtree(run, ignore_errors=True)
        if (self.home / kept).exists():
            shutil.copytree(self.home / kept, run)
        return run

    def operations(self, job: str) -> list[str]:
        """Return what a job does on the disk, in order."""
        self.restore(f"before-{job}")
        log = self.home / "log"
        assert run_apart(lambda: self._apart(job), FaultyDisk(str(self.home / "run")), log) == 0, log.read_text()
        return log.with_suffix(".ops").read_text().split("\n")

    def _apart(self, job: str) -> int:
        os.chdir(self.home)
        return command(JOBS[job])

    def fault(self, job: str, fault: str, at: int) -> str:
        """Do a job with a fault, look at the folder as a reader, do it again; return what went wrong, if anything."""
        run, log = self.restore(f"before-{job}"), self.home / "log"
        code = run_apart(lambda: self._apart(job), FaultyDisk(str(run), fault, at), log)
        expected = (KILLED,) if fault == "kill" else (0, 2)
        if code not in expected:
            return f"ended with {code}: {log.read_text()[-500:]}"
        if job != "sweep" and (why := self.seen(run, job)):
            return why
        if (again := self.do(JOBS[job])) != 0:
            return f"the same command then ended with {again}"
        return self.differs(run, f"after-{job}")

    def seen(self, run: Path, job: str) -> str:
        """Return what a reader finds wrong before anything is put right."""
        record = read_run(run)
        kept = read_suggestion(record)
        if problems := left_out(record, kept):
            return f"a reader was told: {problems}"
        old, new = (read_suggestion(read_run(self.home / f"{when}-{job}")) for when in ("before", "after"))
        if (kept.plan, kept.proof) not in ((old.plan, old.proof), (new.plan, new.proof)):
            return "neither the old plan and proof nor the new ones"
        damaged = [name for name in (*SUGGESTION, *MADE) if name != REPORT and damage_of(record, name)]
        return f"damaged: {damaged}" if damaged else ""

    def differs(self, run: Path, kept: str) -> str:
        """Return how a folder differs from an undisturbed one."""
        there, wanted = files_of(run), files_of(self.home / kept)
        changed = sorted(name for name in {*there, *wanted} if there.get(name) != wanted.get(name))
        modes = {file.stat().st_mode & 0o777 for file in run.iterdir() if file.is_file() and file.name != ".lock"}
        if len(modes) > 1:
            return f"modes {sorted(map(oct, modes))}"
        return f"differs in {changed}" if changed else ""

    def damage(self, name: str, how: str, rng: random.Random) -> str:
        """Damage a file of a finished run; it must be noticed, and --resume must make it as it was.

        Most flips are for a reader only (``flip, read``), as that takes no time.
        """
        run = self.restore("after-sweep")
        file = run / name
        data = bytearray(file.read_bytes())
        if how.startswith("flip"):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data[: len(data) // 2] if how == "cut" else data)
        if how == "gone":
            file.unlink()
        if not self.noticed(run, name):
            return "not noticed"
        if how == "flip, read":
            return ""
        if (code := self.do(JOBS["sweep"])) != 0:
            return f"--resume ended with {code}"
        return self.differs(run, "after-sweep")

    def noticed(self, run: Path, name: str) -> bool:
        """Return whether a reader notices that the folder is damaged."""
        if name.startswith("verified/"):
            return True  # read by `verify` alone: the comparison shows whether it was believed
        try:
            record = read_run(run)
            return bool(left_out(record, read_suggestion(record)) or damage_of(record, name))
        except FolderError:
            return True


@dataclass(frozen=True)
class Case:
    """One thing that goes wrong: an operation of a job, by its number, or a file of the finished run."""

    what: str
    how: str
    at: int | None = None

    @property
    def group(self) -> str:
        return self.how if self.at is None else f"{self.what} {self.how}"

    def run(self, bench: Bench, rng: random.Random) -> str:
        """Return what was not survived; empty if all was."""
        return bench.damage(self.what, self.how, rng) if self.at is None else bench.fault(self.what, self.how, self.at)


def cases_of(bench: Bench, rng: random.Random) -> list[Case]:
    """Return all cases, each kind in random order, the kinds taking turns."""
    groups: dict[str, list[Case]] = {}
    for job in JOBS:
        for at in range(len(bench.operations(job))):
            for fault in FAULTS:
                groups.setdefault(f"{job} {fault}", []).append(Case(job, fault, at))
    for how in ("cut", "gone", "flip"):
        groups[how] = [Case(name, how) for name in files_of(bench.home / "after-sweep")]
    read = [name for name in files_of(bench.home / "after-sweep") if not name.startswith("verified/")]
    groups["flip, read"] = [Case(name, "flip, read") for name in read for _ in range(8)]
    for cases in groups.values():
        rng.shuffle(cases)
    return [case for turn in zip_longest(*groups.values()) for case in turn if case is not None]


def patches() -> Iterator[object]:
    """Train in this process; leave out what is neither the same twice nor about the disk: times, and the drawing."""
    yield patch("dst_analyze.sweep.engines.forkserver.start_forkserver", lambda: None)
    yield patch("dst_analyze.sweep.engines.workers.ProcessEngine", lambda jobs, request: InProcessEngine())
    yield patch("dst_analyze.slimming.proof.costs.milliseconds", lambda models, *_: [1.0] * len(models))
    yield patch("dst_analyze.report.page.render", lambda *_: "<html></html>")


def main() -> int:
    """Return 0 if all was survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", default="torture")
    asked = parser.parse_args()
    rng, deadline = random.Random(asked.seed), time.monotonic() + 60 * asked.minutes
    tried: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="dst-torture-") as folder:
        for each in patches():
            each.start()
        bench = Bench(Path(folder).resolve())
        bench.prepare()
        cases = cases_of(bench, rng)
        for at, case in enumerate(cases):
            if time.monotonic() > deadline:
                print(f"out of time: {at} of {len(cases)} were tried", flush=True)
                break
            tried[case.group] += 1
            if why := case.run(bench, rng):
                failed[case.group] += 1
                print(f"FAILED {case}: {why}", flush=True)
    for group in sorted(tried):
        print(f"{group:<16}{tried[group] - failed[group]} of {tried[group]}")
    print(f"{'all':<16}{tried.total() - failed.total()} of {tried.total()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
