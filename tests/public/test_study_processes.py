"""A `Study` that several processes train together in DDP, on gloo: one writes, the others follow."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch

import dst_analyze as dst
from dst_analyze.errors import OptionError

PROGRAM = """
    import os, shutil, sys, torch, torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    import dst_analyze as dst

    rank, where = int(os.environ["RANK"]), sys.argv[1]
    dist.init_process_group("gloo", init_method=f"file://{where}/meet", rank=rank, world_size=2)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 8, generator=generator)
    y = (x[:, 0] > 0).long()

    def train(study, *, failing=False, telling=True):
        ended = []
        for trial in study:
            torch.manual_seed(trial.seed + 100 * rank)  # other weights on each rank, until they are shared
            model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
            with trial.attach(model, x[:2]) as masks:
                parallel = DistributedDataParallel(model)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
                for _ in range(20):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(parallel(x[rank::2]), y[rank::2]).backward()
                    optimizer.step()
            del parallel
            ended.append((trial.role, trial.alpha, masks.masked.thresholds.detach(), model[0].weight.detach()))
            if rank == 0 and telling:
                trial.tell((model(x).argmax(1) == y).float().mean().item())
            if rank == 1 and failing and trial.alpha == 1e-5:
                trial.failed("the loss was not finite here")
        return ended

    def study_in(name):
        return dst.Study(f"{where}/{name}", (1e-6, 1e-5), warm_up=False)

    study = study_in("whole")
    whole = train(study)
    page = study.report()
    if rank == 0:
        shutil.copytree(f"{where}/whole", f"{where}/again")
        shutil.rmtree(f"{where}/again/trials/alpha=1e-05,seed=0")
    dist.barrier()
    again = train(study_in("again"))
    train(study_in("failing"), failing=True)
    try:
        train(study_in("untold"), telling=False)
    except dst.DstError as error:
        untold = str(error)
    found = {"whole": whole, "again": again, "page": str(page), "untold": untold}
    torch.save(found, f"{where}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two processes, as torchrun starts them; the folder, and what each has seen."""
    folder = tmp_path_factory.mktemp("together")
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    common = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, "program.py", folder],
            cwd=folder,
            env={**common, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in started:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    return folder, [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_two_processes_train_one_study(trained):
    folder, (one, other) = trained
    assert [trial[:2] for trial in one["whole"]] == [("first", None), ("masked", 1e-6), ("masked", 1e-5)]
    for mine, theirs in zip(one["whole"], other["whole"], strict=True):
        assert mine[:2] == theirs[:2]
        assert torch.equal(mine[2], theirs[2])
        assert torch.equal(mine[3], theirs[3])
    assert one["page"] == other["page"] == str((folder / "whole" / "report.html").resolve())
    record = dst.read_run(folder / "whole")
    assert record.complete
    assert 0 < record.remaining(1e-5) < record.remaining(1e-6) <= 1


def test_they_go_on_where_it_was_left(trained):
    folder, seen = trained
    assert [[trial[:2] for trial in one["again"]] for one in seen] == [[("masked", 1e-5)]] * 2
    assert dst.read_run(folder / "again").trials == dst.read_run(folder / "whole").trials


def test_a_failure_in_any_of_them_is_the_trials(trained):
    last = dst.read_run(trained[0] / "failing").trials[-1]
    assert (last.alpha, last.status, last.reason) == (1e-5, "diverged", "the loss was not finite here")


def test_an_error_of_the_first_reaches_the_others(trained):
    assert all("the study was not told how dense, seed 0 ended" in one["untold"] for one in trained[1])


def test_processes_that_do_not_know_of_each_other_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # as torchrun sets them
    with pytest.raises(OptionError, match="2 processes were started together, and there is no process group yet"):
        iter(dst.Study(tmp_path / "run", (1e-6,)))
