"""Data sets by name: small files of every kind on disk, and the errors of invalid ones."""

import gzip
import struct

import numpy as np
import pytest
import torch
from torch import nn

from dst_analyze.cli.main import main
from dst_analyze.errors import DataError, OptionError
from dst_analyze.model.loading.torchvision_compat import torchvision_module
from dst_analyze.sweep.data.batches import is_tensors
from dst_analyze.sweep.data.named_datasets import DataRequest, load_named_data, scaled
from dst_analyze.sweep.planning.plan import plan_sweep

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (40, 12, 12), dtype=np.uint8)
LABELS = np.arange(40, dtype=np.uint8) % 10


def npz(path, **arrays):
    np.savez(path / "some.npz", **arrays)
    return f"npz:{path / 'some.npz'}"


def mnist(root, count=40):
    """MNIST's own format: a magic number, the sizes, the bytes."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        images = struct.pack(">IIII", 0x803, count, 28, 28) + bytes(count * 28 * 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + bytes(range(10)) * 4)
    return root


def pictures(folder, classes=("cat", "dog"), count=5, size=(9, 7)):
    from PIL import Image

    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = RANDOM.integers(0, 256, (size[1] + number % 2, size[0], 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    "names",
    [
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("X", "Y", "X_val", "Y_val"),
        ("trainx", "trainy", "testx", "testy"),
        ("data", "target", "validation_data", "validation_target"),
    ],
)
def test_arrays_are_known_by_their_usual_names(tmp_path, names):
    parts = dict(zip(names, (IMAGES[:30], LABELS[:30], IMAGES[30:], LABELS[30:]), strict=True))
    source = load_named_data(DataRequest(npz(tmp_path, **parts, class_names=np.array(["a"]))))
    assert source.train[0].shape == (30, 1, 12, 12)
    assert torch.equal(source.test[1], torch.as_tensor(LABELS[30:]).long())
    assert "30 samples of 1x12x12 to train, 10 to test" in source.description


def test_one_set_is_split_the_same_way_every_time(tmp_path):
    name = npz(tmp_path, images=IMAGES, labels=LABELS)
    one, two = load_named_data(DataRequest(name)), load_named_data(DataRequest(name))
    assert torch.equal(one.train[0], two.train[0])
    assert (len(one.train[1]), len(one.test[1])) == (32, 8)
    both = torch.cat([one.train[0], one.test[0]])
    assert sorted(map(int, both.flatten(1).float().sum(1))) == sorted(map(int, IMAGES.reshape(40, -1).sum(1)))


def test_channels_come_first_and_labels_are_flat(tmp_path):
    colour = RANDOM.integers(0, 256, (10, 8, 9, 3), dtype=np.uint8)
    source = load_named_data(DataRequest(npz(tmp_path, x=colour, y=LABELS[:10, None])))
    assert source.train[0].shape == (8, 3, 8, 9)
    assert source.train[1].shape == (8,)
    regression = load_named_data(DataRequest(npz(tmp_path, x=RANDOM.normal(size=(10, 5)), y=RANDOM.normal(size=10))))
    assert regression.train[0].dtype == regression.train[1].dtype == torch.float32
    flat = load_named_data(DataRequest(npz(tmp_path, x=IMAGES, y=LABELS), like=(144,)))
    assert flat.train[0].shape == (32, 144)


def test_bytes_become_numbers_from_0_to_1_in_the_plan(tmp_path):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(400, 10))
    plan = plan_sweep(model, npz(tmp_path, x=IMAGES, y=LABELS), batch_size=16, out=tmp_path / "run")
    batch = next(plan.task.train_data.once())
    assert batch[0].shape == (16, 1, 12, 12)
    assert 0.9 < batch[0].max() <= 1
    assert plan.manifest.data.score == "accuracy"
    assert not plan.manifest.data.stand_in
    assert plan.task.config.data == plan.manifest.data.description


def test_torchvision_reads_mnist_from_its_folder(tmp_path):
    source = load_named_data(DataRequest("MNIST", mnist(tmp_path)))
    assert source.train[0].shape == (40, 1, 28, 28)
    assert source.test[1].tolist() == list(range(10)) * 4
    model = nn.Sequential(nn.Linear(784, 10))
    plan = plan_sweep(model, "mnist", data_root=tmp_path, out=tmp_path / "run")
    assert next(plan.task.train_data.once())[0].shape == (40, 784)


def test_images_in_folders(tmp_path):
    pictures(tmp_path / "both" / "train")
    pictures(tmp_path / "both" / "val", count=2)
    source = load_named_data(DataRequest(f"imagefolder:{tmp_path / 'both'}", like=(1, 6, 6)))
    assert (source.train[0].shape, source.test[0].shape) == ((10, 1, 6, 6), (4, 1, 6, 6))
    assert source.train[1].tolist() == [0] * 5 + [1] * 5
    one = load_named_data(DataRequest(f"imagefolder:{pictures(tmp_path / 'one')}"))
    assert (one.train[0].shape, one.test[0].shape) == ((8, 3, 7, 9), (2, 3, 7, 9))
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    plan = plan_sweep(model, f"imagefolder:{tmp_path / 'one'}", batch_size=4, out=tmp_path / "run")
    assert plan.manifest.data.score == "accuracy"


def test_small_image_folders_are_decoded_once_and_hold_what_large_ones_give(tmp_path, monkeypatch):
    request = DataRequest(f"imagefolder:{pictures(tmp_path / 'one')}", like=(3, 12, 12))
    kept = load_named_data(request)
    monkeypatch.setattr("dst_analyze.sweep.data.named_datasets._KEPT_BYTES", 10 * 3 * 12 * 12 - 1)
    lazy = load_named_data(request)
    for tensors, images in ((kept.train, lazy.train), (kept.test, lazy.test)):
        assert is_tensors(tensors)
        assert not is_tensors(images)
        pixels, labels = scaled(tensors)
        assert [label for _, label in images] == labels.tolist()
        assert torch.equal(torch.stack([image for image, _ in images]), pixels)
        assert 0 <= pixels.min() < pixels.max() <= 1


def test_an_image_that_cannot_be_read_is_named(tmp_path):
    broken = pictures(tmp_path / "one") / "dog" / "broken.png"
    broken.write_bytes(b"no picture")
    with pytest.raises(DataError, match="cannot be read as an image") as error:
        load_named_data(DataRequest(f"imagefolder:{tmp_path / 'one'}"))
    assert error.value.place == str(broken)


def test_digits_by_name_are_no_stand_in(tmp_path):
    plan = plan_sweep(nn.Sequential(nn.Linear(64, 10)), "digits", out=tmp_path / "run")
    assert "handwritten digits" in plan.manifest.data.description
    assert not plan.manifest.data.stand_in
    assert plan.task.config.data == "digits"


@pytest.mark.parametrize(
    ("name", "cause", "hint"),
    [
        ("npz:nowhere.npz", "there is no 'nowhere.npz'", "npz:PATH"),
        ("npz:", "there is no", "npz:PATH"),
        ("npz:text.npz", "cannot be read as npz", ""),
        ("npz:strange.npz", "no inputs and targets were recognised among its arrays: foo, bar", "x and y"),
        ("npz:uneven.npz", "40 inputs and 39 targets", ""),
        ("imagefolder:empty", "no images by class", "one folder per class"),
        ("mnist", "MNIST is missing or incomplete", "--download"),
        ("cifar10", "CIFAR10 is missing or incomplete", "--download"),
        ("svhn", "SVHN is missing or incomplete", "--data-root"),
        ("mnits", "no data called 'mnits'", "did you mean mnist"),
        ("zzz", "no data called 'zzz'", "npz:PATH, imagefolder:PATH, mnist"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, monkeypatch, name, cause, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.npz").write_text("not an archive")
    np.savez(tmp_path / "strange.npz", foo=IMAGES, bar=LABELS)
    np.savez(tmp_path / "uneven.npz", x_train=IMAGES, y_train=LABELS[:39], x_test=IMAGES, y_test=LABELS)
    with pytest.raises(DataError, match=cause) as error:
        load_named_data(DataRequest(name))
    assert hint in error.value.hint
    assert error.value.place


def test_a_pickle_in_an_npz_is_never_opened(tmp_path):
    with pytest.raises(DataError, match="cannot be read as npz"):
        load_named_data(DataRequest(npz(tmp_path, x=np.array([{}], dtype=object), y=LABELS[:1])))


def test_a_truncated_file_and_classes_that_differ(tmp_path):
    mnist(tmp_path)
    (tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte").write_bytes(gzip.compress(b"not it"))
    with pytest.raises(DataError, match="incomplete"):
        load_named_data(DataRequest("mnist", tmp_path))
    pictures(tmp_path / "a" / "train")
    pictures(tmp_path / "a" / "test", classes=("cat", "cow"))
    with pytest.raises(DataError, match="cat, dog, test has cat, cow"):
        load_named_data(DataRequest(f"imagefolder:{tmp_path / 'a'}"))


def test_download_is_for_data_sets_only(tmp_path, monkeypatch):
    with pytest.raises(OptionError, match="no effect"):
        load_named_data(DataRequest(npz(tmp_path, x=IMAGES, y=LABELS), download=True))
    # Nowhere to download from: no test may depend on a network.
    monkeypatch.setattr(torchvision_module().datasets.MNIST, "mirrors", [])
    with pytest.raises(DataError, match="MNIST could not be downloaded"):
        load_named_data(DataRequest("mnist", tmp_path, download=True))


def test_data_that_do_not_fit_the_model_are_said_with_both_shapes(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(3600, 10))
    with pytest.raises(DataError, match="do not fit the model") as error:
        plan_sweep(model, npz(tmp_path, x=IMAGES, y=LABELS), out=tmp_path / "run")
    assert "uint8" not in error.value.hint
    assert "float32[32, 1, 12, 12]" in error.value.hint
    assert "[3, 32, 32]" in error.value.hint


def test_from_the_command_line(tmp_path, monkeypatch, capsys, inline):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text("from torch import nn\nmodel = nn.Sequential(nn.Flatten(), nn.Linear(144, 10))\n")
    data = npz(tmp_path, x=IMAGES, y=LABELS)
    options = [
        "--alphas",
        "1e-9",
        "--steps",
        "4",
        "--optimizer",
        "sgd",
        "--schedule",
        "cosine",
        "--threshold-clock",
        "1",
    ]
    assert main(["m.py", "--data", data, *options, "--out", "run", "-v"]) == 0
    captured = capsys.readouterr()
    assert "! In 4 steps alpha 1e-9 cannot prune" in captured.err
    assert captured.err.index("cannot prune") < captured.err.index("dense, seed 0")
    assert "! Before training: In 4 steps" in captured.out
    assert "on cpu; thresholds learn at the rate of the weights" in captured.err
    page = (tmp_path / "run" / "report.html").read_text()
    assert "cannot prune" in page
    assert "as in the paper" in page
    assert "arrays x, y" in page
    assert main(["m.py", "--data", "mnits"]) == 2
    assert "did you mean mnist" in capsys.readouterr().err
