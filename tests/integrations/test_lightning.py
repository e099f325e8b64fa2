"""A study's trials in Lightning's own Trainer."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dst_analyze as dst
from dst_analyze.errors import ModelError, OptionError
from dst_analyze.integrations.lightning import RedundancyCallback  # first: it mends torchvision's import

# isort: split
import lightning as L

# Lightning's own: a deprecation in torch's pytree, advice on workers, an empty folder of checkpoints.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
    pytest.mark.filterwarnings("ignore:.*number of training batches.*is smaller than the logging interval"),
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

ALPHAS = (1e-6, 1e-5)
EPOCHS, BATCH = 6, 32
STRONG = 2e-2  # taken literally: enough to prune in so few steps

generator = torch.Generator().manual_seed(0)
X = torch.randn(128, 12, generator=generator)
Y = (X[:, 0] > 0).long() + 2 * (X[:, 1] > 0).long()
DATA = TensorDataset(X, Y)


class Net(L.LightningModule):
    """A module as people write them: its steps call its layers, not forward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 4))
        self.example_input_array = X[:2]

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, index):
        return F.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, index):
        out = self.layers(batch[0])
        self.log_dict(
            {"val_acc": (out.argmax(1) == batch[1]).float().mean(), "val_loss": F.cross_entropy(out, batch[1])}
        )

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)]


def trainer(*callbacks, checkpoints=False, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(
        **{"max_epochs": EPOCHS, "accelerator": "cpu", "enable_checkpointing": checkpoints, **quiet, **options},
        callbacks=list(callbacks),
    )


def fit(trial, module=None, *, ckpt_path=None, batch=BATCH, callbacks=(), monitor="val_acc", mode="max", **options):
    module = module or Net()
    trainer(RedundancyCallback(trial, monitor, mode=mode), *callbacks, **options).fit(
        module, DataLoader(DATA, batch), DataLoader(DATA, 64), ckpt_path=ckpt_path
    )
    return module


def literal_study(folder, **options):
    """A study that is not warmed up, and whose alphas are taken as they stand."""
    return dst.Study(folder, (STRONG,), alpha_scale=1.0, threshold_clock=1.0, warm_up=False, **options)


def accuracy(module):
    with torch.no_grad():
        return float((module(X).argmax(1) == Y).float().mean())


def test_a_study_is_trained_by_its_trainer(tmp_path):
    study = dst.Study(tmp_path / "run", ALPHAS)
    for trial in study:
        module = fit(trial)
        assert trial.told
        assert trial.told_score.score == pytest.approx(accuracy(module))  # of the model that comes back, zeros and all
        assert not {"forward", "training_step", "validation_step"} & set(vars(module))
        if trial.role == "masked":
            weights = [layer.weight for layer in module.layers if isinstance(layer, nn.Linear)]
            assert sum(int((w == 0).sum()) for w in weights) > 0
    record = study.record
    assert record.complete
    assert record.manifest.steps == EPOCHS * 4
    assert "SGD, learning rate" in record.manifest.optimizer
    assert record.steps["loss"].notna().all()
    assert all(trial.loss is not None for trial in record.trials)
    assert study.ranking.table["layer"].tolist()


def test_it_gives_what_a_plain_loop_gives_to_the_bit(tmp_path):
    """The callback is `attach` around the loop, and nothing more."""

    def plain(trial):
        module = Net()
        (optimizer,), (schedule,) = module.configure_optimizers()
        with trial.attach(module, X[:2], optimizer):
            for _ in range(EPOCHS):
                for x, y in DataLoader(DATA, BATCH):
                    loss = F.cross_entropy(module(x), y)
                    trial.log(loss.item())
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                schedule.step()
        with torch.no_grad():
            loss = F.cross_entropy(module(X), Y).item()
        trial.tell(accuracy(module), loss=loss)
        return module

    ends = []
    for name, train in (("guest", fit), ("plain", plain)):
        study = literal_study(tmp_path / name)
        modules = [train(trial) for trial in study]
        ends.append((modules[-1], study.record))
    (one, record), (other, expected) = ends
    assert all(map(torch.equal, one.parameters(), other.parameters()))
    assert record.frame.equals(expected.frame)
    assert record.steps.equals(expected.steps)
    assert [t.loss for t in record.trials] == pytest.approx([t.loss for t in expected.trials], rel=1e-5)


@pytest.mark.parametrize(
    ("options", "tolerance"), [({"accumulate_grad_batches": 2, "batch": 16}, 1e-4), ({"precision": "bf16-mixed"}, 0.1)]
)
def test_accumulation_and_mixed_precision(tmp_path, options, tolerance):
    shares, losses = [], []
    for name, given in (("plain", {}), ("other", options)):
        study = literal_study(tmp_path / name)
        for trial in study:
            fit(trial, **given)
        assert study.record.manifest.steps == EPOCHS * 4
        shares.append(study.record.frame["remaining"].to_numpy())
        losses.append(study.record.steps["loss"].to_numpy())  # of a step, not of a part of it
    assert 0.05 < study.record.trials[-1].remaining < 0.95
    assert abs(shares[0] - shares[1]).max() < tolerance
    assert abs(losses[0] - losses[1]).max() < tolerance


class BreakOff(L.Callback):
    """Ends the process, in a manner of speaking, after an epoch whose checkpoint has been written."""

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 3:
            raise InterruptedError


def test_a_checkpoint_goes_on_to_the_bit(tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    ends = []
    for name in ("whole", "broken"):
        study = dst.Study(tmp_path / name, (1e-5,), warm_up=True)
        for trial in study:
            if name == "broken":
                module, kept = Net(), ModelCheckpoint(tmp_path / trial.role, save_last=True)
                with pytest.raises(InterruptedError):
                    fit(trial, module, callbacks=(BreakOff(), kept), checkpoints=True)
                assert not trial.told
                assert "training_step" not in vars(module)
                assert torch.load(kept.last_model_path, weights_only=True)["callbacks"]["RedundancyCallback"]
                module = fit(trial, ckpt_path=kept.last_model_path, callbacks=(kept,), checkpoints=True)
            else:
                module = fit(trial)
        ends.append((module, study.record))
    (one, record), (other, expected) = ends
    assert all(map(torch.equal, one.parameters(), other.parameters()))
    assert record.manifest == expected.manifest
    assert record.frame.equals(expected.frame)
    assert record.steps.equals(expected.steps)
    assert record.trials == expected.trials


def test_a_loss_is_told_as_one_and_a_score_may_be_measured_afterwards(tmp_path):
    trial = next(iter(literal_study(tmp_path / "run")))
    module, callback = Net(), RedundancyCallback(trial, "val_loss", mode="min")
    runner = trainer(callback, check_val_every_n_epoch=4)  # in the middle, and not at the end
    runner.validate(module, DataLoader(DATA, 64), verbose=False)  # of the untrained model: no score
    runner.fit(module, DataLoader(DATA, BATCH), DataLoader(DATA, 64))
    assert trial.ended
    assert not trial.told
    runner = trainer(RedundancyCallback(trial, "val_loss", mode="min"))
    runner.validate(module, DataLoader(DATA, 64), verbose=False)
    assert trial.told
    assert trial.told_score.score == trial.told_score.loss > 0


def test_a_training_that_diverges_is_a_failed_trial(tmp_path):
    class Bad(Net):
        def validation_step(self, batch, index):
            self.log("val_acc", torch.tensor(torch.nan))

    trial = next(iter(literal_study(tmp_path / "run")))
    fit(trial, Bad())
    assert trial.reason == "val_acc was nan"


def test_bad_use_is_named(tmp_path):
    class Silent(Net):
        def __init__(self):
            super().__init__()
            self.example_input_array = None

    trial = next(iter(literal_study(tmp_path / "run")))
    with pytest.raises(OptionError, match="measures no 'val_f1'") as missing:
        fit(trial, module := Net(), monitor="val_f1")
    assert "val_acc, val_loss" in missing.value.hint
    assert "forward" not in vars(module)
    with pytest.raises(ModelError, match=r"what Silent.forward takes is not known"):
        fit(trial, Silent())
    with pytest.raises(OptionError, match="unknown mode 'high'"):
        RedundancyCallback(trial, mode="high")
    plain = trainer(max_epochs=1)
    plain.fit(Net(), DataLoader(DATA, BATCH), DataLoader(DATA, 64))
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.raises(OptionError, match="has no masks of dense, seed 0"):
        fit(trial, ckpt_path=tmp_path / "plain.ckpt")
    fit(trial)
    with pytest.raises(OptionError, match="the trial is over"):
        fit(trial)


@pytest.mark.parametrize(("module", "package"), [("lightning", "lightning"), ("transformers", "transformers")])
def test_a_guest_that_is_not_installed_is_named(module, package):
    program = (
        f"import sys, dst_analyze as dst; sys.modules[{package!r}] = None\n"
        f"try: import dst_analyze.integrations.{module}\nexcept dst.DstError as error: print(error.hint)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"pip install 'dst-analyze[{module}]'"
