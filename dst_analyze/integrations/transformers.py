"""A trial of a `Study` in Hugging Face's Trainer, by a callback."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from dst_analyze.errors import ModelError, OptionError
from dst_analyze.integrations.attached_trial import AttachedTrial, Trial
from dst_analyze.model.loading.torchvision_compat import make_importable

make_importable()  # the guest imports torchvision
try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "transformers":
        raise
    raise OptionError(
        "transformers is not installed", place=__name__, hint="pip install 'dst-analyze[transformers]'"
    ) from None

STATE = "dst_analyze.pt"
"""The file with the trial's state in each checkpoint of the Trainer."""


class RedundancyCallback(TrainerCallback):  # type: ignore[misc]
    """Attaches a trial when ``train`` starts, and tells its score when it ends.

    The masks are on the model from the start of ``train`` to its end, then their zeros are written into its weights.
    Every checkpoint gets a file with them, and ``train(resume_from_checkpoint=...)`` goes on from there. If ``train``
    raises, call `abandon` before the model is used again.

    Args:
        trial: What `Study` asks for.
        metric: The score's name in what ``evaluate`` returns.
        greater_is_better: False if it is a loss or an error.
        example_inputs: What the model takes, as a dict of keywords; its ``dummy_inputs`` by default.
        resume_from: The checkpoint's folder, if it is not in the Trainer's ``output_dir`` any more.

    Example:
        >>> import dst_analyze as dst
        >>> from dst_analyze.integrations.transformers import RedundancyCallback
        >>> for trial in dst.Study("reports/mine", alphas=(1e-6, 1e-5)):  # doctest: +SKIP
        ...     callback = RedundancyCallback(trial, metric="eval_accuracy")
        ...     Trainer(model_init(), args, train_dataset=data, eval_dataset=rest, callbacks=[callback]).train()
    """

    def __init__(
        self,
        trial: Trial,
        metric: str = "eval_accuracy",
        *,
        greater_is_better: bool = True,
        example_inputs: Any = None,
        resume_from: Path | str | None = None,
    ) -> None:
        self.trial, self.example_inputs, self.resume_from = trial, example_inputs, resume_from
        self._attached = AttachedTrial(trial, metric, "eval_loss", higher_is_better=greater_is_better)

    def __enter__(self) -> RedundancyCallback:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    def abandon(self) -> None:
        """Give the model back as it is, where its training was broken off."""
        self._attached.abandon()

    def on_init_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **others: Any,
    ) -> None:
        """Remember the weights that training starts from, which a checkpoint may replace."""
        if model is not None:
            self._attached.remember(model)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module,
        optimizer: Any = None,
        **others: Any,
    ) -> None:
        """Attach the trial."""
        if args.load_best_model_at_end:
            raise OptionError(
                "load_best_model_at_end replaces the trained weights by earlier ones, which the masks do not fit",
                place="TrainingArguments",
                hint="leave it off",
            )
        inputs = self.example_inputs
        if inputs is None:
            inputs = getattr(model, "dummy_inputs", None)
        if inputs is None:
            raise ModelError(
                f"what {type(model).__name__} takes is not known",
                place="RedundancyCallback",
                hint="give example_inputs=, a dict of keywords",
            )
        resumed = self._saved(args, state) if state.global_step else None
        self._attached.attach(model, inputs, optimizer, resumed=resumed)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **others: Any,
    ) -> None:
        """Log the loss with the trial, as often as the Trainer logs it."""
        if logs and "loss" in logs:
            self.trial.log(float(logs["loss"]))

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **others: Any,
    ) -> None:
        """Take the score from an evaluation while training, or after it."""
        self._attached.measure(state.global_step, metrics)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """Write the trial's state beside the Trainer's checkpoint."""
        saved = self._attached.state_dict()
        if saved and state.is_world_process_zero:
            torch.save(saved, _checkpoint(args, state) / STATE)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Take the last readings, write the zeros and tell the score."""
        self._attached.finish(state.global_step)

    def _saved(self, args: TrainingArguments, state: TrainerState) -> dict[str, Any]:
        folder = _checkpoint(args, state) if self.resume_from is None else Path(self.resume_from)
        if not (folder / STATE).exists():
            raise OptionError(
                f"the checkpoint has no masks of {self.trial.label}: {folder / STATE} is missing",
                place="Trainer.train(resume_from_checkpoint=...)",
                hint="resume from a checkpoint that was written with this callback; resume_from= says where it is",
            )
        state_of_trial: dict[str, Any] = torch.load(folder / STATE, map_location=args.device, weights_only=True)
        return state_of_trial


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the folder that the Trainer writes its checkpoint of this step to."""
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
