"""Source of slim models is split as the model's own classes are, and reads as its own source does."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from dst_analyze import couple_channels, trace_model
from dst_analyze.model.loading.torchvision_compat import torchvision_module
from dst_analyze.slimming.source import write
from dst_analyze.slimming.source.write import write_source
from dst_analyze.slimming.surgery.build import slim


class Block(nn.Module):
    """Two convolutions whose inner width may be another in each block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn1(self.conv1(x)).relu()
        out = self.conv2(out)
        return (out + x).relu()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3)
        self.blocks = nn.Sequential(*(Block(16) for _ in range(3)))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(x))
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) / (width // self.heads) ** 0.5
        weights = F.dropout((scores + mask).softmax(-1), 0.1, self.training)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, -1))


class Layer(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, 2)
        self.norm2, self.mlp = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, hidden), nn.GELU())
        self.down, self.drop = nn.Linear(hidden, width), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), mask)
        return x + self.drop(self.down(self.mlp(self.norm2(x))))


class Language(nn.Module):
    """A small language model: a loop over layers, a mask of its own, and a head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(Layer(8, hidden) for hidden in (16, 24, 16))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        length = tokens.shape[1]
        mask = torch.full((length, length), -1e4, device=tokens.device).triu(1)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


def slimmed(model: nn.Module, example: Any, removed: Callable[[int], int] = lambda width: width // 2) -> Any:
    torch.manual_seed(0)
    traced = trace_model(model.eval(), example)
    coupling, rng = couple_channels(traced), random.Random(0)
    groups = coupling.removable
    return slim(
        traced,
        {g.name: rng.sample(range(g.width), min(removed(g.width), g.width - g.floor)) for g in groups},
        coupling=coupling,
    )


def built(path: Path) -> nn.Module:
    spec = importlib.util.spec_from_file_location("slim_model", path)
    assert spec is not None
    assert spec.loader is not None
    file = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(file)
    model: nn.Module = file.build_model()
    return model


def outputs(model: nn.Module, *inputs: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [leaf for leaf in tree_leaves(model(*inputs)) if isinstance(leaf, torch.Tensor)]


def written(model: nn.Module, example: Any, folder: Path, *others: torch.Tensor) -> str:
    """Return the source of a slim model that was checked against the graph, in both modes, on other inputs too."""
    small = slimmed(model, example)
    path = write_source(small, folder / "slim_model.py")
    again = built(path)
    assert list(again.state_dict()) == list(small.state_dict())
    assert set(again.state_dict()) <= set(model.state_dict())
    for inputs in (small.meta["inputs"], *([other] for other in others)):
        for mode in (False, True):
            expected, found = outputs(small.train(mode), *inputs), outputs(again.train(mode), *inputs)
            assert len(expected) > 0
            assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    return path.read_text()


def text_of_class(text: str, name: str) -> str:
    return text.split(f"class {name}(")[1].split("\n\n\n")[0]


# --- classes ------------------------------------------------------------------------------------------------------


def test_blocks_alike_are_one_class_and_a_list_of_widths(tmp_path: Path) -> None:
    traced = trace_model(Net().eval(), torch.randn(2, 1, 9, 9))
    coupling = couple_channels(traced)
    removal = {"blocks.1.conv1": range(6), "blocks.2.conv1": range(12)}
    small = slim(traced, removal, coupling=coupling)
    text = write_source(small, tmp_path / "slim_model.py").read_text()
    assert text.count("class Block(nn.Module):") == 1
    block = text_of_class(text, "Block")
    assert "def __init__(self, conv1_out: int) -> None:" in block
    assert "self.conv1 = nn.Conv2d(16, conv1_out, 3, padding=1)\n" in block
    assert "self.bn1 = nn.BatchNorm2d(conv1_out)\n" in block
    assert "        out = self.bn1(self.conv1(x)).relu()\n        out = self.conv2(out)\n" in block
    assert "        return (out + x).relu()" in block
    line = "self.blocks = nn.Sequential(*(Block(conv1_out) for conv1_out in (16, 10, 4)))  # was conv1_out=16\n"
    assert line in text
    assert "        x = self.blocks(self.stem(x))\n        return self.head(x.mean((2, 3)))" in text
    images = torch.randn(3, 1, 9, 9)
    assert torch.equal(small.eval()(images), built(tmp_path / "slim_model.py").eval()(images))


def test_a_constant_width_is_said_once_where_it_changed(tmp_path: Path) -> None:
    text = written(Net(), torch.randn(2, 1, 9, 9), tmp_path)
    assert "self.conv1 = nn.Conv2d(8, 8, 3, padding=1)  # was in_channels=16, out_channels=16\n" in text
    assert "self.blocks = nn.Sequential(*(Block() for _ in range(3)))\n" in text


def test_layers_become_a_loop_and_keep_the_names_of_the_source(tmp_path: Path) -> None:
    text = written(Language(), torch.randint(0, 11, (2, 5)), tmp_path, torch.randint(0, 11, (3, 9)))
    assert "        for layer in self.layers:\n            x = layer(x, mask)\n" in text
    assert "nn.ModuleList(Layer(mlp_0_out) for mlp_0_out in (8, 12, 8))  # was mlp_0_out=(16, 24, 16)" in text
    attention = text_of_class(text, "Attention")
    assert "def forward(self, x: torch.Tensor, mask: torch.Tensor):" in attention
    assert "batch, length, _ = x.shape\n" in attention
    assert "q, k, v = self.qkv(x).reshape(" in attention
    assert "weights = F.dropout((scores + mask).softmax(-1), p=0.1, training=self.training)\n" in attention
    assert "self.head.weight = self.embed.weight\n" in text
    assert "getitem" not in text
    assert "size_" not in text


class Shared(nn.Module):
    """A layer that is called twice, by an own module and with another use of its result."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(6, 8), Twofold(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        a, b = self.block(x)
        c, _ = self.block(a + b)
        return self.last(c)


class Twofold(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.one(x).relu(), self.two(x).tanh()


def test_a_module_whose_calls_differ_stands_in_its_caller(tmp_path: Path) -> None:
    text = written(Shared(), torch.randn(4, 6), tmp_path)
    assert "class Twofold" not in text
    assert "self.block.one(" in text


class Again(Shared):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(2):
            a, b = self.block(x)
            x = a * b
        return self.last(x)


def test_a_module_whose_calls_are_alike_has_one_forward(tmp_path: Path) -> None:
    text = written(Again(), torch.randn(4, 6), tmp_path)
    assert "return self.one(x).relu(), self.two(x).tanh()" in text_of_class(text, "Twofold")
    assert text.count("a, b = self.block(x)\n") == 2


class Outside(nn.Module):
    """A part that reads the weights of another, and one that calls a layer which it does not hold."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.reader = nn.Linear(6, 8), Reader()
        self.caller = Caller()
        self.other = nn.Linear(8, 8)
        self.last = nn.Linear(6, 3)
        self.caller.borrowed = [self.other]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.caller(self.embed(x))
        return self.last(self.reader(x, self.embed.weight))


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return x @ table * self.scale


class Caller(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Linear(8, 8)
        self.borrowed: list[nn.Module] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.own(self.borrowed[0](x).relu())


def test_what_a_module_does_not_hold_is_passed_or_called_by_its_caller(tmp_path: Path) -> None:
    text = written(Outside(), torch.randn(4, 6), tmp_path)
    assert "class Caller" not in text
    assert "self.reader(self.caller.own(self.other(x).relu()), self.embed.weight)" in text


def test_a_class_that_does_not_compute_the_same_is_written_into_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = write.is_same_model
    monkeypatch.setattr(write, "is_same_model", lambda text, slim: "class Block(" not in text and compare(text, slim))
    text = written(Net(), torch.randn(2, 1, 9, 9), tmp_path)
    assert "self.blocks[2].conv2(" in text


class F_(nn.Module):  # noqa: N801
    def __init__(self) -> None:
        super().__init__()
        self.Path, self.torch = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, torch: torch.Tensor) -> torch.Tensor:
        nn = self.Path(torch).relu()
        return self.torch(nn)


def test_names_of_classes_and_variables_never_hide_what_the_file_imports(tmp_path: Path) -> None:
    for name in ("F", "nn", "Path", "Parts", "build_model", "SlimSequential", "OrderedDict"):
        kind = type(name, (F_,), {"forward": F_.forward})
        text = written(nn.Sequential(nn.Linear(6, 6), kind(), nn.Linear(6, 6)), torch.randn(4, 6), tmp_path)
        assert f"class {name}(nn.Module)" not in text


class Operators(nn.Module):
    """Expressions whose brackets matter, a change in place, and random numbers in an order."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(6, 8), nn.Linear(6, 8), nn.Dropout(0.5)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.a(x), self.b(x)
        c = (a + b) * (a - (b - 1)) / (2 * (1 + (b**2)))
        c = c - (a - b) ** 2 + -(a**2) + (-a) ** 2 + 2 ** (a * 0.1)
        late = self.drop(a)
        early = self.drop(b) + late * 2
        c = c + (a @ b.T) @ b * (b > (a > 0.5)) + ((a > 0) & (b > 0) | (a < b))
        early += c
        y = early.clone()
        y *= late
        y[:, 1:3] = (early + late)[:, -2:]
        return self.last(torch.cat([y, early]) + (x[0, 0] + x[1, 1]).abs())


def test_brackets_order_and_changes_in_place_are_those_of_the_model(tmp_path: Path) -> None:
    written(Operators(), torch.randn(4, 6), tmp_path, torch.randn(5, 6))


# --- length -------------------------------------------------------------------------------------------------------


def lines_of_original(model: nn.Module, small: Any) -> int:
    """Return the length of the classes that a model's source is in."""
    calls = {call.kind for node in small.graph.nodes for call in node.meta.get("calls", ())}
    kinds = {type(model)} | {kind for kind in calls if kind is not nn.Sequential}
    return sum(len(inspect.getsource(kind).splitlines()) for kind in kinds)


def _gpt2() -> tuple[nn.Module, Any]:
    torchvision_module()  # transformers imports it
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 64, "n_positions": 32, "n_embd": 32, "n_layer": 6, "n_head": 4}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, use_cache=False)
    return GPT2LMHeadModel(config), (torch.randint(0, 64, (2, 9)),)


def _vit() -> tuple[nn.Module, Any]:
    model = torchvision_module().models.VisionTransformer(32, 8, 6, 4, 32, 64, num_classes=10)
    return model, torch.randn(2, 3, 32, 32)


def _resnet(name: str) -> Callable[[], tuple[nn.Module, Any]]:
    options = {"num_classes": 10, "width_per_group": 64 if name == "resnet18" else 16}
    return lambda: (torchvision_module().models.get_model(name, **options), torch.randn(2, 3, 64, 64))


@pytest.mark.parametrize(
    ("build", "loop"),
    [
        (_gpt2, "for block in self.h:"),
        (_vit, "x = self.encoder(x)"),
        (_resnet("resnet18"), "x = self.layer4(x)"),
        (_resnet("resnet50"), "x = self.layer4(x)"),
    ],
    ids=["gpt2", "vit", "resnet18", "resnet50"],
)
def test_the_source_is_not_much_longer_than_the_models_own(
    build: Callable[[], tuple[nn.Module, Any]], loop: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, example = build()
    text = written(model, example, tmp_path)
    assert loop in text
    assert len(text.splitlines()) < 1.5 * lines_of_original(model, slimmed(model, example))
    assert "torch._" not in text
    assert max(map(len, text.splitlines())) <= 120


# --- training -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Any:
    torch.manual_seed(0)
    return slimmed(Language(), torch.randint(0, 11, (2, 5)))


@pytest.fixture(scope="module")
def language(small: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(small, tmp_path_factory.mktemp("language") / "slim_model.py")


def losses(model: nn.Module, steps: int = 3, *, autocast: bool = False) -> list[float]:
    """Return the losses of a few steps, with another batch size and length in each."""
    torch.manual_seed(1)
    optimizer, found = torch.optim.SGD(model.parameters(), 0.5), []
    for step in range(steps):
        tokens = torch.randint(0, 11, (2 + step, 6 + 2 * step))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            scores = model(tokens[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("autocast", [False, True])
def test_it_trains_as_the_graph_does(small: Any, language: Path, autocast: bool) -> None:
    for mode in (True, False):
        expected = losses(copy.deepcopy(small).train(mode), autocast=autocast)
        assert losses(built(language).train(mode), autocast=autocast) == expected


def test_it_compiles_as_one_graph(language: Path) -> None:
    model = built(language).eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    for shape in ((2, 5), (3, 9)):
        tokens = torch.randint(0, 11, shape)
        torch.testing.assert_close(compiled(tokens), model(tokens))


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_it_trains_under_ddp(language: Path, tmp_path: Path) -> None:
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    expected = losses(built(language).eval())
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        assert losses(DistributedDataParallel(built(language).eval())) == pytest.approx(expected, rel=1e-5)
    finally:
        distributed.destroy_process_group()
