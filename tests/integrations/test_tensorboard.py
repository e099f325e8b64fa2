"""TensorBoard draws what the events say, read back with TensorBoard itself."""

import sys

import pytest
from small_sweeps import FILE

from dst_analyze import read_run
from dst_analyze.cli.main import main
from dst_analyze.errors import OptionError
from dst_analyze.integrations.tensorboard import drawing
from dst_analyze.run.events import SweepStarted, TrialFailed, TrialRetried, TrialStarted, TrialStep
from dst_analyze.run.record import TrialKey


def drawn(folder):
    """Tag to its (step, value) pairs."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return {tag: [(point.step, point.value) for point in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def test_a_sweep_is_drawn(tmp_path, monkeypatch, inline):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(FILE)
    args = ["m.py", "--alphas", "1e-3", "--steps", "4", "--out", "run", "--jobs", "1", "--quiet"]
    assert main([*args, "--tensorboard"]) == 0
    record = read_run(tmp_path / "run")
    assert [file.name for file in (tmp_path / "run" / "tensorboard").iterdir()].sort() == [
        trial.key.name for trial in record.trials
    ].sort()
    scalars = drawn(tmp_path / "run" / "tensorboard" / TrialKey(1e-3, 0).name)
    assert set(scalars) == {"loss", "remaining", "layers/one", "layers/two"}
    for layer, frame in record.frame.groupby("layer"):
        expected = list(zip(frame["step"], frame["remaining"], strict=True))
        assert [step for step, _ in scalars[f"layers/{layer}"]] == [step for step, _ in expected]
        assert [value for _, value in scalars[f"layers/{layer}"]] == pytest.approx([value for _, value in expected])
    assert set(drawn(tmp_path / "run" / "tensorboard" / TrialKey(None, 0).name)) == {"loss"}
    assert main([*args, "--force"]) == 0  # what was drawn is the run's, and goes with it
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_a_trial_that_starts_again_is_drawn_over(tmp_path):
    key = TrialKey(1e-3, 0)
    with drawing() as emit:
        emit(SweepStarted(str(tmp_path), 1, 0, 10, 1, 1))
        emit(TrialStarted(key, 10))
        emit(TrialStep(key, 5, 10, 1.0, 0.5, 0.9, {"fc": 0.5}))
        emit(TrialRetried(key, "killed"))
        emit(TrialStarted(key, 10))
        emit(TrialStep(key, 5, 10, 2.0, 0.5, 0.9, {"fc": 0.25}))
        emit(TrialFailed(key, "diverged", "", 1.0))
        emit(TrialStep(key, 6, 10, 2.0))
    scalars = drawn(tmp_path / "tensorboard" / key.name)
    assert scalars["loss"] == [(5, 2.0)]
    assert scalars["layers/fc"] == [(5, 0.25)]
    assert scalars["score"] == [(5, pytest.approx(0.9))]


def test_without_the_package_it_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("tensorboard", "torch.utils.tensorboard"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(OptionError, match="not installed") as error, drawing():
        pass
    assert error.value.hint == "pip install 'dst-analyze[tensorboard]'"
    assert error.value.exit_code == 2
