"""Check that a change leaves every result file as it was, byte for byte: six small sweeps and their checksums.

    python tests/support/golden.py --write /tmp/golden.sums     # before the change
    python tests/support/golden.py --check /tmp/golden.sums     # after it: names every file that differs, and where

It stands in tests because it guards behaviour, not speed; pytest does not collect it, as sums hold for one machine and
one release of torch only. Everything goes through the command line, which changes least when modules move. PYTHONPATH
decides which clone is run, so the sums of another one can be made with this script.

Every file of a run folder counts, except
- ``timing.json`` and ``latency.json`` (seconds), the lock, and ``SHA256SUMS`` (made of the other sums);
- in ``verification.json``: ``memory``, which is measured, is set to 0;
- in ``report.html``: the seconds of training, in the table of how the run was made, are set to 0;
- the scratch folder's own name, which is replaced by ``SCRATCH`` wherever it stands.
What the commands print counts as well (``stdout.txt``), except the proof's, which shows latencies. ``report.html`` is
the one from before the proof, for the same reason. ``--reinitialize`` is not among the options: its weights are random.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import time
import zipfile
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb"}

NETS = "golden_nets.py"
ALWAYS = ("--device", "cpu", "--jobs", "1", "--quiet", "--batch-size", "64")
SWEEPS = {
    "mlp": ("Mlp", "--alphas", "1e-6,1e-5,3e-5", "--seeds", "2", "--steps", "60"),
    "cnn": ("Cnn", "--alphas", "1e-6,1e-5", "--steps", "60", "--control", "shuffled-labels", "--rule", "density"),
    "residual": ("Residual", "--alphas", "1e-6,1e-5,3e-5", "--steps", "60", "--baselines", "magnitude"),
    "recurrent": ("Recurrent", "--alphas", "1e-6,1e-5", "--steps", "40", "--optimizer", "adam", "--round-to", "4"),
    "attention": ("Attention", "--alphas", "1e-6,1e-5", "--steps", "60", "--exclude", "out", "--target-macs", "0.6"),
    "tied": ("Tied", "--target-remaining", "0.5", "--steps", "40", "--threshold", "scalar"),
}
PROVEN = "mlp"
"""The sweep whose suggestion is trained as well."""

_LEFT_OUT = ("timing.json", "latency.json", "SHA256SUMS", ".lock")
_MEASURED = {
    "verification.json": re.compile(rb'(?<="memory": )\d+'),
    "report.html": re.compile(rb"(?<=<dt>time</dt><dd>)[^<]*?(?= of training in )"),
}


def main() -> int:
    """Return 0 if nothing differs, or the sums were written, and 1 if a file differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path, metavar="FILE", help="keep the sums in FILE, the files in FILE.zip")
    what.add_argument("--check", type=Path, metavar="FILE", help="compare with the sums in FILE")
    asked = parser.parse_args()
    started, kept = time.monotonic(), {} if asked.check is None else read_sums(asked.check)
    scratch = Path(tempfile.gettempdir()).resolve() / "dst-golden"  # one name: paths in it are part of checksums
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    files = run_sweeps(scratch)
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    print(f"{len(SWEEPS)} sweeps, {len(files)} files, {time.monotonic() - started:.0f} s")
    if asked.write:
        asked.write.write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))
        with zipfile.ZipFile(texts_beside(asked.write), "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return 0
    differing = [name for name in sorted({*kept, *sums}) if kept.get(name) != sums.get(name)]
    for name in differing:
        print(f"{name}: {describe_difference(old_file(asked.check, name), files.get(name))}")
    print(f"{len(differing)} of {len({*kept, *sums})} files differ" if differing else "identical")
    return 1 if differing else 0


def run_sweeps(scratch: Path) -> dict[str, bytes]:
    """Return every result file of the six sweeps by ``sweep/name``, normalised, in sorted order."""
    import dst_analyze

    print(f"dst_analyze of {Path(dst_analyze.__file__).parent}", flush=True)
    shutil.copy(Path(__file__).with_name(NETS), scratch)
    files: dict[str, bytes] = {}
    with contextlib.chdir(scratch):
        for sweep, (net, *options) in SWEEPS.items():
            printed = run_command([f"{NETS}:{net}", "--out", sweep, *ALWAYS, *options])
            printed += run_command(["rank", sweep, "--format", "json"])
            (scratch / sweep / "stdout.txt").write_text(printed)
            files |= result_files(scratch, sweep)
        run_command(["verify", PROVEN, "--seeds", "1", "--jobs", "1"])
        after = result_files(scratch, PROVEN)
        files |= {name: data for name, data in after.items() if name != f"{PROVEN}/report.html"}
    return dict(sorted(files.items()))


def run_command(arguments: list[str]) -> str:
    """Run `dst-analyze` in this process, so that torch is imported once, and return what it prints."""
    from dst_analyze.__main__ import main as run

    started, printed = time.monotonic(), io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = run(arguments)
    if code:
        raise SystemExit(f"dst-analyze {' '.join(arguments)} ended with {code}")
    print(f"{time.monotonic() - started:5.1f} s  dst-analyze {' '.join(arguments)}", flush=True)
    return printed.getvalue()


def result_files(scratch: Path, sweep: str) -> dict[str, bytes]:
    """Return the files of one run folder without what is measured in seconds or bytes, or names this machine."""
    paths = (path for path in (scratch / sweep).rglob("*") if path.is_file() and path.name not in _LEFT_OUT)
    return {path.relative_to(scratch).as_posix(): normalised(path, scratch) for path in paths}


def normalised(path: Path, scratch: Path) -> bytes:
    """Return a file's bytes as they do not change from run to run."""
    data = path.read_bytes().replace(os.fsencode(scratch), b"SCRATCH")
    return _MEASURED[path.name].sub(b"0", data) if path.name in _MEASURED else data


def read_sums(file: Path) -> dict[str, str]:
    """Return the sums in a file, by name."""
    pairs = (line.split("  ", 1) for line in file.read_text().splitlines())
    return {name: digest for digest, name in pairs}


def texts_beside(file: Path) -> Path:
    return file.with_name(f"{file.name}.zip")


def old_file(sums: Path, name: str) -> bytes | None:
    """Return a file as it was when the sums were written; None if it was not there."""
    try:
        with zipfile.ZipFile(texts_beside(sums)) as archive:
            return archive.read(name)
    except (FileNotFoundError, KeyError):
        return None


def describe_difference(old: bytes | None, new: bytes | None) -> str:
    """Return where two files differ first, with a little of both."""
    if old is None or new is None:
        return "is new, or its text was not kept" if old is None else "is gone"
    try:
        before, after = old.decode().splitlines(), new.decode().splitlines()
    except UnicodeDecodeError:
        return f"differs ({len(old)} bytes before, {len(new)} now)"
    pad = max(len(before), len(after))
    before, after = (lines + [""] * (pad - len(lines)) for lines in (before, after))
    at = [number for number, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    if not at:
        return "differs in the ends of its lines"
    a, b = before[at[0]], after[at[0]]
    column = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    shown = (json.dumps(line[max(0, column - 40) : column + 80], ensure_ascii=False) for line in (a, b))
    return f"differs in {len(at)} lines, first in line {at[0] + 1}\n  - {next(shown)}\n  + {next(shown)}"


if __name__ == "__main__":
    sys.exit(main())
