"""A study's trials in Hugging Face's own Trainer, on a small BERT made from its configuration."""

from __future__ import annotations

import pytest
import torch

import dst_analyze as dst
from dst_analyze.errors import OptionError
from dst_analyze.integrations.transformers import STATE, RedundancyCallback
from dst_analyze.masking.training.attach import EntryPoint

# isort: split
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

ALPHA = 3e-2
EPOCHS, BATCH = 4, 16
STEPS = EPOCHS * 4

generator = torch.Generator().manual_seed(0)
WORDS = torch.randint(2, 40, (64, 8), generator=generator)
DATA = [{"input_ids": words, "labels": (words < 10).sum().gt(1).long()} for words in WORDS]


def bert():
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=40,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=16,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def accuracy(predicted):
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


def trainer(callback, folder, *others, model=None, **options):
    given = {
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": 64,
        "learning_rate": 3e-3,
        "use_cpu": True,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "logging_steps": 2,
        "disable_tqdm": True,
        "report_to": [],
        "dataloader_pin_memory": False,
    }
    made = Trainer(
        model or bert(),
        TrainingArguments(str(folder), **(given | options)),
        train_dataset=DATA,
        eval_dataset=DATA,
        compute_metrics=accuracy,
        callbacks=[*others, callback],
    )
    made.remove_callback(PrinterCallback)
    return made


def study_in(folder):
    return dst.Study(folder, (ALPHA,), alpha_scale=1.0, warm_up=False)


def swept(folder, **options):
    study = study_in(folder / "run")
    for trial in study:
        guest = trainer(RedundancyCallback(trial, example_inputs={"input_ids": WORDS[:2]}), folder / "hf", **options)
        guest.train()
        assert trial.told
        assert not isinstance(vars(guest.model).get("forward"), EntryPoint)  # accelerate may have put one of its own
        zeros = sum(int((p == 0).sum()) for name, p in guest.model.named_parameters() if "query.weight" in name)
        assert (zeros > 0) == (trial.role == "masked")
        assert trial.told_score.score == guest.evaluate()["eval_accuracy"]  # of the model that comes back
    return study.record


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return swept(tmp_path_factory.mktemp("plain"))


def test_a_study_is_trained_by_its_trainer(plain):
    assert plain.complete
    assert plain.manifest.steps == STEPS
    assert "AdamW, learning rate" in plain.manifest.optimizer
    assert all(trial.loss is not None for trial in plain.trials)
    assert plain.steps["loss"].notna().any()
    assert set(plain.layers["layer"]) >= {"bert.encoder.layer.0.attention.self.query", "classifier"}
    assert 0.05 < plain.trials[-1].remaining < 0.95


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [({"gradient_accumulation_steps": 2, "per_device_train_batch_size": 8}, 0.05), ({"bf16": True}, 0.1)],
)
def test_accumulation_and_bfloat16(plain, tmp_path, options, tolerance):
    record = swept(tmp_path, **options)
    assert record.manifest.steps == STEPS
    assert abs(record.steps["remaining"] - plain.steps["remaining"]).max() < tolerance


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_changes_nothing(plain, tmp_path, reentrant):
    kwargs = {"use_reentrant": reentrant}
    record = swept(tmp_path, gradient_checkpointing=True, gradient_checkpointing_kwargs=kwargs)
    assert record.manifest.steps == STEPS
    assert abs(record.steps["remaining"] - plain.steps["remaining"]).max() < 1e-3
    assert abs(record.steps["loss"] - plain.steps["loss"]).max() < 1e-3


class BreakOff(TrainerCallback):
    """Ends the process, in a manner of speaking, after a step whose checkpoint has been written."""

    def on_step_begin(self, args, state, control, **others):
        if state.global_step == 6:
            raise InterruptedError


def test_a_checkpoint_goes_on_to_the_bit(plain, tmp_path):
    study = study_in(tmp_path / "run")
    for trial in study:
        folder = tmp_path / trial.role
        saving = {"save_strategy": "steps", "save_steps": 3, "save_only_model": False}
        with (
            pytest.raises(InterruptedError),
            RedundancyCallback(trial, example_inputs={"input_ids": WORDS[:2]}) as callback,
        ):
            trainer(callback, folder, BreakOff(), model=(model := bert()), **saving).train()
        assert "forward" not in vars(model)
        assert torch.load(folder / "checkpoint-6" / STATE, weights_only=True)["masks"]
        callback = RedundancyCallback(trial, example_inputs={"input_ids": WORDS[:2]})
        trainer(callback, folder).train(resume_from_checkpoint=str(folder / "checkpoint-6"))
    record = study.record
    assert record.manifest == plain.manifest
    assert record.frame.equals(plain.frame)
    assert record.trials == plain.trials


def test_a_score_measured_after_the_training_is_told(tmp_path):
    trial = next(iter(study_in(tmp_path / "run")))
    callback = RedundancyCallback(trial, metric="eval_loss", greater_is_better=False)  # on the model's dummy_inputs
    guest = trainer(callback, tmp_path / "hf", eval_strategy="no", max_steps=3)
    guest.train()
    assert trial.ended
    assert not trial.told
    measured = guest.evaluate()
    assert trial.told_score.score == trial.told_score.loss == measured["eval_loss"]


def test_bad_use_is_named(tmp_path):
    trial = next(iter(study_in(tmp_path / "run")))

    def of(**options):
        return RedundancyCallback(trial, **{"example_inputs": {"input_ids": WORDS[:2]}} | options)

    with pytest.raises(OptionError, match="load_best_model_at_end replaces"):
        trainer(of(), tmp_path / "hf", save_strategy="epoch", load_best_model_at_end=True).train()
    with pytest.raises(OptionError, match="measures no 'eval_f1'") as missing, of(metric="eval_f1") as callback:
        trainer(callback, tmp_path / "hf", max_steps=4).train()
    assert "eval_accuracy" in missing.value.hint
    trainer(TrainerCallback(), tmp_path / "bare", max_steps=2, save_strategy="steps", save_steps=2).train()
    with pytest.raises(OptionError, match=r"no masks of dense, seed 0: .*dst_analyze.pt is missing"):
        trainer(of(), tmp_path / "bare", max_steps=4).train(resume_from_checkpoint=str(tmp_path / "bare/checkpoint-2"))
