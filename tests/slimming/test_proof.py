"""The proof of a plan: contenders trained alike, here or by workers, with the same result."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from crashing import killing, write
from proofs import plan_of, scores
from safetensors.torch import save_file
from small_sweeps import FILE, TEST, TRAIN
from torch import nn

from dst_analyze import Analysis, couple_channels, load_model, rank_layers, suggest_widths, trace_model, verify_plan
from dst_analyze.cli.main import main
from dst_analyze.errors import DstError, ModelError, OptionError
from dst_analyze.run.events import CandidateTrained, Notice, ProofStarted
from dst_analyze.run.files.atomic_io import replace_files
from dst_analyze.slimming.planning.density import GroupEvidence
from dst_analyze.slimming.planning.plan_types import Limits
from dst_analyze.slimming.planning.plan_widths import plan_widths
from dst_analyze.slimming.proof.candidates import ALIKE, Candidates
from dst_analyze.slimming.proof.fine_tuning import smallest_units
from dst_analyze.slimming.proof.kept_scores import KeptScores
from dst_analyze.slimming.proof.result import CONTENDERS, LongerTraining, Verification
from dst_analyze.slimming.proof.trainings import magnitude_ratios
from dst_analyze.slimming.proof.verify import verify_task_plan
from dst_analyze.sweep.engines.process_engine import ProcessEngine
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.run_sweep import run_sweep


@pytest.fixture
def task(tmp_path):
    torch.manual_seed(0)  # without it two of the seeds reach the same accuracy now and then
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    return plan_sweep(model, (TRAIN, TEST), alphas=[1e-3], steps=120, out=tmp_path / "run").task


def test_contenders_are_trained_alike_and_kept(tmp_path, task):
    plan, heard = plan_of(task), []
    options = {"seeds": 2, "keep_in": tmp_path / "kept"}
    found = verify_task_plan(task, plan, **options, listener=heard.append)
    names = ["dense", "slim", "uniform", "uniform-macs", "random", "depth", "magnitude"]
    assert [e.name for e in found.entries] == names
    assert found.entry("slim").scores == found.entry("uniform").scores  # of one group there is one way to thin it
    assert found.entry("uniform").about == f"every group thinned alike{ALIKE.format('slim')}"
    assert (found.entry("dense").about, found.entry("slim").about) == ("the model as it is", "the suggestion")
    assert found.entry("slim").params == plan.new_params < found.entry("dense").params
    assert found.entry("slim").memory < found.entry("dense").memory
    assert all(score > 0.5 for e in found.entries for score in e.scores)
    assert heard[0] == ProofStarted(trainings=8, done=0, steps=120, jobs=1, most=8)
    assert heard[1] == CandidateTrained("dense", 0, found.entry("dense").scores[0])
    assert len(heard) == 7  # dense, slim and random: the others have the widths of slim
    marked = json.loads((tmp_path / "kept" / "dense,seed=1.json").read_text()) | {"score": 0.123}
    (tmp_path / "kept" / "dense,seed=1.json").write_text(json.dumps(marked))
    assert verify_task_plan(task, plan, **options).entry("dense").scores[1] != 0.123  # against its checksum
    replace_files(tmp_path / "kept", {"dense,seed=1.json": json.dumps(marked).encode()})
    assert verify_task_plan(task, plan, **options).entry("dense").scores[1] == 0.123  # not trained again
    assert verify_task_plan(task, plan_of(task, 0.25), **options).entry("slim").scores != found.entry("slim").scores


def test_workers_prove_what_this_process_proves(tmp_path, task):
    """A model in memory, and one of a file with normalisation and a layer that shrinks with another one."""
    (tmp_path / "m.py").write_text(
        FILE.replace("nn.Linear(hidden, 10)", "nn.Linear(hidden, 10)\n        self.side = nn.Linear(64, hidden)")
        .replace("self.two(self.one(x).relu())", "self.two(self.norm(self.one(x)).relu() + self.side(x))")
        .replace("super().__init__()", "super().__init__()\n        self.norm = nn.BatchNorm1d(hidden)")
    )
    of_file = plan_sweep(str(tmp_path / "m.py"), alphas=[1e-3], steps=40, out=tmp_path / "other").task
    for each in (task, of_file):
        plan = plan_of(each)
        here = verify_task_plan(each, plan, seeds=2)
        assert scores(verify_task_plan(each, plan, seeds=2, engine=ProcessEngine(2))) == scores(here)
        assert len(set(here.entry("slim").scores)) == 2


def test_all_start_from_scratch_whatever_was_trained_before(tmp_path, monkeypatch):
    """Neither a trained object nor a file of weights gives a candidate a lead; the object is not changed."""
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    blank = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    options = {"data": (TRAIN, TEST), "alphas": [1e-3], "steps": 40, "out": "run"}
    plan, found = plan_of(plan_sweep(model, **options).task), []
    for weights in (copy.deepcopy(model.state_dict()), blank):  # from all zeros nothing would be learned
        model.load_state_dict(weights)
        found.append(scores(verify_task_plan(plan_sweep(model, **options).task, plan, seeds=2)))
        assert all(torch.equal(value, model.state_dict()[name]) for name, value in weights.items())
    assert all(found[0][name] == found[1][name] for name in ("dense", "slim"))
    assert len(set(found[0]["dense"])) == 2
    (tmp_path / "m.py").write_text(FILE)
    plain = plan_sweep("m.py", alphas=[1e-3], steps=40, out="run").task
    save_file({name: torch.zeros_like(p) for name, p in plain.source.build().named_parameters()}, "w.safetensors")
    given = plan_sweep("m.py", alphas=[1e-3], steps=40, out="run", weights="w.safetensors").task
    plan = plan_of(plain)
    with_file, without = (scores(verify_task_plan(task, plan, seeds=1)) for task in (given, plain))
    assert all(with_file[name] == without[name] for name in ("dense", "slim"))


def test_a_killed_worker_is_tried_once_more(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    task = plan_sweep("m.py", alphas=[1e-3], steps=60, lr=0.1, out="run").task
    whole = verify_task_plan(task, plan_of(task), seeds=2)
    write(tmp_path, killing("trained_model", 1))
    heard = []
    found = verify_task_plan(task, plan_of(task), seeds=2, engine=ProcessEngine(1), listener=heard.append)
    assert scores(found) == scores(whole)
    (notice,) = [event for event in heard if isinstance(event, Notice)]
    assert notice.text.endswith("starts again: its worker process was killed by SIGKILL")
    (tmp_path / "tries").unlink()
    write(tmp_path, killing("trained_model", 9))
    with pytest.raises(DstError, match=r"failed: its worker process was killed by SIGKILL, 2 times") as caught:
        verify_task_plan(task, plan_of(task), seeds=2, keep_in=tmp_path / "kept", engine=ProcessEngine(1))
    assert "finished trainings are kept" in caught.value.hint
    assert len(list((tmp_path / "kept").glob("*.json"))) == 4  # those of the seed before


def test_a_training_that_fails_says_which(tmp_path, task):
    def loss(outputs, batch):
        raise RuntimeError("out of luck")

    with pytest.raises(DstError, match=r"the training of dense, seed 0 failed: RuntimeError: out of luck"):
        verify_task_plan(replace(task, loss=loss), plan_of(task))


def test_a_notebook_proves_with_several_jobs(tmp_path):
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    options = {"alphas": [3e-3, 1e-2], "steps": 40, "out": tmp_path / "run"}
    record = run_sweep(model, (TRAIN, TEST), **options)
    analysis = Analysis(plan_sweep(model, (TRAIN, TEST), existing="resume", **options).task, record)
    heard, plan = [], analysis.suggest_widths()
    found = analysis.verify(plan, seeds=1, jobs=2, listener=heard.append)
    assert heard.pop(0) == ProofStarted(trainings=4, done=0, steps=40, jobs=2, most=4)
    assert {entry.name for entry in found.entries} == set(CONTENDERS)
    assert {event.contender for event in heard} == {"dense", "slim", "random"}  # the others have the widths of slim
    assert scores(analysis.verify(plan, seeds=1)) == scores(found)  # as kept


def test_the_command_line_tells_of_the_proof_and_writes_a_report_before(tmp_path, monkeypatch, capsys, inline):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(FILE)
    options = ["--alphas", "3e-3,1e-2", "--steps", "40", "--round-to", "1", "--out", "run"]
    assert main(["m.py", *options, "--verify", "--verify-seeds", "1", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = [event["event"] for event in events if event["event"] not in ("trial_step", "trial_started")]
    proof = ["proof_started", *["proof_trained"] * 3]
    assert names[-8:] == ["sweep_finished", "suggestion_written", "notice", *proof, "report_written"]
    assert "run/report.html" in next(event["text"] for event in events if event["event"] == "notice")
    assert [event["contender"] for event in events if event["event"] == "proof_trained"][:2] == ["dense", "slim"]


def test_a_plan_is_proven_from_a_model_and_its_data_alone(tmp_path, monkeypatch, task):
    monkeypatch.chdir(tmp_path)
    model, plan, heard = task.traced.model, plan_of(task), []
    found = verify_plan(model, (TRAIN, TEST), plan, seeds=1, steps=120, keep_in="kept/here", listener=heard.append)
    names = ["dense", "slim", "uniform", "uniform-macs", "random", "depth", "magnitude"]
    assert [entry.name for entry in found.entries] == names
    assert scores(found) == scores(verify_task_plan(task, plan, seeds=1))
    assert (found.steps, heard[0].done) == (120, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]  # no run folder is made or looked for
    again = verify_plan(model, (TRAIN, TEST), plan, seeds=1, steps=120, keep_in="kept/here", listener=heard.append)
    assert (scores(again), heard[4].done) == (scores(found), 3)


def test_a_plan_of_a_file_is_proven_with_the_sweep_it_came_from(tmp_path):
    (tmp_path / "m.py").write_text(FILE)
    spec, options = str(tmp_path / "m.py"), {"model_args": {"hidden": 24}, "steps": 40}
    record = run_sweep(spec, alphas=[3e-3, 1e-2], out=tmp_path / "run", **options)
    traced = trace_model(load_model(spec, model_args={"hidden": 24}).model, TRAIN[0][:2])
    plan = suggest_widths(traced, rank_layers(record), rehearsal=True)
    found = verify_plan(spec, None, plan, record=record, seeds=1, jobs=2, **options)
    assert {entry.name for entry in found.entries} == set(CONTENDERS)
    assert found.entry("slim").params == plan.new_params


def test_a_proof_refuses_another_model_and_unknown_options(task):
    other = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10))
    with pytest.raises(ModelError, match=r"the plan is for another model: 0\.weight"):
        verify_plan(other, (TRAIN, TEST), plan_of(task), steps=2)
    with pytest.raises(OptionError, match="no option 'stepps'"):
        verify_plan(task.traced.model, (TRAIN, TEST), plan_of(task), stepps=2)
    with pytest.raises(OptionError, match="0 seeds make no comparison"):
        verify_plan(task.traced.model, (TRAIN, TEST), plan_of(task), steps=2, seeds=0)


def kept_scores(folder, task, plan, score_of, seeds=10):
    """Scores in a folder as if all trainings had ended; nothing is left to train but what magnitudes suggest."""
    models = Candidates(task.traced, couple_channels(task.traced), None, plan)
    kept = KeptScores(folder, task.steps)
    ratios = {"0.5": {layer.name: 0.5 for layer in task.traced.layers}}
    for candidate in models.by_magnitude([*ratios.values()]):
        for seed in range(seeds):
            exact = models.random(seed) if candidate.name == "random" else candidate
            magnitudes = ratios if candidate.plan is None and seed == 0 else {}
            kept.save(exact, seed, score_of(candidate.name, seed), magnitudes)


@pytest.mark.parametrize(("apart", "noise", "seeds"), [(0.2, 0.001, 3), (0.04, 0.01, 5), (0.0, 0.05, 10)])
def test_seeds_are_added_until_every_comparison_is_decided(tmp_path, task, apart, noise, seeds):
    rng = np.random.default_rng(3)
    drawn = {}

    def score(name, seed):
        lead = apart if name == "slim" else 0.0
        return drawn.setdefault((name, seed), 0.5 + lead + float(rng.normal(0, noise)))

    kept_scores(tmp_path / "kept", task, plan_of(task), score)
    heard = []
    found = verify_task_plan(task, plan_of(task), keep_in=tmp_path / "kept", listener=heard.append)
    assert (len(found.seeds), found.looks) == (seeds, 3)
    assert (found.open == ()) == (seeds < 10)
    assert heard[0].most == heard[0].trainings * 10 // 3
    notices = [event.text for event in heard if isinstance(event, Notice)]
    assert len(notices) == {3: 0, 5: 1, 10: 2}[seeds]
    assert all(text.startswith(f"with {n} seeds it is open against") for text, n in zip(notices, (3, 5), strict=False))
    if seeds == 3:
        assert "It is uniform (every group thinned alike, which here gives the widths of slim)." in found.verdict
        assert "It is better than random" in found.verdict
        assert found.standing("dense") == "better"


def test_decided_comparisons_are_not_trained_on(tmp_path, task):
    """Random and dense are clearly apart after three seeds; only the suggestion and what is near it go on."""
    three = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10))
    task = plan_sweep(three, (TRAIN, TEST), alphas=[1e-3], steps=20, out=tmp_path / "run").task
    rng = np.random.default_rng(0)
    means = {"dense": 0.9, "slim": 0.6, "uniform": 0.6}
    drawn = {}

    def score(name, seed):
        return drawn.setdefault((name, seed), means.get(name, 0.2) + float(rng.normal(0, 0.02)))

    plan = plan_of(task)
    density = {group.group: 0.9 if at == 0 else 0.3 for at, group in enumerate(plan.groups)}
    coupling = couple_channels(task.traced)
    evidence = {g.name: GroupEvidence.equal(g.width, density[g.name]) for g in coupling.removable}
    plan = plan_widths(task.traced, coupling, evidence, limits=Limits(round_to=1), asked={"params": 0.5})
    kept_scores(tmp_path / "kept", task, plan, score)
    found = verify_task_plan(task, plan, keep_in=tmp_path / "kept")
    counts = {entry.name: len(entry.scores) for entry in found.entries}
    assert counts["slim"] == counts["uniform"] == len(found.seeds) > counts["dense"] == 3
    assert (found.standing("dense"), found.standing("random")) == ("worse", "better")


def test_a_proof_at_another_size_trains_the_dense_model_no_more(tmp_path, task):
    first = verify_task_plan(task, plan_of(task), seeds=2, keep_in=tmp_path / "kept")
    heard = []
    verify_task_plan(task, plan_of(task, 0.25), seeds=2, keep_in=tmp_path / "kept", listener=heard.append)
    assert heard[0].done == 2
    again = verify_task_plan(task, plan_of(task), seeds=2, keep_in=tmp_path / "kept", listener=heard.append)
    assert scores(again) == scores(first)
    assert [event.done for event in heard if isinstance(event, ProofStarted)] == [2, 6]


def test_widths_from_magnitudes_follow_the_trained_dense_model(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    task = plan_sweep(model, (TRAIN, TEST), alphas=[1e-3], steps=60, out=tmp_path / "run").task
    with torch.no_grad():
        model[0].weight[16:] *= 1e-3  # most rows of the first layer carry nothing
    ratios = magnitude_ratios(task.traced, model)
    assert ratios["0.5"]["0"] < ratios["0.5"]["2"]
    coupling = couple_channels(task.traced)
    equal = {group.name: GroupEvidence.equal(group.width) for group in coupling.removable}
    alike = plan_widths(task.traced, coupling, equal, limits=Limits(round_to=1), asked={"params": 0.5})
    by_magnitude = Candidates(task.traced, coupling, None, alike).by_magnitude([*ratios.values()])[-1]
    widths, before = ({g.group: g.new_width for g in plan.groups} for plan in (by_magnitude.plan, alike))
    assert by_magnitude.name == "magnitude"
    assert widths["0"] < before["0"]
    assert widths["2"] > before["2"]


def test_the_same_widths_with_trained_weights_stand_beside_the_proof(tmp_path, task):
    plan = plan_of(task)
    found = verify_task_plan(task, plan, seeds=2, fine_tune=True, check_length=True, keep_in=tmp_path / "kept")
    beside = found.entry("fine-tuned")
    assert (beside.params, len(beside.scores)) == (plan.new_params, 2)
    assert beside.scores != found.entry("slim").scores
    assert "fine-tuned" not in [entry.name for entry in found.rivals()]
    assert "fine-tuned" not in found.open
    assert "With the weights of the trained dense model, trained on, the same widths end" in found.verdict
    plain = verify_task_plan(task, plan, seeds=2, keep_in=tmp_path / "kept")
    assert plain.lead("random") == found.lead("random")  # the intervals of rivals know nothing of it
    assert found.longer.usual == found.entry("dense").scores[0]
    assert found.longer.score > found.longer.usual  # 120 steps are few
    assert found.length.startswith("The trainings are short: the dense model trained 5 times as long (seed 0) ends")
    assert "verify --check-length" in plain.length
    again = Verification.model_validate_json(found.files()["verification.json"])
    assert again.longer == found.longer


def test_trained_channels_with_the_largest_weights_are_kept(task):
    coupling, plan = couple_channels(task.traced), plan_of(task)
    dense = copy.deepcopy(task.traced.model)
    with torch.no_grad():
        dense[0].weight[:10] *= 1e-3
        dense[0].bias[:10] = 0
    (removed,) = smallest_units(coupling, plan, dense).values()
    assert set(range(10)) <= set(removed)
    assert len(removed) == len(next(iter(plan.removal.values())))


def test_how_long_is_long_enough():
    for gain, enough in ((0.009, True), (0.02, False), (-0.1, True)):
        assert LongerTraining(factor=5, seed=0, score=0.9 + gain, usual=0.9).is_enough("accuracy") == enough
    assert LongerTraining(factor=5, seed=0, score=0.99, usual=1.0).is_enough("loss")  # lower is better
    assert not LongerTraining(factor=5, seed=0, score=0.9, usual=1.0).is_enough("loss")
    assert not LongerTraining(factor=5, seed=0, score=None, usual=1.0).is_enough("loss")
