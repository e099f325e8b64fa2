"""Loading a user's model: every form of spec, every hook, and every way it can fail."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from dst_analyze.cli.model_args import parse_model_args
from dst_analyze.errors import DataError, DstError, ModelError, OptionError
from dst_analyze.model.loading.load import LoadedModel, load_model

NET = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, width=4):
            super().__init__()
            self.fc = nn.Linear(3, width)

        def forward(self, x):
            return self.fc(x)
"""

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a user's file below the current folder, which is this test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "dont_write_bytecode", False)  # as it is for most users

    def writer(text: str, name: str = "mymodel.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path

    return writer


def width(loaded: LoadedModel) -> int:
    return int(loaded.model.fc.out_features)


# --- specs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "spec", "args", "expected", "name"),
    [
        ("", "mymodel.py", {}, 4, "mymodel"),
        ("", "mymodel.py", {"width": 9}, 9, "mymodel"),
        ("", "mymodel.py:Net", {"width": 9}, 9, "mymodel-Net"),
        ("def build_model():\n    return Net(5)\nmodel = Net(6)", "mymodel.py", {}, 5, "mymodel"),
        ("build_model = 3\nmodel = Net(6)", "mymodel.py", {}, 6, "mymodel"),
        ("def model(n=7):\n    return Net(n)", "mymodel.py", {}, 7, "mymodel"),
        ("def model(n):\n    return Net(n)", "mymodel.py", {"n": 8}, 8, "mymodel"),
        ("import os as model", "mymodel.py", {}, 4, "mymodel"),
        ("small = Net(2)", "mymodel.py:small", {}, 2, "mymodel-small"),
        ("from functools import partial\nwide = partial(Net, 64)", "mymodel.py:wide", {}, 64, "mymodel-wide"),
        ("class zoo:\n    small = Net(2)", "mymodel.py:zoo.small", {}, 2, "mymodel-zoo.small"),
        ("class _Block(Net):\n    pass\nfrom torch.nn import ReLU\nAlias = Net", "mymodel.py", {}, 4, "mymodel"),
        (
            "class Deep(Net):\n    def __init__(self, depth):\n        super().__init__(depth)",
            "mymodel.py",
            {},
            4,
            "mymodel",
        ),
        (
            "class Deep(Net):\n    def __init__(self, depth):\n        super().__init__(depth)",
            "mymodel.py",
            {"depth": 3},
            3,
            "mymodel",
        ),
        ("", "mymodel", {}, 4, "mymodel"),
        ("", "mymodel:Net", {"width": 1}, 1, "mymodel-Net"),
    ],
)
def test_what_a_spec_leads_to(
    write: Write, extra: str, spec: str, args: dict[str, Any], expected: int, name: str
) -> None:
    sys.modules.pop("mymodel", None)
    write(dedent(NET) + extra)
    loaded = load_model(spec, model_args=args)
    assert width(loaded) == expected
    assert (loaded.spec, loaded.name) == (spec, name)


def test_a_file_in_another_folder_and_an_absolute_path(write: Write) -> None:
    path = write(NET, "some folder/my net.py")
    for spec in ("some folder/my net.py", path, f"{path}:Net"):
        loaded = load_model(spec)
        assert (width(loaded), loaded.file, loaded.spec) == (4, path, str(spec))
        assert re.fullmatch(r"my-net(-Net)?", loaded.name)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (r"C:\models\net.py", r"C:\models\net.py"),
        (r"C:\models\net.py:Net", r"C:\models\net.py"),
        ("C:/models/net.py:Net", "C:/models/net.py"),
        ("C:net.py", "C:net.py"),
    ],
)
def test_a_drive_is_not_taken_for_a_module(write: Write, spec: str, path: str) -> None:
    """On this system such a file does not exist: the error shows what was taken for its path."""
    error = failure(spec)
    assert error.cause == f"There is no file {path}."


def test_a_package_with_relative_imports_and_without_init(write: Write) -> None:
    write(NET, "plain_pkg/nets.py")
    write(
        "from .nets import Net\ndef factory(width=5):\n    return Net(width)\ntrain_data = [1]", "plain_pkg/builds.py"
    )
    loaded = load_model("plain_pkg.builds:factory", model_args={"width": 6})
    assert (width(loaded), loaded.name) == (6, "builds-factory")
    assert loaded.file == Path("plain_pkg/builds.py").resolve()
    assert loaded.train_data is not None
    assert loaded.train_data() == [1]


def test_a_module_that_is_installed(write: Write) -> None:
    loaded = load_model("torch.nn:Linear", model_args={"in_features": 2, "out_features": 3})
    assert isinstance(loaded.model, nn.Linear)
    assert loaded.name == "nn-Linear"


def test_objects_for_notebooks() -> None:
    model = nn.Linear(2, 3)
    loaded = load_model(model)
    assert loaded.model is model
    assert (loaded.name, loaded.file, loaded.train_data) == ("Linear", None, None)
    assert load_model(nn.Identity).name == "Identity"
    built = load_model(lambda n: nn.Linear(n, 1), model_args={"n": 5})
    assert (built.model.in_features, built.name) == (5, "lambda")


def test_torchvision_by_name_without_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", lambda *_, **__: pytest.fail("a download"))
    loaded = load_model("torchvision:resnet18", model_args={"num_classes": 3}, device="meta")
    assert (loaded.name, loaded.model.fc.out_features) == ("resnet18", 3)
    for name in ("fcn_resnet50", "fasterrcnn_mobilenet_v3_large_fpn", "r3d_18", "googlenet"):
        assert load_model(f"torchvision:{name}", device="meta").name == name


def test_timm_by_name() -> None:
    loaded = load_model("timm:resnet10t", model_args={"num_classes": 7}, device="meta")
    assert (loaded.name, loaded.file, loaded.model.fc.weight.shape[0]) == ("resnet10t", None, 7)
    assert loaded.model.fc.weight.device.type == "meta"


# --- the user's module ---------------------------------------------------------------------------------------------


def test_each_load_has_its_own_state_and_all_pickle(write: Write) -> None:
    write(dedent(NET) + "calls = []\ndef build_model():\n    calls.append(1)\n    return Net(len(calls))")
    first, second = load_model("mymodel.py"), load_model("mymodel.py")
    assert width(first) == width(second) == 1
    assert type(first.model) is not type(second.model)
    for loaded in (first, second):
        assert type(pickle.loads(pickle.dumps(loaded.model))) is type(loaded.model)


def test_a_model_pickled_here_is_read_by_a_process_that_loaded_the_same_file(write: Write, tmp_path: Path) -> None:
    path = write(NET)
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(load_model(path)))
    script = (
        "import pickle; from dst_analyze.model.loading.load import load_model; load_model('mymodel.py');"
        "print(pickle.load(open('model.pickle', 'rb')).model.fc.out_features)"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "4", done.stderr


def test_an_edit_within_the_same_second_is_seen_and_no_bytecode_is_left(write: Write) -> None:
    write("size = 3", "sizes.py")
    path = write(dedent(NET) + "import sizes\nmodel = Net(sizes.size * 1)")
    assert width(load_model(path)) == 3
    before = path.stat()
    write(dedent(NET) + "import sizes\nmodel = Net(sizes.size * 2)")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert width(load_model(path)) == 6
    assert not list(path.parent.rglob("__pycache__"))


def test_siblings_of_the_same_name_in_two_folders_are_not_mixed_up(write: Write) -> None:
    for folder, size in (("one", 1), ("two", 2)):
        write(f"size = {size}", f"{folder}/sizes.py")
        write(dedent(NET) + "import sizes\nmodel = Net(sizes.size)", f"{folder}/mymodel.py")
        write(f"sizes = {size}", f"{folder}/pkg_of_sizes/inner.py")
        write(dedent(NET) + "from pkg_of_sizes.inner import sizes\nmodel = Net(10 * sizes)", f"{folder}/second.py")
    specs = ("one/mymodel.py", "two/mymodel.py", "one/mymodel.py", "one/second.py", "two/second.py", "one/second.py")
    assert [width(load_model(spec)) for spec in specs] == [1, 2, 1, 10, 20, 10]
    assert sys.path.count(str(Path("one").resolve())) == 1


def test_hooks_may_import_siblings_late(write: Write) -> None:
    write("value = 41", "late_sibling.py")
    loaded = load_model(
        write(dedent(NET) + "def example_inputs():\n    import late_sibling\n    return late_sibling.value")
    )
    assert loaded.example_inputs is not None
    assert loaded.example_inputs() == 41
    assert not list(Path.cwd().rglob("__pycache__"))


# --- devices -------------------------------------------------------------------------------------------------------


def test_on_meta_a_class_takes_no_memory_and_the_data_stay_real(write: Write) -> None:
    write(
        """
        import torch
        from torch import nn
        data = torch.ones(5)
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(200_000, 100_000)  # 80 GB
                self.register_buffer("scale", torch.ones(3, device="cpu"))
        def train_data():
            return data
        """
    )
    loaded = load_model("mymodel.py", device="meta")
    assert {tensor.device.type for tensor in loaded.model.state_dict().values()} == {"meta"}
    assert loaded.train_data is not None
    assert loaded.train_data().sum() == 5


def test_what_cannot_be_built_on_meta_is_built_for_real_in_a_fresh_module(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        dedent(NET)
        + dedent("""
        seen = []
        def build_model():
            seen.append(1)
            return Net(int(torch.ones(1).sum().item()) + len(seen))
        """)
    )
    loaded = load_model("mymodel.py", device="meta")
    assert width(loaded) == 2
    assert loaded.model.fc.weight.device.type == "cpu"
    assert capsys.readouterr() == ("", "")


def test_a_model_built_already_is_not_moved(write: Write) -> None:
    write(dedent(NET) + "model = Net()")
    assert load_model("mymodel.py", device="meta").model.fc.weight.device.type == "cpu"


# --- hooks ---------------------------------------------------------------------------------------------------------

HOOKS = dedent(NET) + dedent("""
    from torch.utils.data import DataLoader, TensorDataset
    import torch.nn.functional as F
    def example_inputs():
        return torch.zeros(1, 3)
    def train_data():
        return DataLoader(TensorDataset(torch.ones(4, 3)))
    test_data = DataLoader(TensorDataset(torch.ones(2, 3)))
    def loss(outputs, batch):
        return F.mse_loss(outputs, batch[1])
    def optimizer(parameters):
        return torch.optim.SGD(parameters, lr=0.5)
""")


def test_hooks_are_found_not_called_and_work(write: Write) -> None:
    write(HOOKS)
    loaded = load_model("mymodel.py:Net")
    assert loaded.example_inputs is not None
    assert loaded.train_data is not None
    assert loaded.test_data is not None
    assert loaded.loss is not None
    assert loaded.optimizer is not None
    assert torch.equal(loaded.example_inputs(), torch.zeros(1, 3))
    assert len(loaded.train_data()) == 4
    assert len(loaded.test_data()) == 2
    assert loaded.loss(torch.ones(2), (None, torch.zeros(2))) == 1
    assert loaded.optimizer(loaded.model.parameters()).defaults["lr"] == 0.5
    copy = pickle.loads(pickle.dumps(loaded))
    assert len(copy.train_data()) == 4


def test_hooks_that_are_not_there(write: Write) -> None:
    write(dedent(NET) + "import os as loss\nimport sys as train_data\ntest_data = None")
    loaded = load_model("mymodel.py")
    assert {loaded.example_inputs, loaded.train_data, loaded.test_data, loaded.loss, loaded.optimizer} == {None}


@pytest.mark.parametrize(
    "value", ["torch.ones(4, 3)", "(torch.ones(4, 3), torch.ones(4))", "TensorDataset(torch.ones(4, 3))", "[1, 2]"]
)
def test_data_may_be_plain_values(write: Write, value: str) -> None:
    write(dedent(NET) + f"from torch.utils.data import TensorDataset\ntrain_data = {value}")
    loaded = load_model("mymodel.py")
    assert loaded.train_data is not None
    expected = eval(value, {"torch": torch, "TensorDataset": TensorDataset})
    assert type(loaded.train_data()) is type(expected)
    assert loaded.train_data() is loaded.train_data()


def test_a_class_is_called_where_a_function_would_be(write: Write) -> None:
    write(
        dedent(NET)
        + dedent("""
        class train_data(torch.utils.data.Dataset):
            def __len__(self):
                return 11
        optimizer = torch.optim.Adam
        loss = nn.CrossEntropyLoss()
        """)
    )
    loaded = load_model("mymodel.py")
    assert loaded.train_data is not None
    assert loaded.optimizer is not None
    assert loaded.loss is not None
    assert len(loaded.train_data()) == 11
    assert isinstance(loaded.optimizer(loaded.model.parameters()), torch.optim.Adam)
    assert loaded.loss(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long)).item() == pytest.approx(0.6931, abs=1e-4)


@pytest.mark.parametrize(
    ("hook", "kind"), [("train_data", DataError), ("test_data", DataError), ("example_inputs", ModelError)]
)
def test_a_hook_that_raises(write: Write, hook: str, kind: type[DstError]) -> None:
    write(f"def read():\n    return torch.load('nowhere')\ndef {hook}():\n    return read()\n", "body.txt")
    write(dedent(NET) + Path("body.txt").read_text())
    called = getattr(load_model("mymodel.py"), hook)
    with pytest.raises(kind) as caught:
        called()
    error = caught.value
    assert error.exit_code == 2
    assert error.cause.startswith(f"{hook}() raised FileNotFoundError: ")
    assert error.place == f"mymodel.py:{dedent(NET).count(chr(10)) + 2}"
    assert error.hint.startswith(f"{hook}() returns ")
    assert users_frames(error) == ["mymodel.py", "mymodel.py"]


def test_a_loss_that_raises_shows_what_it_is_given(write: Write) -> None:
    write(dedent(NET) + "loss = nn.CrossEntropyLoss()\ndef optimizer(parameters):\n    raise SystemExit('no')")
    loaded = load_model("mymodel.py")
    assert loaded.loss is not None
    assert loaded.optimizer is not None
    with pytest.raises(ModelError, match=r"loss\(\) raised TypeError") as caught:
        loaded.loss(torch.zeros(1, 2), (torch.zeros(1), torch.zeros(1)))
    assert "gets the whole batch" in caught.value.hint
    assert caught.value.place == "mymodel.py"
    with pytest.raises(ModelError, match=r"optimizer\(\) called sys.exit\('no'\)"):
        loaded.optimizer([])


# --- failures ------------------------------------------------------------------------------------------------------


def failure(spec: Any, **options: Any) -> ModelError:
    """The error a load ends in, as a user of the command line would meet it."""
    with pytest.raises(ModelError) as caught:
        load_model(spec, **options)
    assert caught.value.exit_code == 2
    assert pickle.loads(pickle.dumps(caught.value)).hint == caught.value.hint
    return caught.value


def users_frames(error: DstError) -> list[str]:
    """The files named in an error's traceback."""
    return [Path(name).name for name in re.findall(r"^ +(.*?):\d+, in ", error.trace, re.MULTILINE)]


def check(error: ModelError, cause: str, hint: str) -> None:
    assert cause in error.cause
    assert "\n" not in error.cause
    assert error.hint
    assert hint in error.hint


def net(extra: str) -> str:
    return dedent(NET) + dedent(extra)


FORMS = (
    "a model is given as mymodel.py, mymodel.py:Net, package.module:factory, "
    "torchvision:NAME, timm:NAME or example:NAME"
)


@pytest.mark.parametrize(
    ("spec", "cause", "hint"),
    [
        ("", "The model's name is empty.", FORMS),
        ("  ", "The model's name is empty.", FORMS),
        ("mymodle.py", "There is no file mymodle.py.", "did you mean mymodel.py?"),
        ("unlike.py:Net", "There is no file unlike.py.", " are: mymodel.py"),
        ("nowhere/mymodel.py", "There is no file nowhere/mymodel.py.", "there is no folder nowhere either"),
        (".", ". is a folder, not a Python file.", "name the file in it, for example mymodel.py"),
        ("empty", "empty is a folder, not a Python file.", "name a Python file"),
        ("notes.txt", "notes.txt is not a Python file.", "give the .py file that builds the model"),
        ("mymodel.py:", "'mymodel.py:' names nothing after the colon.", FORMS),
        ("timm:", "'timm:' names nothing after the colon.", FORMS),
        ("mymodell", "There is no module 'mymodell'.", "did you mean mymodel.py?"),
        ("no_such.module:Net", "There is no module 'no_such.module'.", FORMS),
        (".relative:Net", "There is no module '.relative'.", FORMS),
        (3, "The given object is an int, not a model.", "give an nn.Module, a function"),
    ],
)
def test_specs_that_lead_nowhere(write: Write, spec: Any, cause: str, hint: str) -> None:
    write("", "notes.txt")
    write(NET)
    Path("empty").mkdir()
    check(failure(spec), cause, hint)


TWO = "class Other(Net):\n    pass"
IMPORTED_ONLY = "from torch.nn import Linear\nbuild_model = dict"
TWO_NEEDY = """
    from torch import nn
    class A(nn.Module):
        def __init__(self, depth): ...
    class B(nn.Module):
        def __init__(self, width, depth=1): ...
"""


@pytest.mark.parametrize(
    ("text", "target", "cause", "hint"),
    [
        ("", "", "mymodel.py defines no model: no build_model(), no `model`, no", "define build_model() that returns"),
        (IMPORTED_ONLY, "", "mymodel.py defines no model: ", "or name it: mymodel.py:NAME"),
        (net(TWO), "", "mymodel.py has 2 classes that could be the model: Net, Other.", "choose one, mymodel.py:Other"),
        (TWO_NEEDY, "", "can be built with no arguments: A(depth), B(width, depth).", "mymodel.py:B --model-arg name="),
        (NET, ":Nett", "There is no 'Nett' in mymodel.py.", "did you mean Net?"),
        (NET, ":my-net", "There is no 'my-net' in mymodel.py.", "did you mean Net?"),
        (NET, ":unlike", "There is no 'unlike' in mymodel.py.", "write mymodel.py:NAME with a class, a function or"),
        (NET, ":torch.nn.Lineaar", "There is no 'torch.nn.Lineaar' in mymodel.py.", "did you mean Linear"),
        (net("size = {}"), ":size", "mymodel.py:size is a dict, not a model.", "name an nn.Module class, a function"),
        (NET, ":torch.Size", "mymodel.py:torch.Size is the class Size, not a model.", "name an nn.Module class"),
        (net("loss = torch.ones(1)"), "", "`loss` is a Tensor, not a function.", "loss(outputs, batch) gets the whole"),
        (net("optimizer = 0.1"), "", "`optimizer` is a float, not a function.", "optimizer(parameters) returns an"),
    ],
)
def test_files_without_the_model(write: Write, text: str, target: str, cause: str, hint: str) -> None:
    write(text)
    error = failure(f"mymodel.py{target}")
    check(error, cause, hint)
    assert error.place == "mymodel.py"


NEEDS = """
    class Deep(Net):
        def __init__(self, depth, *, kind):
            super().__init__()
"""
BUILD = "def build_model(depth):\n    pass"


@pytest.mark.parametrize(
    ("extra", "target", "given", "cause", "hint"),
    [
        ("", "", ["widht"], "mymodel.py:Net takes no argument 'widht'.", "did you mean width?; it takes width"),
        ("def model(): ...", "", ["a"], "mymodel.py:model takes no argument 'a'.", "it takes none"),
        (
            "model = Net()",
            "",
            ["a"],
            "mymodel.py:model is a model already and takes no arguments: a.",
            "build_model(a)",
        ),
        (
            NEEDS,
            ":Deep",
            [],
            "Deep needs arguments: depth, kind.",
            "pass --model-arg depth=... --model-arg kind=..., or",
        ),
        (
            NEEDS,
            ":Deep",
            ["kind"],
            "mymodel.py:Deep needs an argument: depth.",
            "pass --model-arg depth=..., or define",
        ),
        (BUILD, "", [], "mymodel.py:build_model needs an argument: depth.", "pass --model-arg depth=..., or define"),
        (
            TWO,
            "",
            ["a"],
            "No class in mymodel.py can be built with a: Net(width), Other(width).",
            "mymodel.py:Other --m",
        ),
    ],
)
def test_arguments_that_do_not_fit(
    write: Write, extra: str, target: str, given: list[str], cause: str, hint: str
) -> None:
    write(net(extra))
    error = failure(f"mymodel.py{target}", model_args=dict.fromkeys(given, 1))
    check(error, cause, hint)
    assert error.place == "mymodel.py"


def test_the_only_class_needs_arguments(write: Write) -> None:
    write("from torch import nn\nclass Net(nn.Module):\n    def __init__(self, depth): ...")
    check(failure("mymodel.py"), "mymodel.py:Net needs an argument: depth.", "--model-arg depth=...")


@pytest.mark.parametrize(
    ("body", "cause", "hint"),
    [
        ("pass", "mymodel.py:build_model returned None, not an nn.Module.", "does it end in `return model`?"),
        ("return Net", "mymodel.py:build_model returned the class Net, not an nn.Module.", "`return Net()`, not"),
        ("return Net(), 1", "mymodel.py:build_model returned a tuple, not an nn.Module.", "return the model alone"),
        ("return 1j", "mymodel.py:build_model returned a complex, not an nn.Module.", "return the nn.Module itself"),
        ("exit(3)", "mymodel.py:build_model, while building the model, called sys.exit(3).", "`if __name__ =="),
    ],
)
def test_factories_that_return_no_model(write: Write, body: str, cause: str, hint: str) -> None:
    write(net(f"def build_model():\n    {body}"))
    error = failure("mymodel.py")
    check(error, cause, hint)
    assert error.place.startswith("mymodel.py")


@pytest.mark.parametrize(
    ("spec", "args", "cause", "hint"),
    [
        ("torchvision:resnet81", {}, "torchvision has no model 'resnet81'.", "did you mean resnet18"),
        ("torchvision:ResNet18", {}, "torchvision has no model 'ResNet18'.", "did you mean resnet18"),
        (
            "torchvision:resnet18",
            {"weights": 1},
            "random weights; 'weights' cannot be given.",
            "write a file whose build",
        ),
        ("torchvision:resnet18", {"foo": 1}, "raised TypeError: ", "it was called as torchvision:resnet18(foo=1)"),
        ("timm:resnet81", {}, "timm has no model 'resnet81'.", "did you mean resnet"),
        ("timm:zzzzzzzzzz", {}, "timm has no model 'zzzzzzzzzz'.", "timm.list_models() in Python shows its names"),
        ("timm:hf-hub:timm/resnet18", {}, "timm has no model 'hf-hub:timm/resnet18'.", "timm"),
        ("timm:resnet18", {"pretrained": True}, "random weights; 'pretrained' cannot be given.", "write a file whose"),
    ],
)
def test_names_a_collection_does_not_have(spec: str, args: dict[str, Any], cause: str, hint: str) -> None:
    check(failure(spec, model_args=args), cause, hint)


def test_a_script_that_exits(write: Write) -> None:
    write("import sys\n\nsys.exit(3)")
    error = failure("mymodel.py")
    check(
        error,
        "mymodel.py, while being imported, called sys.exit(3).",
        "keep scripts below `if __name__ == '__main__':`",
    )
    assert error.place == "mymodel.py:3"


def test_a_syntax_error(write: Write) -> None:
    write("import torch\nx = (1,\ny = 2\n")
    error = failure("mymodel.py")
    assert error.cause == "mymodel.py cannot be imported: '(' was never closed."
    assert error.place == "mymodel.py:2"
    assert error.trace == "    x = (1,\n        ^"
    assert error.hint.startswith("this is an error in the file itself")


def test_a_syntax_error_in_a_sibling_and_a_file_that_is_no_text(write: Write) -> None:
    write("\n\ndef f(:\n", "sibling_with_error.py")
    write("import sibling_with_error")
    assert failure("mymodel.py").place == "sibling_with_error.py:3"
    Path("mymodel.py").write_bytes(b"\xff\xfe\x00model")
    error = failure("mymodel.py")
    assert error.cause.startswith("mymodel.py cannot be imported: ")
    assert error.place == "mymodel.py"


def test_an_import_error_shows_the_users_frames_only(write: Write) -> None:
    write("import torch\nimport yaml_that_is_not_there.inner\n", "reader_of_yaml.py")
    write("import importlib\nimportlib.import_module('reader_of_yaml')\n")
    error = failure("mymodel.py")
    assert error.cause == "mymodel.py cannot be imported: No module named 'yaml_that_is_not_there'."
    assert error.place == "reader_of_yaml.py:2"
    assert error.hint.startswith("install it beside dst-analyze (pip install yaml_that_is_not_there), or put")
    assert users_frames(error) == ["mymodel.py", "reader_of_yaml.py"]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("raise ModuleNotFoundError(\"No module named 'cv2'\", name='cv2')", "pip install opencv-python"),
        ("from torch import not_in_any_version", "another version of torch installed than mymodel.py was written for"),
        ("from .nets import Net", "given as a module: package.module"),
    ],
)
def test_other_import_errors_have_their_own_hints(write: Write, line: str, hint: str) -> None:
    write(f"\n{line}\n")
    error = failure("mymodel.py")
    assert "mymodel.py cannot be imported" in error.cause
    assert hint in error.hint
    assert error.place == "mymodel.py:2"


def test_an_import_error_inside_a_module(write: Write) -> None:
    write("import not_there_at_all", "module_with_error.py")
    error = failure("module_with_error:Net")
    assert error.cause == "module_with_error cannot be imported: No module named 'not_there_at_all'."
    assert error.place == "module_with_error.py:1"


def test_another_exception_at_import(write: Write) -> None:
    write(
        """\
        def check():
            try:
                {}["key"]
            except KeyError as error:
                raise ValueError("line 1\\nline 2") from error
        check()
        """
    )
    error = failure("mymodel.py")
    assert error.cause == "mymodel.py, while being imported, raised ValueError: line 1"
    assert error.place == "mymodel.py:5"
    assert "importable by itself" in error.hint
    assert error.trace.endswith("\n    after KeyError: 'key'")
    assert users_frames(error) == ["mymodel.py"] * 2


def test_a_factory_that_raises(write: Write) -> None:
    write(dedent(NET) + "def build_model():\n    return Net('wide')\n")
    error = failure("mymodel.py")
    assert error.cause.startswith("mymodel.py:build_model, while building the model, raised TypeError: ")
    assert error.place == "mymodel.py:8"
    assert users_frames(error) == ["mymodel.py", "mymodel.py"]
    assert error.hint == "it was called as mymodel.py:build_model()"
    assert failure("mymodel.py", device="meta").cause == error.cause


def test_ctrl_c_is_not_an_error_of_the_model(write: Write) -> None:
    write("raise KeyboardInterrupt")
    known = set(sys.modules)
    with pytest.raises(KeyboardInterrupt):
        load_model("mymodel.py")
    assert set(sys.modules) == known
    write("def build_model():\n    raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_model("mymodel.py", device="meta")


@pytest.mark.parametrize("collection", ["timm", "torchvision"])
def test_a_collection_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, collection: str) -> None:
    monkeypatch.setitem(sys.modules, collection, None)
    error = failure(f"{collection}:resnet18")
    assert error.cause == f"{collection} is not installed."
    assert error.hint == f"pip install {collection}"


# --- arguments -----------------------------------------------------------------------------------------------------


def test_arguments_of_the_command_line() -> None:
    items = [
        "depth=16",
        "name=foo",
        "dims=[1,2]",
        "rate = 1e-3",
        "flag=True",
        "none=None",
        "path=a=b",
        "size=3x3",
        "e=",
    ]
    assert parse_model_args(items) == {
        "depth": 16, "name": "foo", "dims": [1, 2], "rate": 1e-3, "flag": True, "none": None,
        "path": "a=b", "size": "3x3", "e": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("items", "cause", "hint"),
    [
        (["depth"], "'depth' is not of the form name=value.", "--model-arg depth=16"),
        (["=3"], "'=3' is not of the form name=value.", "--model-arg depth=16"),
        (["a-b=3"], "'a-b=3' is not of the form name=value.", "--model-arg depth=16"),
        (["a=1", "a=2"], "'a' is given twice.", "once"),
        (["dims=[1,2"], "dims=[1,2 is not a Python value.", "dims=[1,2]"),
        (["bias=false"], "bias=false may mean a bool or a string.", "bias=False"),
    ],
)
def test_arguments_that_make_no_sense(items: list[str], cause: str, hint: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_model_args(items)
    assert caught.value.cause == cause
    assert hint in caught.value.hint
    assert (caught.value.place, caught.value.exit_code) == ("--model-arg", 2)
