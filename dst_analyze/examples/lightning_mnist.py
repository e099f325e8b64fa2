"""Lightning on handwritten digits: a small convolutional net, trained by Lightning's Trainer.

scikit-learn's digits in the shape of MNIST, so that nothing is downloaded. `fit` is what the command line asks for:

    dst-analyze example:lightning-mnist --alphas 1e-6,1e-5

`main` does the same in Python, with a callback: ``python -m dst_analyze.examples.lightning_mnist``.
It needs Lightning: ``pip install 'dst-analyze[lightning]'``.
"""

from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 5


def build_model(width: int = 8) -> nn.Module:
    """Return the net: two convolutions and two linear layers."""
    return nn.Sequential(
        nn.Conv2d(1, width, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * 49, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def example_inputs() -> torch.Tensor:
    return torch.zeros(2, 1, 28, 28)


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return the digits to train on and those to score on."""
    found = load_digits()
    images = F.interpolate(torch.tensor(found.images, dtype=torch.float32)[:, None] / 16, (28, 28))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], torch.tensor(found.target)[order]
    return TensorDataset(images[:1437], labels[:1437]), TensorDataset(images[1437:], labels[1437:])


def module_around(model: nn.Module) -> Any:
    """Return a LightningModule around the net; in a project of your own it is a class at the top of the file."""
    import lightning

    class Digits(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.example_input_array = example_inputs()

        def forward(self, images: torch.Tensor) -> Any:
            return self.model(images)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return F.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch: Any, index: int) -> None:
            outputs = self(batch[0])
            self.log("val_loss", F.cross_entropy(outputs, batch[1]))
            self.log("val_acc", (outputs.argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    return Digits()


def train(model: nn.Module, *callbacks: Any) -> None:
    """Train the net with Lightning's Trainer."""
    import lightning

    training, rest = digits()
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",  # on a GPU, the Trainer would take the model there and back
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module_around(model), DataLoader(training, 64, shuffle=True), DataLoader(rest, 360))


def fit(model: nn.Module) -> None:
    """Train the model that is given, in place."""
    train(model)


def evaluate(model: nn.Module) -> dict[str, float | bool]:
    """Return how well the model does on digits that it was not trained on."""
    images, labels = digits()[1].tensors
    with torch.no_grad():
        outputs = model(images)
    score = (outputs.argmax(1) == labels).float().mean().item()
    return {"score": score, "loss": F.cross_entropy(outputs, labels).item(), "higher_is_better": True}


def main(folder: Path | str = "reports/lightning-mnist") -> Path:
    """Run a study whose trials the Trainer trains; return the path of its report."""
    import dst_analyze as dst
    from dst_analyze.integrations.lightning import RedundancyCallback

    study = dst.Study(folder, alphas=(1e-6, 1e-5))
    for trial in study:
        torch.manual_seed(trial.seed)
        train(build_model(), RedundancyCallback(trial, monitor="val_acc"))
    return study.report()


if __name__ == "__main__":
    print(main())
