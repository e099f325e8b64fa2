"""The runs of reports/, made by the plain command and proven: what a visitor opens first.

    make showcase                                         all of them; what is there already goes on or is kept
    python experiments/showcase.py lenet-5 vit            some
    python experiments/showcase.py --dry-run              what they cost; trains nothing
    python experiments/showcase.py --pages                pages, pictures and README.md again, without training

Each run folder is whole on this machine; .gitignore lets only the files of `KEPT` into git. The commands stand in
`RUNS`, and in reports/README.md as they were called.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
CIFAR = "npz:{data}/cifar10-20k.npz"
RUNS: dict[str, str] = {
    "lenet-5": "example:lenet-5-caffe --data mnist --data-root {data}",
    "resnet-14": f"example:resnet-20 --model-arg blocks=2 --model-arg stride=2 --data {CIFAR}",
    "vgg-16-narrow": f"example:vgg-16 --model-arg width=0.25 --data {CIFAR}",
    "small-vit": "experiments/small_vit.py:vit --data mnist --data-root {data}",
    "mobilenet-v2": f"torchvision:mobilenet_v2 --model-arg width_mult=0.5 --model-arg num_classes=10 --data {CIFAR}",
}
"""By folder: model and data. Everything else is the default."""
ALL_RUNS = "--verify"
TITLES = {
    "lenet-5": "LeNet-5 (Caffe's) on MNIST",
    "resnet-14": "ResNet-14 on 20,000 images of CIFAR-10 at 16 x 16",
    "vgg-16-narrow": "VGG-16 of quarter width on 20,000 images of CIFAR-10",
    "small-vit": "A small vision transformer on MNIST",
    "mobilenet-v2": "torchvision's MobileNet v2 of half width on 20,000 images of CIFAR-10",
}
PICTURE = "widths.svg"
KEPT = ("report.html", "table.csv", "plan.json", "slim_model.py", "verdict.json", PICTURE)
"""The files of a run that stand in git."""
MOST_FILES, MOST_BYTES = 60, 3_000_000


def command_of(name: str, data: str, out: str) -> list[str]:
    """Return the command that makes a run, as a visitor would type it."""
    return shlex.split(f"dst-analyze {RUNS[name].format(data=data)} {ALL_RUNS} --out {out}")


def call(words: Sequence[str], root: Path) -> None:
    """Run a command of dst-analyze with this interpreter."""
    print(f"$ {shlex.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "dst_analyze", *words[1:]], check=True, cwd=root)


def make(name: str, data: str, reports: Path, root: Path) -> None:
    """Make one run, or go on with it, and draw its picture."""
    run = reports / name
    again = ["--resume"] if (run / "manifest.json").exists() else []
    call([*command_of(name, data, str(run)), *again], root)
    draw(run, root)


def draw(run: Path, root: Path) -> None:
    """Write the page of a run again, and its picture."""
    figures = run / "figures"
    call(["dst-analyze", "report", str(run), "--figures", str(figures), "--format", "svg"], root)
    (root / figures / PICTURE).replace(root / run / PICTURE)
    for path in (root / figures).iterdir():
        path.unlink()
    (root / figures).rmdir()


def readme(found: Mapping[str, Path], data: str, reports: Path) -> str:
    """Return reports/README.md: for each run its answer, a picture, its report and the exact command."""
    lines = [
        "# Sample runs",
        "",
        "Made by the plain command with `--verify`, on 2 CPU cores; `make showcase` makes them again",
        "(hours). A click on a picture opens the source of the report: download it, or open",
        "`report.html` in a clone. Of each run folder only what a visitor needs is kept here.",
    ]
    for name, run in found.items():
        said = json.loads((run / "verdict.json").read_text())
        lines += [
            "",
            f"## {TITLES.get(name, name)}",
            "",
            f"{said['answer']}.",
            "",
            f"[![Channels of each layer before and after]({name}/{PICTURE})]({name}/report.html)",
            "",
            f"[report]({name}/report.html) · [slim model]({name}/slim_model.py) · [plan]({name}/plan.json) ·"
            f" [ranking]({name}/table.csv) · [verdict]({name}/verdict.json)",
            "",
            "```console",
            shlex.join(command_of(name, data, str(reports / name))),
            "```",
        ]
    return "\n".join(lines) + "\n"


def check_size(reports: Path) -> tuple[int, int]:
    """Return the number of files that git keeps and their bytes; exit if these are too many."""
    files = [path for run in reports.iterdir() if run.is_dir() for path in run.iterdir() if path.name in KEPT]
    files += [path for path in reports.iterdir() if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    if len(files) >= MOST_FILES or size >= MOST_BYTES:
        sys.exit(f"{len(files)} files of {size:,} bytes are too many: under {MOST_FILES} and {MOST_BYTES:,} are wanted")
    return len(files), size


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs that were asked for, and reports/README.md of all that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="NAME", help=", ".join(RUNS))
    parser.add_argument("--data", default="../shared/data", help="folder of MNIST/ and cifar10-20k.npz")
    parser.add_argument("--root", type=Path, default=ROOT, help="where the commands are run")
    parser.add_argument("--dry-run", action="store_true", help="show what each run costs")
    parser.add_argument("--pages", action="store_true", help="pages, pictures and README.md only")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.runs if name not in RUNS]
    if unknown:
        parser.error(f"there is no run {unknown[0]!r}: choose from {', '.join(RUNS)}")
    reports = Path("reports")
    for name in asked.runs or RUNS:
        if asked.dry_run:
            call([*command_of(name, asked.data, str(reports / name)), "--dry-run"], asked.root)
        elif asked.pages:
            draw(reports / name, asked.root)
        else:
            make(name, asked.data, reports, asked.root)
    if asked.dry_run:
        return
    here = asked.root / reports
    found = {name: here / name for name in RUNS if (here / name / "verdict.json").exists()}
    (here / "README.md").write_text(readme(found, asked.data, reports), encoding="utf-8")
    count, size = check_size(here)
    print(f"{count} files, {size / 1e6:.2f} MB in git")


if __name__ == "__main__":
    main()
