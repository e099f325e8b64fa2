"""Example inputs: the user's own, a batch of the data, what is known of the model, or a guess that runs."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from einops.layers.torch import Rearrange
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from dst_analyze.errors import DataError, InputError, ModelError
from dst_analyze.model.inputs.infer import batch_inputs, find_example_inputs
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.loading import torchvision_compat
from dst_analyze.model.loading.load import LoadedModel, load_model

X = torch.arange(30.0).view(10, 3)
Y = torch.arange(10)


def loaded(model: nn.Module, **hooks: Any) -> LoadedModel:
    """A model as `load_model` gives it, with hooks that return these values."""
    file = {name: (lambda value=value: value) for name, value in hooks.items()}
    every = ("example_inputs", "train_data", "test_data", "loss", "optimizer")
    return LoadedModel(model, "spec", "net", None, **{name: file.get(name) for name in every})


def shapes(inputs: Inputs) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in inputs.tensors()]


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 4)

    def forward(self, left: torch.Tensor, right: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        return self.fc(left) * self.fc(right)


# --- the user's own ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "value", "args", "kwargs"),
    [
        (nn.Linear(3, 4), X, 1, []),
        (Pair(), (X, X), 2, []),
        (Pair(), {"right": X, "left": X}, 0, ["right", "left"]),
        (nn.Identity(), [X, X], 1, []),
    ],
)
def test_the_users_own_inputs_as_they_are(model: nn.Module, value: Any, args: int, kwargs: list[str]) -> None:
    inputs = find_example_inputs(loaded(model, example_inputs=value, train_data=torch.zeros(1)))
    assert (len(inputs.args), list(inputs.kwargs)) == (args, kwargs)
    assert all(torch.equal(tensor, X) for tensor in inputs.tensors())


def test_the_users_own_inputs_without_a_tensor() -> None:
    with pytest.raises(ModelError, match=r"example_inputs\(\) returned None without a tensor in it") as caught:
        find_example_inputs(LoadedModel(Pair(), "spec", "net", None, lambda: None, None, None, None, None))
    assert "torch.randn(2, 3, 32, 32)" in caught.value.hint
    assert caught.value.exit_code == 2


def test_the_users_own_inputs_follow_the_model_to_its_device() -> None:
    inputs = find_example_inputs(loaded(Pair().to("meta"), example_inputs=(X, X)))
    assert {tensor.device.type for tensor in inputs.tensors()} == {"meta"}


# --- the data ------------------------------------------------------------------------------------------------------


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from zip(X, Y, strict=True)


class Samples:
    """Indexed like a Dataset without being one."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return X[index], Y[index]


@pytest.mark.parametrize(
    "data",
    [
        X,
        X.double().numpy(),
        (X, Y),
        [X, Y],
        (X.numpy(), Y.numpy()),
        TensorDataset(X, Y),
        Samples(),
        Stream(),
        DataLoader(TensorDataset(X, Y), batch_size=5),
        DataLoader(TensorDataset(X, Y), batch_size=5, num_workers=2),
        DataLoader(Stream(), batch_size=5),
        DataLoader(TensorDataset(X, Y), batch_size=None, sampler=[[0, 1, 2], [3, 4, 5]]),
        [(X[:5], Y[:5]), (X[5:], Y[5:])],
        iter([(X[:5], Y[:5])]),
        {"input": X, "labels": Y},
        DataLoader([{"input": x, "labels": y} for x, y in zip(X, Y, strict=True)], batch_size=4),
    ],
    ids=lambda data: type(data).__name__,
)
def test_the_first_samples_of_any_data(data: Any) -> None:
    inputs = find_example_inputs(loaded(nn.Linear(3, 4), train_data=data))
    (tensor,) = inputs.tensors()
    assert torch.equal(tensor, X[:2])
    assert inputs.call(nn.Linear(3, 4)).shape == (2, 4)


def test_a_shuffled_loader_gives_real_samples_and_leaves_the_generator_alone() -> None:
    data = loaded(nn.Linear(3, 4), train_data=DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True))
    state = torch.get_rng_state()
    (tensor,) = find_example_inputs(data).tensors()
    assert tensor.shape == (2, 3)
    assert {tuple(row) for row in tensor.tolist()} < {tuple(row) for row in X.tolist()}
    assert torch.equal(torch.get_rng_state(), state)


def test_a_loader_with_its_own_collation_for_images_of_different_sizes() -> None:
    samples = [(torch.ones(3, size, size), {"boxes": torch.zeros(1, 4)}) for size in (8, 9, 10)]
    loader = DataLoader(samples, batch_size=3, collate_fn=lambda batch: tuple(zip(*batch, strict=True)))
    inputs = find_example_inputs(loaded(nn.Identity(), train_data=loader))
    assert len(inputs.args) == 1
    assert shapes(inputs) == [(3, 8, 8), (3, 9, 9)]


class Text(nn.Module):
    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **others: Any) -> Any:
        return input_ids


@pytest.mark.parametrize(
    ("model", "batch", "args", "kwargs"),
    [
        (nn.Linear(3, 4), X, (X,), {}),
        (nn.Linear(3, 4), (X, Y), (X,), {}),
        (nn.Linear(3, 4), (X, Y, Y), (X,), {}),
        (Pair(), (X, X + 1, Y), (X, X + 1), {}),
        (Pair(), ([X, X + 1], Y), (X, X + 1), {}),
        (Pair(), {"left": X, "right": X + 1, "labels": Y, "idx": Y}, (), {"left": X, "right": X + 1}),
        (Text(), {"input_ids": Y, "labels": Y, "idx": Y}, (), {"input_ids": Y}),
        (Text(), ({"input_ids": Y, "attention_mask": Y}, Y), (), {"input_ids": Y, "attention_mask": Y}),
        (nn.Linear(3, 4), {"image": X, "label": Y}, ({"image": X, "label": Y},), {}),
    ],
)
def test_the_part_of_a_batch_that_goes_into_the_model(
    model: nn.Module, batch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    torch.testing.assert_close(batch_inputs(batch, model).args, args)
    torch.testing.assert_close(dict(batch_inputs(batch, model).kwargs), kwargs)


class Broken(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        raise OSError(f"image {index} is gone")


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        ([], "train_data() is empty."),
        (iter([]), "train_data() is empty."),
        (DataLoader(TensorDataset(X[:0]), batch_size=2), "train_data() is empty."),
        (TensorDataset(X[:0]), "train_data() is empty."),
        (["text"], "A batch of train_data() is a str without a tensor for the model."),
        (3, "reading train_data() raised TypeError: 'int' object is not iterable"),
        (Broken(), "reading train_data() raised OSError: image 0 is gone"),
        (DataLoader(Broken(), num_workers=1), "reading train_data() raised OSError: image 0 is gone"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_data_that_cannot_be_read(data: Any, cause: str) -> None:
    with pytest.raises(DataError) as caught:
        find_example_inputs(loaded(nn.Linear(3, 4), train_data=data))
    assert caught.value.cause == cause
    assert caught.value.hint
    assert caught.value.exit_code == 2


# --- what is known of the model ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("resnet18", {}, [(2, 3, 224, 224)]),
        ("vit_b_16", {"image_size": 64}, [(2, 3, 64, 64)]),
        ("inception_v3", {}, [(2, 3, 299, 299)]),
        ("lraspp_mobilenet_v3_large", {}, [(2, 3, 224, 224)]),
        ("r3d_18", {}, [(2, 3, 16, 112, 112)]),
        ("mvit_v2_s", {}, [(2, 3, 16, 224, 224)]),
        ("raft_small", {}, [(2, 3, 128, 128)] * 2),
        ("fasterrcnn_mobilenet_v3_large_fpn", {}, [(3, 224, 224)] * 2),
    ],
)
def test_torchvision_on_meta(name: str, args: dict[str, Any], expected: list[tuple[int, ...]]) -> None:
    inputs = find_example_inputs(load_model(f"torchvision:{name}", model_args=args, device="meta"))
    assert shapes(inputs) == expected
    assert {tensor.device.type for tensor in inputs.tensors()} == {"meta"}


def test_torchvision_with_another_first_layer() -> None:
    model = torchvision_compat.torchvision_module().models.squeezenet1_1()
    model.features[0] = nn.Conv2d(1, 64, 3, stride=2)
    assert shapes(find_example_inputs(load_model(model))) == [(2, 1, 224, 224)]


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("resnet10t", {}, (2, 3, 176, 176)),
        ("resnet10t", {"in_chans": 5}, (2, 5, 176, 176)),
        ("vit_tiny_patch16_224", {"img_size": 96}, (2, 3, 96, 96)),
    ],
)
def test_timm_on_meta(name: str, args: dict[str, Any], expected: tuple[int, ...]) -> None:
    inputs = find_example_inputs(load_model(f"timm:{name}", model_args=args, device="meta"))
    assert shapes(inputs) == [expected]


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 11}
VISION = {"image_size": 32, "patch_size": 8, **SMALL}
WHISPER = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_source_positions": 20, "num_mel_bins": 7, "vocab_size": 11,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "config", "expected"),
    [
        ("BertModel", {"vocab_size": 11, "max_position_embeddings": 9, **SMALL}, {"input_ids": (2, 9)}),
        ("T5Model", T5, {"input_ids": (2, 16), "decoder_input_ids": (2, 16)}),
        ("ViTModel", {"num_channels": 1, **VISION}, {"pixel_values": (2, 1, 32, 32)}),
        ("WhisperModel", WHISPER, {"input_features": (2, 7, 40), "decoder_input_ids": (2, 16)}),
    ],
)
def test_transformers(kind: str, config: dict[str, Any], expected: dict[str, tuple[int, ...]]) -> None:
    torchvision_compat.make_importable()  # transformers imports torchvision
    transformers = pytest.importorskip("transformers")
    model = getattr(transformers, kind)(getattr(transformers, kind.replace("Model", "Config"))(**config))
    inputs = find_example_inputs(load_model(model))
    assert {name: tuple(value.shape) for name, value in inputs.kwargs.items()} == expected
    assert all(value.max() < 11 for name, value in inputs.kwargs.items() if name.endswith("ids"))


class WithDummies(nn.Module):
    """Its first layer says nothing that would help."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 5)

    @property
    def dummy_inputs(self) -> dict[str, torch.Tensor]:
        return {"sample": torch.ones(2, 7)}

    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        return self.fc(sample[:, 2:])


def test_a_model_that_brings_dummy_inputs() -> None:
    inputs = find_example_inputs(load_model(WithDummies()))
    assert list(inputs.kwargs) == ["sample"]
    assert torch.equal(inputs.kwargs["sample"], torch.ones(2, 7))


# --- guesses -------------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], batch_first: bool) -> None:
        super().__init__()
        self.rnn = kind(28, 8, batch_first=batch_first)
        self.fc = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.rnn(x)[0])


class Unpacks(nn.Module):
    """Wants images although its first layer is linear."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc = nn.Linear(channels * 64, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, _, _, _ = x.shape
        return self.fc(x.reshape(batch, -1))


class HeadFirst(nn.Module):
    """Defines its layers in another order than it calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.stem = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stem(x).mean((2, 3)))


class Positions(nn.Module):
    """Makes a tensor of its own in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(7, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.tokens(x) + torch.arange(x.shape[1])[:, None]


def flat(channels: int, side: int, layer: type[nn.Module] = nn.Conv2d) -> nn.Module:
    return nn.Sequential(layer(channels, 2, 1), nn.Flatten(), nn.Linear(2 * side, 3))


GUESSES = [
    (nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), (2, 784)),
    (nn.Sequential(nn.Linear(6, 8), nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)), (2, 6)),
    (nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)), (2, 3, 32, 32)),
    (nn.Conv2d(1, 4, 3), (2, 1, 28, 28)),
    *((flat(3, side * side), (2, 3, side, side)) for side in (8, 16, 28, 32, 64, 96)),
    (flat(2, 1024, nn.Conv1d), (2, 2, 1024)),
    (nn.Conv3d(2, 3, 3), (2, 2, 16, 32, 32)),
    (nn.ConvTranspose2d(100, 8, 4), (2, 100, 1, 1)),
    (Recurrent(nn.LSTM, True), (2, 16, 28)),
    (Recurrent(nn.GRU, False), (16, 2, 28)),
    (nn.GRUCell(5, 4), (2, 5)),
    (Positions(), (2, 16)),
    (nn.EmbeddingBag(9, 4), (2, 16)),
    (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1), (2, 16, 8)),
    (Unpacks(1), (2, 1, 8, 8)),
    (Unpacks(3), (2, 3, 8, 8)),
    (HeadFirst(), (2, 3, 32, 32)),
    (
        nn.Sequential(
            Rearrange("b c (h p) (w q) -> b (h w p q c)", p=8, q=8),
            nn.Unflatten(1, (-1, 192)),
            nn.Linear(192, 8),
            nn.Flatten(),
            nn.Linear(128, 3),
        ),
        (2, 3, 32, 32),
    ),
]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("model", "expected"), GUESSES)
def test_guesses_that_run(model: nn.Module, expected: tuple[int, ...], device: str) -> None:
    model = copy.deepcopy(model).to(device)
    first, again = (find_example_inputs(load_model(model)) for _ in range(2))
    assert shapes(first) == [expected]
    assert {tensor.device.type for tensor in first.tensors()} == {device}
    if device == "cpu":
        model(*first.args)
        assert torch.equal(first.args[0], again.args[0])


def test_several_arguments_get_one_input_each() -> None:
    left, right = find_example_inputs(load_model(Pair())).args
    assert left.shape == right.shape == (2, 3)
    assert not torch.equal(left, right)


def test_inputs_have_the_models_precision() -> None:
    assert find_example_inputs(load_model(nn.Linear(3, 4).double())).args[0].dtype == torch.float64
    assert find_example_inputs(load_model(nn.Linear(3, 4).bfloat16())).args[0].dtype == torch.bfloat16


class Restless(nn.Module):
    """Draws random numbers, writes to its buffers and to its input, and switches its parts' modes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 4)
        self.frozen = nn.BatchNorm1d(4).eval()
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("swapped", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not self.training
        assert not torch.is_grad_enabled()
        random.random(), np.random.rand()
        self.calls += 1
        self.swapped = self.swapped + 1
        self.register_buffer("new", torch.ones(1))
        self.frozen.train()
        return self.frozen(self.fc(x.fill_(0)) + torch.rand(4))


def test_a_trial_leaves_no_trace() -> None:
    model = Restless()
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    swapped = model.swapped
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    inputs = find_example_inputs(load_model(model))
    assert inputs.args[0].abs().sum() > 0
    assert (model.training, model.fc.training, model.frozen.training) == (True, True, False)
    torch.testing.assert_close(dict(model.state_dict()), kept, rtol=0, atol=0)
    assert model.swapped is swapped
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]
    assert torch.is_grad_enabled()


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_a_trial_does_not_shape_lazy_parameters() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(2))
    assert shapes(find_example_inputs(load_model(model))) == [(2, 3, 32, 32)]
    assert isinstance(model[2].weight, nn.parameter.UninitializedParameter)


def test_the_hint_for_a_packages_model_is_to_write_a_file() -> None:
    with pytest.raises(ModelError, match="No layer of") as caught:
        find_example_inputs(load_model("torch.nn:Identity"))
    assert caught.value.hint.startswith("define example_inputs() in a file that builds the model, ")


def test_a_guess_that_fails_says_what_was_tried(tmp_path: Path) -> None:
    path = tmp_path / "mymodel.py"
    path.write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.fc = nn.Linear(6, 4)\n"
        "    def forward(self, x):\n"
        "        return self.fc(x['features'])\n"
    )
    with pytest.raises(InputError) as caught:
        find_example_inputs(load_model(path))
    error = caught.value
    tried = "No inputs for mymodel could be guessed: tried float32[2, 6], float32[2, 16, 6]; the last failed with "
    assert error.cause.startswith(f"{tried}IndexError: ")
    assert error.place == f"{path}:7"
    assert error.trace.count(", in ") == 1
    assert error.hint.startswith("define example_inputs() in mymodel.py, for example")
    assert error.exit_code == 2


def test_a_model_without_hints_on_its_inputs() -> None:
    with pytest.raises(ModelError, match="No layer of ReLU shows what inputs the model takes") as caught:
        find_example_inputs(load_model(nn.ReLU()))
    assert "define example_inputs()" in caught.value.hint
