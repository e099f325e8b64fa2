"""The loops for GPUs against the eager loops: Triton in its interpreter, and torch's operations on whole groups."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.profiler import ProfilerActivity, profile

from dst_analyze import mask_model
from dst_analyze.masking.estimators import ESTIMATORS
from dst_analyze.masking.kernels.axes import axes_of
from dst_analyze.masking.kernels.choice import agree_on, gpu_kernels, kernels_on
from dst_analyze.masking.kernels.grouped_backend import GROUPED
from dst_analyze.masking.masked_weight import EAGER, Kernels, Masking

HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
BACKENDS = ["grouped", pytest.param("triton", marks=needs_triton)]
LAUNCHES = 30

Shape = tuple[int, ...]
Layer = tuple[Shape, Shape]
"""The view of a weight, and the shape of its thresholds."""


def kernels_of(name: str) -> Kernels:
    if name == "grouped":
        return GROUPED
    from dst_analyze.masking.kernels.triton_backend import TRITON

    return TRITON


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    view = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    return view, tuple(size if draw(st.booleans()) else 1 for size in view)


def group(shapes: Sequence[Layer], estimator: str, dtype: torch.dtype, seed: int) -> tuple[Any, ...]:
    """Return a masking, thresholds, weights and gradients, with edge cases among them."""
    random = torch.Generator().manual_seed(seed)
    sizes = tuple(math.prod(shape) for _, shape in shapes)
    masking = Masking(estimator, tuple(view for view, _ in shapes), tuple(shape for _, shape in shapes), sizes)
    thresholds = torch.rand(sum(sizes), generator=random) * 2 - 0.5
    weights = [torch.randn(view, generator=random).to(dtype) for view, _ in shapes]
    grads = [torch.randn(view, generator=random).to(dtype) for view, _ in shapes]
    weights[0].view(-1)[0] = 0.0
    thresholds[0] = 0.0
    return masking, thresholds, weights, grads


def check(kernels: Kernels, masking: Masking, thresholds: Any, weights: Any, grads: Any) -> None:
    """Compare with the eager loops: P, counts and dW to the bit; dt to a millionth of what its sum adds up."""
    ours, theirs = list[int](), list[int]()
    found = kernels.forward(masking, thresholds, weights, ours)
    for one, other in zip(found, EAGER.forward(masking, thresholds, weights, theirs), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.view(torch.int16), other.view(torch.int16))  # also the signs of zeros
    assert ours == theirs == kernels.count(masking, thresholds, weights).tolist()
    grad_weights, grad_thresholds = kernels.backward(masking, thresholds, weights, grads)
    # A group with a layout that the kernels do not support is left to the grouped operations, which round.
    interpreted = kernels is not GROUPED and None not in map(axes_of, masking.views, masking.shapes)
    wide = [[None if t is None else t.float() for t in tensors] for tensors in (weights, grads)]
    expected, expected_thresholds = EAGER.backward(masking, thresholds, *wide)
    for one, other, weight in zip(grad_weights, expected, weights, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert torch.equal(one, rounded(other, weight.dtype, cut=interpreted))
    assert grad_thresholds.shape == expected_thresholds.shape
    pairs = zip(grads, weights, strict=True)
    most = [0.0 if grad is None else 2 * float((grad.float() * w.float()).abs().sum()) for grad, w in pairs]
    for one, other, size in zip(
        grad_thresholds.split(masking.sizes), expected_thresholds.split(masking.sizes), most, strict=True
    ):
        assert float((one - other).abs().max()) <= 1e-6 * size + 1e-12


def rounded(values: torch.Tensor, dtype: torch.dtype, *, cut: bool) -> torch.Tensor:
    """Return values in a dtype; Triton's interpreter cuts bfloat16 off where a GPU rounds."""
    if cut and dtype == torch.bfloat16:
        return (values.view(torch.int32) & -65536).view(torch.float32).to(dtype)
    return values.to(dtype)


@pytest.mark.parametrize("name", BACKENDS)
@settings(deadline=None, max_examples=25)
@given(
    shapes=st.lists(layers(), min_size=1, max_size=4),
    estimator=st.sampled_from(sorted(ESTIMATORS)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 1000),
    absent=st.booleans(),
)
def test_any_group_of_layers(name: str, shapes: Any, estimator: str, dtype: Any, seed: int, absent: bool) -> None:
    masking, thresholds, weights, grads = group(shapes, estimator, dtype, seed)
    if absent and len(shapes) > 1:
        grads[-1] = None  # the loss does not depend on this weight
    check(kernels_of(name), masking, thresholds, weights, grads)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_kind_of_tile_and_sums_of_several_parts(name: str, dtype: torch.dtype, monkeypatch: Any) -> None:
    """Vector, scalar and matrix thresholds of long, short, strided and single rows, larger than a tile."""
    if name == "triton":
        monkeypatch.setattr("dst_analyze.masking.kernels.triton_backend.CHUNK", 256)
        monkeypatch.setattr("dst_analyze.masking.kernels.triton_backend.MOST_CHUNKS", 5)
    shapes = [
        ((5, 1100), (5, 1)), ((60, 70), (60, 1)), ((90, 70), (1, 70)), ((50, 40), (1, 1)), ((40, 60), (40, 60)),
        ((3, 40, 7, 9), (3, 1, 7, 1)), ((1500,), (1500,)), ((7,), (1,)),
    ]  # fmt: skip
    check(kernels_of(name), *group(shapes, "long-tail", dtype, 0))


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, in Triton's interpreter
def test_nan_and_infinity_stay(name: str) -> None:
    kernels = kernels_of(name)
    masking = Masking("long-tail", ((2, 3),), ((2, 1),), (2,))
    weight = torch.tensor([[math.nan, math.inf, 0.1], [-math.inf, -0.0, 1.0]])
    for thresholds in (torch.tensor([0.5, math.inf]), torch.tensor([math.nan, 0.0])):
        (found,), (expected,) = (each.forward(masking, thresholds, [weight]) for each in (kernels, EAGER))
        assert torch.equal(found.view(torch.int32), expected.view(torch.int32)) or found.isnan().equal(expected.isnan())
        grads = [torch.tensor([[1.0, 1.0, math.inf], [1.0, 1.0, math.nan]])]
        ours, theirs = (each.backward(masking, thresholds, [weight], grads) for each in (kernels, EAGER))
        torch.testing.assert_close(ours[0][0], theirs[0][0], equal_nan=True, rtol=0, atol=0)
        torch.testing.assert_close(ours[1], theirs[1], equal_nan=True)


@pytest.mark.parametrize("name", BACKENDS)
def test_what_the_kernels_do_not_support_is_computed_all_the_same(name: str) -> None:
    kernels = kernels_of(name)
    masking = Masking("long-tail", ((4, 6), (3, 2)), ((4, 1), (1, 1)), (4, 1))
    thresholds = torch.rand(5, dtype=torch.float64)
    for weights in (
        [torch.randn(4, 6), torch.randn(3, 2).double()],  # of two types
        [torch.randn(6, 4).t(), torch.randn(3, 2)],  # not contiguous
        [torch.randn(4, 6).double(), torch.randn(3, 2).double()],
    ):
        for one, other in zip(*(each.forward(masking, thresholds, weights) for each in (kernels, EAGER)), strict=True):
            assert torch.equal(one, other)
        grads = [torch.randn_like(weight) for weight in weights]
        ours, theirs = (each.backward(masking, thresholds, weights, grads) for each in (kernels, EAGER))
        for one, other in zip(ours[0], theirs[0], strict=True):
            assert torch.equal(one, other)
        torch.testing.assert_close(ours[1], theirs[1])
        assert (
            kernels.count(masking, thresholds, weights).tolist() == EAGER.count(masking, thresholds, weights).tolist()
        )


VIEWS = ("aten::view", "aten::reshape", "aten::split", "aten::narrow", "aten::slice", "aten::_reshape_alias")
VIEWS += ("aten::as_strided", "aten::empty", "aten::detach", "aten::split_with_sizes", "aten::empty_like")
VIEWS += ("aten::to", "aten::alias", "aten::new_empty", "aten::resolve_conj", "aten::lift_fresh", "aten::result_type")


def launches(run: Any) -> list[str]:
    """Return the operations that compute something, an operation on a list of tensors as one."""
    run()  # tables are made once
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run()
    events = [event for event in seen.events() if event.name.startswith("aten::") and event.name not in VIEWS]

    def inside(event: Any) -> bool:
        while event.cpu_parent is not None:
            event = event.cpu_parent
            if event.name.startswith("aten::"):
                return True
        return False

    return [event.name for event in events if not inside(event)]


@pytest.mark.parametrize("transposed", [False, True])
def test_the_number_of_launches_does_not_depend_on_the_number_of_layers(transposed: bool) -> None:
    counts = []
    for number in (3, 300):
        shape = (1, 5) if transposed else (4, 1)
        *given, grads = group([((4, 5), shape)] * number, "long-tail", torch.float32, 0)
        forward = launches(partial(GROUPED.forward, *given))
        counted = launches(partial(GROUPED.count, *given))
        backward = launches(partial(GROUPED.backward, *given, grads))
        assert len(forward) + len(backward) <= LAUNCHES, (forward, backward)
        assert len(counted) <= LAUNCHES, counted
        counts.append((len(forward), len(counted), len(backward)))
    assert counts[0] == counts[1]
    eager = launches(partial(EAGER.forward, *given))
    assert len(eager) > LAUNCHES  # the profiler does count


class _Lists(torch.utils._python_dispatch.TorchDispatchMode):
    """Requires of every operation on lists what torch's fast kernels for GPUs require of it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_foreach_" in str(func):
            self.seen.append(str(func))
            lists = [arg for arg in args if isinstance(arg, list | tuple)]
            for tensors in zip(*lists, strict=True):
                assert len({(t.shape, t.stride(), t.dtype, t.device) for t in tensors}) == 1, func
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_operations_on_lists_are_those_that_a_gpu_runs_at_once(dtype: torch.dtype) -> None:
    shapes = [((4, 5), (4, 1)), ((6, 7), (1, 7)), ((2, 3, 4), (2, 1, 4))]
    masking, thresholds, weights, grads = group(shapes, "long-tail", dtype, 0)
    grad_weights = [grad.clone() for grad in grads]
    with _Lists() as lists:
        GROUPED.forward(masking, thresholds, weights)
        GROUPED.count(masking, thresholds, weights)
        GROUPED.backward(masking, thresholds, weights, grad_weights)
    assert len(lists.seen) == 3


@needs_triton
def test_the_triton_kernels_take_a_few_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    from dst_analyze.masking.kernels import triton_backend

    counted: list[str] = []

    class Counted:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: Any) -> Any:
            counted.append(str(grid))
            return self.kernel[grid]

    for name in ("_forward", "_backward", "_add_up"):
        monkeypatch.setattr(triton_backend, name, Counted(getattr(triton_backend, name)))
    masking, thresholds, weights, grads = group([((4, 5), (4, 1)), ((3,), (3,))] * 20, "long-tail", torch.float32, 0)
    triton_backend.TRITON.forward(masking, thresholds, weights)
    assert len(counted) == 1
    triton_backend.TRITON.backward(masking, thresholds, weights, grads)
    assert len(counted) == 3  # one for each of two shapes of tiles


COMPILE = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from dst_analyze.masking.kernels import triton_backend as kernels

def build(kernel, signature, constants, capability):
    signature = {**signature, **dict.fromkeys(constants, "constexpr")}
    constants = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"enable_fp_fusion": False})
    assert made.asm["cubin"]
    return made.asm["ptx"]

tables = dict.fromkeys(["grads", "weights", "results", "tiles", "layers"], "*i64")
reals = {"thresholds": "*fp32", "sums": "*fp32"}
for capability, dtype in ((75, tl.float16), (80, tl.bfloat16), (90, tl.float32)):
    kinds = {"DTYPE": dtype, "REAL": tl.float32, "INDEX": tl.int32}
    forward = {name: tables[name] for name in ("weights", "results", "tiles", "layers")}
    forward |= {"thresholds": "*fp32", "counts": "*i64"}
    build(kernels._forward, forward, {**kinds, "SIZE": kernels.BLOCK, "STORE": True}, capability)
    shape = {"LONG_TAIL": True, "ROWS": 16, "COLUMNS": 64}
    assert "fma." not in build(kernels._backward, {**tables, **reals}, {**kinds, **shape}, capability)
places = dict.fromkeys(["firsts", "steps", "chunks"], "*i64")
sums = {"sums": "*fp32", "results": "*fp32", **places, "count": "i32", "most": "i32"}
build(kernels._add_up, sums, {"SIZE": kernels.SUMMED_BLOCK}, 80)
print("built")
"""


@needs_triton
def test_the_kernels_compile_for_three_generations_of_gpus(tmp_path: Any) -> None:
    """With the real compiler, down to machine code, and without contraction, which would round otherwise."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout == "built\n", done.stderr[-2000:]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv2d(3, 8, 3, padding=1), nn.ConvTranspose2d(8, 6, 2)
        self.lstm, self.head = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = self.up(self.conv(x).relu()).relu().flatten(2).transpose(1, 2)
        return self.head(self.lstm(maps)[0][:, -1])


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("kind", ["vector", "scalar", "matrix"])
def test_a_model_trains_with_them_as_with_the_eager_loops(name: str, kind: Any, monkeypatch: Any) -> None:
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    found = []
    for kernels in (EAGER, kernels_of(name)):
        monkeypatch.setattr("dst_analyze.masking.masks.kernels_on", lambda device, backend, k=kernels: k)
        torch.manual_seed(0)
        masked = mask_model(Net(), x, threshold=kind, form="modules")
        with torch.no_grad():
            masked.thresholds.copy_(0.3 * masked.typical_magnitudes())
        optimizer = torch.optim.SGD(masked.parameters(), lr=0.05)
        for _ in range(3):
            optimizer.zero_grad()
            masked(x).square().sum().backward()
            masked.add_sparsity_gradient(1e-3)
            optimizer.step()
        found.append([*masked.parameters(), *masked.masked_weights()])
        assert 0.1 < masked.model_remaining() < 0.9
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, here = torch.device("cuda", 0), torch.device("cpu")
    asked: list[Any] = []

    def chosen(device: torch.device) -> Kernels:
        asked.append(device)
        return GROUPED

    monkeypatch.setattr("dst_analyze.masking.kernels.choice.gpu_kernels", chosen)
    assert kernels_on(gpu, "eager") is EAGER  # as asked for
    assert kernels_on(gpu, "eager-on-cpu") is kernels_on(gpu, "compiled") is kernels_on(gpu, "when-ready") is GROUPED
    assert asked == [gpu] * 3
    assert kernels_on(here, "eager-on-cpu") is EAGER
    assert kernels_on(torch.device("mps"), "compiled") is EAGER


@pytest.mark.parametrize("case", ["works", "absent", "wrong", "raises"])
def test_triton_is_taken_where_it_works(case: str, monkeypatch: Any, caplog: Any) -> None:
    if case == "works" and not HAS_TRITON:
        pytest.skip("Triton is not installed")
    if case == "absent":
        monkeypatch.setitem(sys.modules, "dst_analyze.masking.kernels.triton_backend", None)
    elif case != "works":
        pytest.importorskip("triton", reason="Triton is not installed")

        def broken(*_: Any) -> Any:
            if case == "raises":
                raise RuntimeError("failed to find C compiler")
            return [torch.zeros(2, 3)]

        monkeypatch.setattr("dst_analyze.masking.kernels.triton_backend.Triton.forward", broken)
    gpu_kernels.cache_clear()
    found = gpu_kernels(torch.device("cpu"))
    gpu_kernels.cache_clear()
    assert (found is GROUPED) == (case != "works")
    assert bool(caplog.records) == (case in ("wrong", "raises"))
    assert agree_on(torch.device("cpu"), GROUPED)


@needs_triton
def test_the_command_is_quiet_where_triton_is_installed() -> None:
    """torch imports Triton by itself, and Triton's bindings complain about an exit without garbage collection."""
    command = [sys.executable, "-m", "dst_analyze", "inspect", "example:lenet-300-100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    assert "leaked" not in done.stderr
