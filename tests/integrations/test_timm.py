"""A study's trials trained by the pieces of timm's train.py: its optimizers, schedulers, scaler, mixup and clipping."""

from __future__ import annotations

import pytest
import torch

import dst_analyze as dst
from dst_analyze.model.loading.torchvision_compat import make_importable

make_importable()  # timm imports torchvision
timm = pytest.importorskip("timm")

# isort: split
from timm.data import Mixup  # noqa: E402
from timm.loss import SoftTargetCrossEntropy  # noqa: E402
from timm.optim import create_optimizer_v2  # noqa: E402
from timm.scheduler import create_scheduler_v2  # noqa: E402
from timm.utils import NativeScaler, accuracy, dispatch_clip_grad  # noqa: E402

generator = torch.Generator().manual_seed(0)
IMAGES = torch.randn(64, 3, 16, 16, generator=generator)
LABELS = torch.randint(0, 4, (64,), generator=generator)
EPOCHS = 3


@pytest.mark.parametrize(("optimizer", "scaled"), [("sgd", True), ("lamb", False)])
def test_the_loop_of_its_train_script(tmp_path, optimizer, scaled):
    study = dst.Study(tmp_path / "run", (1e-6, 1e-5), include=["blocks*"])
    for trial in study:
        torch.manual_seed(trial.seed)
        model = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, depth=2, num_classes=4)
        model.set_grad_checkpointing()
        made = create_optimizer_v2(model, opt=optimizer, lr=0.01, weight_decay=0.05)
        schedule, epochs = create_scheduler_v2(made, sched="cosine", num_epochs=EPOCHS, warmup_epochs=1)
        mixup, loss_fn = Mixup(mixup_alpha=0.2, num_classes=4), SoftTargetCrossEntropy()
        scaler = NativeScaler(device="cpu") if scaled else None
        with trial.attach(model, torch.zeros(2, 3, 16, 16), made):  # the lines of the docs
            for epoch in range(epochs):
                model.train()
                for start in range(0, 64, 16):
                    x, y = mixup(IMAGES[start : start + 16], LABELS[start : start + 16])
                    loss = loss_fn(model(x), y)
                    made.zero_grad()
                    if scaler is None:
                        loss.backward()
                        dispatch_clip_grad(model.parameters(), 1.0)
                        made.step()
                    else:
                        scaler(loss, made, clip_grad=1.0, parameters=model.parameters(), need_update=True)
                schedule.step(epoch + 1)
        with torch.no_grad():
            trial.tell(float(accuracy(model.eval()(IMAGES), LABELS)[0]) / 100)
    record = study.record
    assert record.complete
    assert record.manifest.steps == EPOCHS * 4
    # lamb prunes as far as it gets with either
    assert record.remaining(1e-5) < record.remaining(1e-6) + 1e-3 * (optimizer == "lamb")
    assert record.remaining(1e-6) <= 1
    assert type(made).__name__ in record.manifest.optimizer
