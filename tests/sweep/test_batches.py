"""Batches from every accepted form of data, and the stand-in digits."""

from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from dst_analyze.errors import DataError, OptionError
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.sweep.data.batches import SCORED_AT_MOST, as_batches, first_batch
from dst_analyze.sweep.data.digits import fit, fitted_digits, load_digits
from dst_analyze.sweep.training.objective import Objective, is_classification, main_output, split_batch

X, Y = torch.arange(20.0).view(10, 2), torch.arange(10) % 3


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class Duck:
    """A data set by behaviour, as other libraries have them."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return X[index], Y[index]


FORMS = {
    "tensors": (X, Y),
    "list of tensors": [X, Y],
    "arrays": (X.double().numpy(), Y.numpy()),
    "dict of tensors": {"x": X, "y": Y},
    "data set": TensorDataset(X, Y),
    "duck": Duck(),
    "stream": Stream(),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_every_sample_once_per_epoch(form):
    batches = as_batches(FORMS[form], place="train_data()", batch_size=5)
    seen = []
    for batch in batches.once():
        parts = list(batch.values()) if isinstance(batch, dict) else batch
        assert parts[0].shape == (5, 2)
        assert parts[0].dtype == torch.float32
        seen += parts[0][:, 0].tolist()
    assert sorted(seen) == X[:, 0].tolist()
    assert batches.per_epoch in (2, None)


@pytest.mark.parametrize("form", ["tensors", "data set"])
def test_the_seed_decides_the_order(form):
    batches = as_batches(FORMS[form], place="", batch_size=5)

    def order(seed):
        return torch.cat([batch[0][:, 0] for batch in islice(batches.stream(seed), 4)]).tolist()

    first = order(0)
    assert order(1) != first
    assert order(0) == first
    assert sorted(first[:10]) == X[:, 0].tolist()
    assert first[:10] != first[10:]


def test_a_loaders_own_generator_starts_anew_for_each_trial():
    generator = torch.Generator()
    batches = as_batches(DataLoader(TensorDataset(X), batch_size=5, shuffle=True, generator=generator), place="")
    orders = [torch.cat([b[0] for b in islice(batches.stream(3), 2)]) for _ in range(2)]
    assert torch.equal(*orders)


@pytest.mark.parametrize("size", [3, 9])
def test_a_trailing_batch_of_one_is_left_out_of_training_only(size):
    for data in ((X, Y), TensorDataset(X, Y)):
        batches = as_batches(data, place="", batch_size=size)
        assert all(len(batch[0]) > 1 for batch in islice(batches.stream(0), 12))
        assert sum(len(batch[0]) for batch in batches.once()) == 10
    assert as_batches((X, Y), place="", batch_size=size).per_epoch == 9 // size


def test_batches_of_one_by_intent_are_kept():
    batches = as_batches((X, Y), place="", batch_size=1)
    assert batches.per_epoch == 10
    assert len(next(batches.stream(0))[0]) == 1


def test_a_loader_that_gives_no_more_batches_is_an_error():
    class Once:
        def __init__(self):
            self.left = [X]

        def __iter__(self):
            while self.left:
                yield self.left.pop()

    with pytest.raises(DataError, match="no more batches"):
        list(islice(as_batches(Once(), place="").stream(0), 3))


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ((X, Y[:5]), "different lengths"),
        ((X[:0], Y[:0]), "empty"),
        (TensorDataset(X[:0]), "empty"),
        (iter([]), "no batches"),
        ("mnist", "not data"),
        (None, "not data"),
        (7, "not data"),
    ],
)
def test_what_is_not_data_is_refused(value, cause):
    with pytest.raises(DataError, match=cause) as error:
        as_batches(value, place="train_data() of m.py")
    assert error.value.place == "train_data() of m.py"


class Stored(IterableDataset):
    """A data set around one generator: a second reading goes on where the first stopped."""

    def __init__(self):
        self.samples = iter(zip(X, Y, strict=True))

    def __iter__(self):
        return self.samples


ONE_SHOT = {
    "generator": lambda: ((X[i : i + 5], Y[i : i + 5]) for i in (0, 5)),
    "zip": lambda: zip(X.split(5), Y.split(5), strict=True),
    "loader": lambda: DataLoader(Stored(), batch_size=5),
}


@pytest.mark.parametrize("form", ONE_SHOT)
def test_what_can_be_read_only_once_is_kept(form):
    batches = as_batches(ONE_SHOT[form](), place="")
    assert batches.per_epoch == 2
    assert "2 batches, all there are, kept in memory" in batches.describe()
    for _ in range(2):
        assert torch.equal(torch.cat([batch[0] for batch in batches.once()]), X)
        assert len(list(islice(batches.stream(0), 7))) == 7


def test_of_an_endless_generator_as_much_is_kept_as_training_needs():
    def endless():
        while True:
            yield X, Y

    batches = as_batches(endless(), place="", needed=12)
    assert batches.per_epoch == 12
    assert "12 batches, kept in memory as a generator" in batches.describe()


def test_an_endless_loader_is_scored_on_a_part():
    class Endless:
        def __iter__(self):
            while True:
                yield X, Y

    batches = as_batches(Endless(), place="")
    assert batches.per_epoch is None
    assert len(list(batches.once())) == SCORED_AT_MOST
    assert len(list(islice(batches.stream(0), SCORED_AT_MOST + 5))) == SCORED_AT_MOST + 5


def test_the_target_in_a_dict_and_the_models_own_loss():
    class Net(nn.Module):
        def forward(self, x):
            return x

    scores = torch.randn(10, 3)
    batch = {"x": scores, "label": Y}
    objective = Objective(Net(), accuracy=True)
    assert split_batch(batch, Net())[0].kwargs.keys() == {"x"}
    assert torch.equal(objective.loss(scores, batch), nn.functional.cross_entropy(scores, Y))
    assert objective.hits(scores, batch)[1] == 10
    own = scores.mean()
    assert Objective(Two()).loss({"loss": own, "logits": scores}, {"a": X, "b": X, "labels": Y}) is own
    nested = ({"x": scores}, Y)
    assert split_batch(nested, Net())[0].kwargs["x"] is scores
    assert split_batch(nested, Net())[1] is Y


def test_an_empty_loader_is_refused():
    with pytest.raises(DataError, match="no batches"):
        first_batch(as_batches(DataLoader(TensorDataset(X), batch_size=64, drop_last=True), place=""), place="")


def test_a_batch_size_for_batches_is_refused():
    with pytest.raises(OptionError, match="batches already"):
        as_batches(DataLoader(TensorDataset(X)), place="", batch_size=4)


class Two(nn.Module):
    def forward(self, a, b, labels=None):
        return a + b


def test_batches_become_arguments_and_target():
    one, two = nn.Linear(2, 3), Two()
    assert split_batch((X, Y), one)[0].args == (X,)
    assert split_batch([X, Y], one)[1] is Y
    assert split_batch(X, one)[1] is None
    inputs, target = split_batch((X, X, Y), two)
    assert len(inputs.args) == 2
    assert target is Y
    inputs, target = split_batch({"a": X, "b": X, "labels": Y, "id": Y}, two)
    assert set(inputs.kwargs) == {"a", "b", "labels"}
    assert split_batch({"x": X}, two)[0].args == ({"x": X},)


def test_the_loss_follows_the_target():
    scores = torch.randn(10, 3)
    objective = Objective(nn.Linear(2, 3), accuracy=True)
    assert torch.equal(objective.loss(scores, (X, Y)), nn.functional.cross_entropy(scores, Y))
    column = torch.randn(10, 1)
    assert torch.equal(objective.loss(column, (X, X[:, 0])), nn.functional.mse_loss(column[:, 0], X[:, 0]))
    assert torch.equal(objective.loss({"out": scores, "aux": X}, (X, Y)), objective.loss(scores, (X, Y)))
    assert Objective(nn.Linear(2, 3), lambda outputs, batch: batch["x"]).loss(scores, {"x": 7}) == 7
    with pytest.raises(DataError, match="no loss is known"):
        objective.loss(scores, X)
    with pytest.raises(DataError, match="cannot be compared"):
        objective.loss(scores, (X, X[:, 0]))


def test_sequences_have_their_classes_last():
    scores, target = torch.randn(4, 7, 5), torch.randint(5, (4, 7))
    objective = Objective(nn.Linear(1, 5), accuracy=True)
    expected = nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())
    assert torch.allclose(objective.loss(scores, (X, target)), expected)
    target[0] = -100
    assert objective.hits(scores, (X, target))[1] == 21
    assert is_classification(scores, target)
    assert not is_classification(scores, target.float())
    assert not is_classification(scores, target[0])


def test_the_main_output_is_found():
    assert main_output((X, Y)) is X
    assert main_output({"logits": X, "loss": Y}) is X
    assert main_output([(X,), Y]) is X


def test_digits_are_images_between_0_and_1():
    images, labels = load_digits()
    assert images.shape == (1797, 1, 8, 8)
    assert images.min() == 0
    assert images.max() == 1
    assert set(labels.tolist()) == set(range(10))
    assert torch.equal(load_digits()[0], images)


@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (3, 32, 32), (1, 28, 20), (2, 4, 16, 16), (28, 28), (5, 9), (64,), (784,), (3072,), (13,)]
)
def test_digits_take_the_models_shape(shape):
    images = load_digits()[0][:6]
    fitted = fit(images, shape)
    assert fitted.shape == (6, *shape)
    assert fitted.min() >= 0
    assert fitted.max() <= 1.0001
    assert len({tuple(row.flatten().tolist()) for row in fitted}) == 6
    if np.prod(shape) == 64:
        assert torch.equal(fitted.flatten(), images.flatten())


def test_few_classes_use_few_digits():
    digits = fitted_digits(Inputs((torch.zeros(2, 64),)), torch.zeros(2, 4))
    labels = torch.cat([digits.train.tensors[1], digits.test.tensors[1]])
    assert set(labels.tolist()) == {0, 1, 2, 3}
    assert "below 4" in digits.description
    batch = next(digits.train.stream(0))
    assert batch[0].shape == (64, 64)


@pytest.mark.parametrize(
    ("inputs", "outputs", "cause"),
    [
        (Inputs((torch.zeros(2, 5, dtype=torch.long),)), torch.zeros(2, 4), "int64"),
        (Inputs((X, X)), torch.zeros(2, 4), "do not fit"),
        (Inputs((X,)), torch.zeros(2, 1), "class scores"),
        (Inputs((X,)), torch.zeros(2, 3, 8, 8), "class scores"),
        (Inputs((X,)), "text", "class scores"),
    ],
)
def test_a_model_that_digits_do_not_fit_is_refused_with_a_hint(inputs, outputs, cause):
    with pytest.raises(DataError, match=cause) as error:
        fitted_digits(inputs, outputs)
    assert "train_data()" in error.value.hint


def test_a_dataset_class_of_the_user_is_a_dataset():
    class Mine(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return {"x": X[index]}

    assert first_batch(as_batches(Mine(), place=""), place="")["x"].shape == (4, 2)
