"""A trial of a `Study` in Lightning's Trainer, by a callback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch

from dst_analyze.errors import ModelError, OptionError
from dst_analyze.integrations.attached_trial import AttachedTrial, Trial
from dst_analyze.model.loading.torchvision_compat import make_importable

make_importable()  # the guest imports torchvision
try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "lightning":
        raise
    raise OptionError(
        "Lightning is not installed", place=__name__, hint="pip install 'dst-analyze[lightning]'"
    ) from None


class RedundancyCallback(Callback):  # type: ignore[misc]
    """Attaches a trial when ``fit`` starts, and tells its score when it ends.

    The masks are on the LightningModule from the start of ``fit`` to its end, then their zeros are written into its
    weights. Lightning's checkpoints carry them, and ``fit(ckpt_path=...)`` goes on from there.

    Args:
        trial: What `Study` asks for.
        monitor: The score, as the module logs it in validation.
        mode: "max" if a higher score is better, "min" if it is a loss or an error.
        example_inputs: What ``forward`` takes; the module's ``example_input_array`` by default.
        methods: Methods beside ``forward`` that the Trainer calls while it fits.
        loss: The loss as the module logs it in validation; used if it is logged.

    Example:
        >>> import dst_analyze as dst
        >>> from dst_analyze.integrations.lightning import RedundancyCallback
        >>> for trial in dst.Study("reports/mine", alphas=(1e-6, 1e-5)):  # doctest: +SKIP
        ...     module = MyLightningModule()
        ...     Trainer(max_epochs=3, callbacks=[RedundancyCallback(trial, "val_acc")]).fit(module)
    """

    def __init__(
        self,
        trial: Trial,
        monitor: str = "val_acc",
        *,
        mode: Literal["max", "min"] = "max",
        example_inputs: Any = None,
        methods: Sequence[str] = ("training_step", "validation_step"),
        loss: str = "val_loss",
    ) -> None:
        if mode not in ("max", "min"):
            raise OptionError(f"unknown mode {mode!r}", place="RedundancyCallback", hint="choose max or min")
        self.trial, self.example_inputs, self.methods = trial, example_inputs, tuple(methods)
        self._attached = AttachedTrial(trial, monitor, loss, higher_is_better=mode == "max")
        self._resumed: dict[str, Any] | None = None
        self._losses: list[torch.Tensor] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remember the weights that training starts from, before a checkpoint replaces them."""
        self._resumed = None
        if stage == "fit":  # whether there is a checkpoint is not known yet
            self._attached.remember(pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Return what Lightning's checkpoint keeps of the trial."""
        return self._attached.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep a checkpoint's state until the trial is attached."""
        self._resumed = state_dict or None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the trial."""
        inputs = self.example_inputs
        if inputs is None:
            inputs = pl_module.example_input_array
        if inputs is None:
            raise ModelError(
                f"what {type(pl_module).__name__}.forward takes is not known",
                place="RedundancyCallback",
                hint="set self.example_input_array in the module, or give example_inputs=",
            )
        if trainer.ckpt_path is not None and self._resumed is None:
            raise OptionError(
                f"the checkpoint has no masks of {self.trial.label}",
                place="Trainer.fit(ckpt_path=...)",
                hint="resume from a checkpoint that was written with this callback, before the training ended",
            )
        self._attached.attach(pl_module, inputs, trainer.optimizers, self.methods, resumed=self._resumed)
        self._resumed = None

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        """Note a loss; under gradient accumulation a step has several, each divided by their number."""
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._losses.append(loss.detach() if scaler is None else loss.detach() / scaler.get_scale())

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Log the step's loss with the trial."""
        if self._losses:
            self.trial.log(float(torch.stack(self._losses).sum()))
            self._losses.clear()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the score from a validation while fitting, or after it."""
        if not trainer.sanity_checking:
            self._attached.measure(trainer.global_step, trainer.callback_metrics)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the last readings, write the zeros and tell the score."""
        self._attached.finish(trainer.global_step)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do so too where a checkpoint was resumed after which nothing is left to train."""
        self._attached.finish(trainer.global_step)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the model back as it is."""
        self._attached.abandon()
