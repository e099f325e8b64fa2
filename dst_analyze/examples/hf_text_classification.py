"""Hugging Face on short texts: a small BERT that tells four topics apart, trained by Hugging Face's Trainer.

The texts are made here, so that nothing is downloaded. `fit` is what the command line asks for:

    dst-analyze example:hf-text-classification --alphas 1e-6,1e-5

`main` does the same in Python, with a callback: ``python -m dst_analyze.examples.hf_text_classification``.
It needs transformers and accelerate: ``pip install 'dst-analyze[transformers]'``.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

EPOCHS = 3
TOPICS = {
    "weather": "rain wind cloud storm sun frost fog thunder",
    "kitchen": "pan salt onion bread oven spoon recipe butter",
    "harbour": "ship crane anchor sailor dock tide rope gull",
    "music": "violin chord rhythm choir drum melody singer piano",
}
OTHERS = "the a of and in on was there then again some many old new small long near before after with"
WORDS = {word: number for number, word in enumerate(["[PAD]", *OTHERS.split(), *" ".join(TOPICS.values()).split()])}
LENGTH = 12


def build_model(hidden: int = 32, layers: int = 2) -> nn.Module:
    """Return a BERT made from its configuration, with new weights."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * hidden,
        max_position_embeddings=LENGTH,
        num_labels=len(TOPICS),
    )
    model: nn.Module = BertForSequenceClassification(config)
    return model


def example_inputs() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.ones(2, LENGTH, dtype=torch.long)}


def texts(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return made-up texts as numbers of words, and their topics: two words in twelve belong to the topic."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(TOPICS), (count,), generator=generator)
    words = torch.randint(1, 1 + len(OTHERS.split()), (count, LENGTH), generator=generator)
    of_topic = torch.tensor([[WORDS[word] for word in topic.split()] for topic in TOPICS.values()])
    for row, label in zip(words, labels, strict=True):
        places = torch.randperm(LENGTH, generator=generator)[:2]
        row[places] = of_topic[label, torch.randint(of_topic.shape[1], (2,), generator=generator)]
    return words, labels


def rows(seed: int, count: int) -> list[dict[str, torch.Tensor]]:
    """Return texts as the Trainer wants them."""
    return [{"input_ids": words, "labels": label} for words, label in zip(*texts(seed, count), strict=True)]


def train(model: nn.Module, *callbacks: Any) -> None:
    """Train the model with Hugging Face's Trainer."""
    from transformers import PrinterCallback, Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=256,
            learning_rate=3e-3,
            seed=torch.initial_seed() % 2**32,  # the Trainer sets the seed anew, to 42 unless it is told another
            eval_strategy="epoch" if callbacks else "no",
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            report_to=[],
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=rows(0, 1024),
            eval_dataset=rows(1, 256),
            compute_metrics=lambda found: {"accuracy": (found.predictions.argmax(-1) == found.label_ids).mean()},
            callbacks=list(callbacks),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def fit(model: nn.Module) -> None:
    """Train the model that is given, in place."""
    train(model)


def evaluate(model: nn.Module) -> dict[str, float | bool]:
    """Return how well the model does on texts that it was not trained on."""
    words, labels = texts(1, 256)
    with torch.no_grad():
        outputs = model(input_ids=words).logits
    score = (outputs.argmax(1) == labels).float().mean().item()
    return {"score": score, "loss": F.cross_entropy(outputs, labels).item(), "higher_is_better": True}


def main(folder: Path | str = "reports/hf-text-classification") -> Path:
    """Run a study whose trials the Trainer trains; return the path of its report."""
    import dst_analyze as dst
    from dst_analyze.integrations.transformers import RedundancyCallback

    study = dst.Study(folder, alphas=(1e-6, 1e-5))
    for trial in study:
        torch.manual_seed(trial.seed)
        train(build_model(), RedundancyCallback(trial, example_inputs=example_inputs()))
    return study.report()


if __name__ == "__main__":
    print(main())
