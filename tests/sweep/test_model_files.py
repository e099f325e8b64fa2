"""Model files as people write them, through the real command: detectors, Hugging Face, Lightning, several views."""

import json
from textwrap import dedent

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dst_analyze import load_model, read_run
from dst_analyze.cli.main import main
from dst_analyze.errors import ModelError
from dst_analyze.masking.masked import mask_model
from dst_analyze.model.inputs.describe import describe_batch
from dst_analyze.model.inputs.infer import batch_inputs, first_batch
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.run.record import DefaultOptimizer
from dst_analyze.sweep.planning.default_optimizer import LARGE_RATE, default_optimizer
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.training.device import Device
from dst_analyze.sweep.training.learning import guessing_loss, why_not_learned
from dst_analyze.sweep.training.objective import Objective, main_output, own_loss
from dst_analyze.sweep.training.train import evaluate

HEAD = """\
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

G = torch.Generator().manual_seed(0)
"""


@pytest.fixture
def here(tmp_path, monkeypatch, inline):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


@pytest.fixture
def sweep(here, capfd):
    """Run the command on a file; return its record and what it printed."""

    def run(text, *args, expect=0):
        (here / "m.py").write_text(HEAD + dedent(text))
        code = main(["m.py", "--alphas", "1e-5,1e-4", "--steps", "4", "--out", "run", *args])
        told = capfd.readouterr()
        assert code == expect, told.err
        return read_run(here / "run") if not expect else None, told.out + told.err

    return run


# --- detectors ------------------------------------------------------------------------------------------------------

BOXES = """
class Boxes(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, i):
        height, width = 40 + 2 * i, 60 - i
        image = torch.rand(3, height, width, generator=G) * 0.2
        image[:, 5:21, 5:21] += 0.7
        return image, {"boxes": torch.tensor([[5.0, 5, 21, 21]]), "labels": torch.tensor([1])}

def train_data():
    return DataLoader(Boxes(), batch_size=3, collate_fn=lambda b: tuple(zip(*b)))
"""
RETINA = """
def build_model():
    from torchvision.models.detection import RetinaNet
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    body = nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1), nn.BatchNorm2d(8), nn.ReLU())
    body.out_channels = 8
    return RetinaNet(body, 2, anchor_generator=AnchorGenerator(((16,),), ((1.0,),)), min_size=32, max_size=32)
"""
ANCHORLESS = """
class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 5, 1)
        self.calls = 0

    def forward(self, images, targets=None):
        assert all(image.shape[0] == 3 for image in images)
        maps = [self.head(self.norm(self.body(image[None])).relu()).mean((2, 3))[0] for image in images]
        if not self.training:
            return [{"boxes": each[None, :4], "scores": each[4:].sigmoid()} for each in maps]
        wanted = torch.stack([target["boxes"][0] for target in targets]) / 60
        found = torch.stack(maps)
        return {"box": F.l1_loss(found[:, :4], wanted), "score": F.softplus(-found[:, 4]).mean()}
"""


def test_a_detector_is_trained_on_the_sum_of_its_losses(sweep):
    record, told = sweep(BOXES + ANCHORLESS)
    assert list(record.layers["layer"]) == ["body", "head"]
    assert record.manifest.data.score == "loss"
    assert record.manifest.default_optimizer.family == "adamw"
    assert "STAND-IN" not in told
    assert all(trial.score == trial.loss for trial in record.trials)
    assert {trial.status for trial in record.trials} == {"done"}


def test_torchvisions_detectors_need_no_loss_of_the_users(sweep):
    record, told = sweep(BOXES + RETINA, "--exclude", "head.*.conv.[123].0")
    assert "backbone.0" in list(record.layers["layer"])
    assert record.manifest.data.score == "loss"
    assert {trial.status for trial in record.trials} == {"done"}
    assert "no slimmer architecture" in told


DETR = """
class Detr(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 8, 4, 4)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.boxes, self.labels = nn.Linear(8, 4), nn.Linear(8, 2)

    def forward(self, images):
        tokens = self.encoder(self.body(images).flatten(2).transpose(1, 2))
        return {"pred_boxes": self.boxes(tokens[:, :3]).sigmoid(), "pred_logits": self.labels(tokens[:, :3])}

class Boxes(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, i):
        return torch.rand(3, 16, 16, generator=G), {"boxes": torch.rand(1 + i % 2, 4, generator=G), "labels": [1]}

def train_data():
    return DataLoader(Boxes(), batch_size=3, collate_fn=lambda b: (torch.stack([x for x, _ in b]), [t for _, t in b]))
"""


def test_a_set_predictor_has_lists_of_dicts_for_targets(sweep):
    loss = """
    def loss(outputs, batch):
        images, targets = batch
        return sum((o[: len(t["boxes"])] - t["boxes"]).abs().mean() for o, t in zip(outputs["pred_boxes"], targets))
    """
    record, _ = sweep(DETR + dedent(loss))
    assert "body" in list(record.layers["layer"])
    assert "AdamW" in record.manifest.optimizer
    assert "layer norms" in record.manifest.optimizer


def test_what_no_loss_is_known_for_is_described_before_training(sweep):
    _, told = sweep(DETR, expect=2)
    assert "no loss is known" in told
    assert "float32[3, 3, 16, 16]" in told
    assert "a list of 3, the first a dict of {boxes: float32[1, 4]" in told
    assert "define loss(outputs, batch)" in told
    _, told = sweep(
        """
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
        train_data = [([torch.rand(3, 2, 2)] * 4, "four of them")] * 5
        """,
        expect=2,
    )
    assert "a batch is a tuple of (a list of 4, the first float32[3, 2, 2], a str)" in told
    assert "(list of images, list of dicts)" in told


class Listed(nn.Module):
    def forward(self, images, targets=None):
        return images


@pytest.mark.parametrize("count", [1, 3, 4])
def test_a_list_of_images_is_never_cut_along_its_channels(count):
    images = tuple(torch.rand(3, 8 + i, 9) for i in range(count))
    targets = tuple({"boxes": torch.rand(count, 4)} for _ in range(count))
    inputs = batch_inputs((images, targets), Listed())
    assert inputs.batch_size == count
    if count > 1:
        (cut, dicts) = first_batch([(images, targets)], 2)
        assert [image.shape for image in cut] == [image.shape for image in images[:2]]
        assert len(dicts) == 2
    few = inputs.first_samples(2, listed=True)
    assert [image.shape for image in few.args[0]] == [image.shape for image in images[:2]]
    assert [target["boxes"].shape for target in few.args[1]] == [(count, 4)] * min(2, count)
    stacked = Inputs((), {"pixels": torch.rand(count, 3), "labels": list(targets)}).first_samples(2)
    assert len(stacked.kwargs["pixels"]) == len(stacked.kwargs["labels"]) == min(2, count)
    assert stacked.kwargs["labels"][0]["boxes"].shape == (count, 4)


def test_a_list_of_inputs_for_one_sample_stays_whole():
    parts = [torch.rand(64, 2), torch.rand(64, 3), torch.rand(64, 4)]
    inputs = batch_inputs((parts, torch.arange(64)), Listed())
    assert [part.shape for part in inputs.first_samples(2).args[0]] == [part.shape for part in parts]


def test_a_control_moves_images_and_leaves_their_annotations():
    images = [torch.full((3, 4, 5 + at), float(at)) for at in range(6)]
    targets = [{"boxes": torch.full((1, 4), float(at))} for at in range(6)]
    torch.manual_seed(0)
    inputs = Objective(Listed(), shuffled=True).inputs((images, targets))
    order = [int(image[0, 0, 0]) for image in inputs.args[0]]
    assert sorted(order) == list(range(6)) != order
    assert [int(target["boxes"][0, 0]) for target in inputs.args[1]] == list(range(6))


class Losing(nn.Module):
    """Returns a loss in training mode only."""

    def __init__(self):
        super().__init__()
        self.one, self.norm, self.drop, self.two = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)

    def forward(self, x):
        found = self.two(self.drop(self.norm(self.one(x))))
        return {"loss": (found - 1 - torch.rand(1)).square().mean()} if self.training else found


@pytest.mark.parametrize("masked", [False, True])
def test_losses_of_training_mode_score_a_model_and_change_nothing(masked):
    torch.manual_seed(0)
    model = mask_model(Losing(), torch.rand(4, 4)) if masked else Losing()
    model.train()
    if masked:
        with torch.no_grad():
            model.thresholds.fill_(1e6)  # everything collapses: a reset would show
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    objective = Objective(model.model if masked else model, losses_in_training=True)
    batches = [torch.rand(8, 4, generator=torch.Generator().manual_seed(1))] * 2
    scores = [evaluate(model, batches, objective, Device()) for _ in range(2)]
    assert scores[0] == scores[1]
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())


def test_a_models_own_loss_is_found():
    one, two = torch.tensor(1.0), torch.tensor(2.0)
    assert own_loss({"a": one, "b": two}) == 3
    assert own_loss({"loss": two, "recon": one}) == 2
    assert own_loss((two, torch.rand(3))) == 2
    assert own_loss({"out": torch.rand(2, 3), "aux": one}) is None
    assert own_loss(torch.rand(2, 3)) is None
    assert main_output((two, torch.ones(2, 3))).shape == (2, 3)


def test_batches_are_described():
    assert describe_batch((torch.zeros(2, 3), torch.arange(2))) == "a tuple of (float32[2, 3], int64[2])"
    assert describe_batch({"x": torch.zeros(1), "y": None}) == "a dict of {x: float32[1], y: None}"


# --- Hugging Face ---------------------------------------------------------------------------------------------------

BERT = """
from transformers import BertConfig, BertForSequenceClassification

def build_model():
    return BertForSequenceClassification(BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=8, num_labels=3))

IDS = torch.randint(0, 32, (48, 8), generator=G)
train_data = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "labels": IDS[:, 0] % 3}
"""
GPT = """
from transformers import GPT2Config, GPT2LMHeadModel

def build_model():
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2))

IDS = torch.randint(0, 32, (48, 8), generator=G)
train_data = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "labels": IDS}
"""


def test_a_classifier_of_hugging_face_is_scored_by_accuracy(sweep):
    record, _ = sweep(BERT)
    assert record.manifest.data.score == "accuracy"
    assert record.manifest.default_optimizer.family == "adamw"
    assert record.manifest.optimizer.startswith("AdamW (chosen because the model has layer norms), learning rate 0.001")
    assert 0 <= record.dense.score <= 1 < record.dense.loss


def test_a_language_model_of_hugging_face_is_scored_by_its_loss(sweep):
    record, _ = sweep(GPT)
    assert record.manifest.data.score == "loss"
    assert record.dense.score == record.dense.loss


# --- Lightning ------------------------------------------------------------------------------------------------------

LIT = """
class LitNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 12))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        warnings.warn("You are trying to `self.log()` but the `self.trainer` reference is not registered")
        return {"loss": LOSS}

    def configure_optimizers(self):
        slow, fast = {"params": self.net[0].parameters()}, {"params": self.net[2].parameters(), "lr": 2e-3}
        optimizer = torch.optim.AdamW([slow, fast], lr=1e-3, betas=(0.8, 0.9))
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]
"""
LOADERS = """
    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.rand(64, 12, generator=G), torch.arange(64) % 12), batch_size=16)

    def val_dataloader(self):
        return [DataLoader(TensorDataset(torch.rand(32, 12, generator=G), torch.arange(32) % 12), batch_size=16)]
"""


@pytest.mark.parametrize(
    ("loss", "score"), [("F.mse_loss(self(x), x)", "loss"), ("F.cross_entropy(self(x), y)", "accuracy")]
)
def test_a_lightning_like_module_brings_data_loss_and_optimizer(sweep, here, loss, score):
    record, _ = sweep(LIT.replace("LOSS", loss) + LOADERS)
    assert record.manifest.data.scored_on == "test"
    assert record.manifest.data.score == score
    assert not record.manifest.data.stand_in
    assert "the optimizer of the model file, learning rate 0.001" in record.manifest.optimizer
    assert (record.dense.loss < 2) == (score == "loss")
    loaded = load_model("m.py")
    made = loaded.optimizer([nn.Parameter(torch.zeros(1)) for _ in range(4)])
    assert [(len(group["params"]), group["lr"], group["betas"]) for group in made.param_groups] == [
        (2, 1e-3, (0.8, 0.9)),
        (2, 2e-3, (0.8, 0.9)),
    ]
    assert len(loaded.optimizer([nn.Parameter(torch.zeros(1))]).param_groups) == 1


def test_a_lightning_like_module_without_data_is_not_analysed_on_digits(sweep):
    _, told = sweep(LIT.replace("LOSS", "F.mse_loss(self(x), x)"), expect=2)
    assert "no train_dataloader()" in told
    assert "hint: define it, or a data module" in told


def test_a_lightning_like_module_needs_a_forward(sweep):
    _, told = sweep(
        LIT.replace("LOSS", "F.mse_loss(self.net(x), x)").replace("def forward", "def run") + LOADERS, expect=2
    )
    assert "m.py:LitNet has a training_step() but no forward()" in told


def test_a_data_module_beside_it_is_used(sweep):
    module = """
    class Data:
        def setup(self, stage):
            self.x = torch.rand(64, 12, generator=G)
        def train_dataloader(self):
            return DataLoader(TensorDataset(self.x, torch.arange(64) % 12), batch_size=16)
    """
    record, _ = sweep(LIT.replace("LOSS", "F.mse_loss(self(x), x)") + dedent(module))
    assert record.manifest.data.scored_on == "train"
    assert record.trials[0].status == "done"


# --- several views, several inputs ----------------------------------------------------------------------------------

VIEWS = """
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 8)
        self.temperature = 0.5
    def forward(self, x):
        return F.normalize(self.head(self.body(x).relu()), dim=1)

X = torch.rand(64, 6, generator=G)
"""
CONTRAST = """
def loss(model, batch):
    (one, two), labels = batch
    scores = model(one) @ model(two).T / model.temperature
    return F.cross_entropy(scores, torch.arange(len(one)))
"""


def test_a_contrastive_loss_gets_the_model_and_both_views(sweep):
    data = "\ntrain_data = [([X[i:i+16], X[i:i+16] + 0.1], torch.arange(16)) for i in range(0, 64, 16)]\n"
    record, _ = sweep(VIEWS + CONTRAST + data)
    assert record.manifest.data.score == "loss"
    assert record.manifest.model.form == "modules: the loss calls the model itself"
    assert record.dense.loss < 2.8


def test_a_loss_that_gets_the_model_trains_masked_weights():
    model = nn.Linear(3, 2)
    masked = mask_model(model, torch.rand(2, 3))
    with torch.no_grad():
        masked.thresholds[0] = 1e6

    def loss(model, batch):
        assert isinstance(model, nn.Linear)
        return model(batch).sum() + 0 * model.weight.sum()

    loss.takes_model = True
    masked.masking.auto_reset = False
    batch = torch.ones(2, 3)
    _, value = Objective(model, loss).step(masked, batch)
    assert value.item() == pytest.approx(masked(batch).sum().item())
    value.backward()
    assert masked.thresholds.grad is not None


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.scale = nn.Linear(3, 2), 2.0

    def forward(self, x):
        return self.body(x)


def test_a_loss_that_gets_the_model_trains_a_slim_one_in_its_place():
    original, slim = Scaled(), nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 2)).eval()

    def loss(model, batch):
        assert not model.training
        return (model.scale * model(batch)).sum()

    def past_it(model, batch):
        return model.body(batch).sum()

    loss.takes_model = past_it.takes_model = True
    _, value = Objective(original, loss).step(slim, torch.ones(2, 3))
    assert value.item() == pytest.approx(2 * slim(torch.ones(2, 3)).sum().item())
    with pytest.raises(ModelError, match="calls parts of the model"):
        Objective(original, past_it).step(slim, torch.ones(2, 3))
    assert type(original.forward).__name__ == "method"


def test_two_inputs_and_a_dict_of_outputs(sweep):
    record, _ = sweep(
        """
        class Siamese(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 8)
            def forward(self, first, second):
                one, two = (self.head(self.body(x).relu()) for x in (first, second))
                return {"first": one, "distance": (one - two).square().sum(1)}

        def loss(outputs, batch):
            first, second, same = batch
            return (same * outputs["distance"] + (1 - same) * F.relu(1 - outputs["distance"])).mean()

        X = torch.rand(64, 6, generator=G)
        train_data = X, X.flip(0), (torch.arange(64) % 2).float()
        """
    )
    assert record.trials[0].status == "done"


def test_labels_cannot_be_shuffled_for_a_loss_that_gets_the_model(sweep):
    data = "\ntrain_data = [([X, X], torch.arange(64))]\n"
    _, told = sweep(VIEWS + CONTRAST + data, "--control", "shuffled-labels", expect=2)
    assert "--control" in told


# --- files as they are ----------------------------------------------------------------------------------------------

ARGS = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, OPTION)
args = parser.parse_args()
criterion = nn.CrossEntropyLoss()

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(6, width), nn.Linear(width, 3)
    def forward(self, x):
        return self.b(self.a(x).relu())

net = Net(args.width)

def train_data():
    parser.parse_args()
    return torch.rand(64, 6, generator=G), torch.arange(64) % 3

if __name__ == "__main__":
    raise SystemExit("is not run")
"""


def test_a_training_script_is_read_as_it_is(sweep):
    record, _ = sweep(ARGS.replace("OPTION", "default=8"))
    assert record.manifest.model.params == 6 * 8 + 8 + 8 * 3 + 3


def test_missing_arguments_of_a_script_are_named(sweep):
    _, told = sweep(ARGS.replace("OPTION", "required=True"), expect=2)
    assert "argparse" in told
    assert "hint: give the arguments defaults" in told


def test_notebooks_are_refused_with_a_hint(here, capfd):
    (here / "mymodel.ipynb").write_text(json.dumps({"cells": []}))
    assert main(["mymodel.ipynb"]) == 2
    told = capfd.readouterr().err
    assert "is a notebook" in told
    assert "nbconvert --to script mymodel.ipynb" in told


def test_relative_imports_start_from_the_files_package(here, capfd):
    (here / "menagerie" / "parts").mkdir(parents=True)
    for name in ("menagerie/__init__.py", "menagerie/parts/__init__.py"):
        (here / name).write_text("")
    (here / "menagerie/parts/blocks.py").write_text(
        "from torch import nn\ndef block(a, b):\n    return nn.Linear(a, b)\n"
    )
    (here / "menagerie/width.py").write_text("WIDTH = 8\n")
    (here / "menagerie/parts/net.py").write_text(
        HEAD
        + "from ..width import WIDTH\nfrom .blocks import block\n"
        + "model = nn.Sequential(block(6, WIDTH), nn.ReLU(), block(WIDTH, 3))\n"
        + "train_data = torch.rand(64, 6), torch.arange(64) % 3\n"
    )
    code = main(["menagerie/parts/net.py", "--alphas", "1e-5,1e-4", "--steps", "4", "--out", "run"])
    assert code == 0, capfd.readouterr()
    assert list(read_run(here / "run").layers["layer"]) == ["0", "2"]


# --- weights --------------------------------------------------------------------------------------------------------

PREFIXED = {
    "lightning.ckpt": (
        lambda s: {"state_dict": {f"model.{n}": v for n, v in s.items()} | {"loss.w": torch.ones(2)}},
        "model.",
    ),
    "compiled.pt": (lambda s: {f"_orig_mod.{n}": v for n, v in s.items()}, "_orig_mod."),
    "both.pt": (lambda s: {f"module._orig_mod.{n}": v for n, v in s.items()}, "module."),
    "timm.pth.tar": (lambda s: {"arch": "net", "state_dict_ema": {f"module.{n}": v for n, v in s.items()}}, "module."),
    "averaged.pt": (
        lambda s: {f"ema.{n}": v + 1 for n, v in s.items()} | {f"net.{n}": v for n, v in s.items()},
        "net.",
    ),
}


@pytest.mark.parametrize("name", PREFIXED)
def test_weights_with_a_prefix_are_matched_and_told(here, capfd, name):
    (here / "m.py").write_text(HEAD + NET)
    state = load_model("m.py").model.state_dict()
    made, prefix = PREFIXED[name]
    torch.save(made(state), name)
    plan = plan_sweep("m.py", alphas=[1e-3], steps=4, weights=name)
    assert all(torch.equal(state[key], value) for key, value in plan.task.traced.model.state_dict().items())
    assert prefix in plan.manifest.model.weights
    if name == "lightning.ckpt":
        assert main(["m.py", "--alphas", "1e-5,1e-4", "--steps", "4", "--weights", name, "--out", "run"]) == 0
        told = capfd.readouterr().err
        assert "names were matched without the prefix 'model.'; 1 tensors of the file are not the model's" in told


NET = """
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
train_data = torch.rand(64, 6, generator=G), torch.arange(64) % 3
"""


def test_weights_of_a_part_get_the_prefix_of_the_model(here):
    (here / "m.py").write_text(
        HEAD + "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.inner = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))\n"
        "    def forward(self, x):\n        return self.inner(x)\n"
        "train_data = torch.rand(64, 6), torch.arange(64) % 3\n"
    )
    torch.save(load_model("m.py").model.inner.state_dict(), "w.pt")
    plan = plan_sweep("m.py", alphas=[1e-3], steps=4, weights="w.pt")
    assert "with the prefix 'inner.'" in plan.manifest.model.weights


# --- the optimizer --------------------------------------------------------------------------------------------------

CHOICES = {
    "cnn": (nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), True, "sgd"),
    "mlp": (nn.Sequential(nn.Linear(4, 4), nn.ReLU()), True, "sgd"),
    "regression": (nn.Sequential(nn.Linear(4, 4), nn.ReLU()), False, "adamw"),
    "batch norm": (nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)), False, "sgd"),
    "transformer": (nn.TransformerEncoderLayer(8, 2, 8), True, "adamw"),
    "attention": (nn.MultiheadAttention(8, 2), True, "adamw"),
    "recurrent": (nn.GRU(4, 4), True, "adamw"),
    "embedding": (nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 4)), True, "adamw"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_optimizer_is_chosen_by_the_model(name):
    model, accuracy, family = CHOICES[name]
    chosen = default_optimizer(model, accuracy=accuracy)
    assert (chosen.family, bool(chosen.reason), chosen.rises) == (family, family == "adamw", family == "adamw")
    assert chosen.lr == (1e-3 if family == "adamw" else 0.05)


def test_a_detector_with_batch_norm_gets_adamw():
    model = CHOICES["batch norm"][0]
    chosen = default_optimizer(model, accuracy=False, detects=True)
    assert (chosen.family, chosen.reason) == ("adamw", "the model computes its own losses")


def test_large_models_get_a_smaller_rate():
    with torch.device("meta"):
        large = nn.TransformerEncoderLayer(2048, 2, 8192)
    assert default_optimizer(large, accuracy=True).lr == LARGE_RATE


def test_an_optimizer_that_is_asked_for_wins(here):
    (here / "m.py").write_text(HEAD + BERT)
    plan = plan_sweep("m.py", alphas=[1e-3], steps=40, optimizer="sgd")
    assert plan.manifest.optimizer.startswith("SGD, learning rate 0.05")
    assert plan.manifest.default_optimizer is None
    plan = plan_sweep("m.py", alphas=[1e-3], steps=40, lr=5e-4)
    recipe = plan.task.recipe
    assert (recipe.family, recipe.lr) == ("adamw", 5e-4)
    rates = recipe.rates / recipe.clock
    assert rates[0] == pytest.approx(2.5e-4)  # it rises over two of forty steps
    assert rates[2] == pytest.approx(5e-4)
    assert isinstance(plan.manifest.default_optimizer, DefaultOptimizer)


NOISE = """
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
X = torch.zeros(256, 6)
train_data = X, torch.arange(256) % 3
"""


def test_a_reference_that_does_not_learn_stops_the_sweep(sweep, here):
    _, told = sweep(NOISE, "--steps", "160", expect=1)
    assert "the model does not learn, so there is nothing to rank" in told
    assert "guessing gives 1.1" in told
    assert "--optimizer adamw, or a smaller rate (--lr 0.005)" in told
    assert not list((here / "run" / "trials").iterdir())
    record, _ = sweep(NOISE, "--steps", "160", "--warm-up", "0", "--force")
    assert record.complete


def test_learning_is_judged_by_the_loss():
    assert why_not_learned([1.0] * 149, None) == ""
    assert "from 1 to 1" in why_not_learned([1.0] * 150, None)
    assert why_not_learned([1.0] * 75 + [0.9] * 75, None) == ""
    assert why_not_learned([0.2] * 150, 1.1) == ""  # weights that were trained before
    assert why_not_learned([9.0] + [1.1] * 150, 1.1)
    assert "from -2 to -2" in why_not_learned([-2.0] * 150, None)
    assert why_not_learned([-2.0] * 75 + [-3.0] * 75, None) == ""


def test_the_loss_of_guessing_is_the_entropy_of_the_labels(here):
    (here / "m.py").write_text(HEAD + NET)
    task = plan_sweep("m.py", alphas=[1e-3], steps=4).task
    objective = task.objective(task.traced.model)
    labels = torch.arange(64) % 3
    shares = torch.bincount(labels) / 64
    assert guessing_loss(objective, task.train_data) == pytest.approx(float(-(shares * shares.log()).sum()))
    assert guessing_loss(Objective(task.traced.model, F.mse_loss, accuracy=True), task.train_data) is None
