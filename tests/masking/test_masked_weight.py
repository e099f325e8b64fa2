"""The masked-weight operator: the paper's formulas, properties of masks, and the compiled loops against the eager."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dst_analyze.masking.estimators import ESTIMATORS
from dst_analyze.masking.kernels.axes import axes_of
from dst_analyze.masking.kernels.c_backend import compiled_kernels
from dst_analyze.masking.masked_weight import EAGER, Masking, bool_mask, masked_weights


def masked_weight(weight: torch.Tensor, threshold: torch.Tensor, estimator: str = "long-tail") -> torch.Tensor:
    """Return P for one weight; the threshold broadcasts against it (``t[:, None]`` for one per row of a matrix)."""
    shape = (1,) * (weight.ndim - threshold.ndim) + tuple(threshold.shape)
    masking = Masking(estimator, (tuple(weight.shape),), (shape,), (threshold.numel(),))
    return masked_weights(masking, EAGER, threshold.reshape(-1), [weight])[0]


class Step(torch.autograd.Function):
    """The unit step with the paper's derivative estimate, written in its three pieces (equation 4)."""

    @staticmethod
    def forward(ctx, q, name):
        ctx.save_for_backward(q)
        ctx.name = name
        return (q > 0).to(q.dtype)

    @staticmethod
    def backward(ctx, grad):
        (q,) = ctx.saved_tensors
        h = torch.zeros_like(q)
        if ctx.name == "clipped":
            h[q.abs() <= 1] = 1
        else:
            near, far = q.abs() <= 0.4, (q.abs() > 0.4) & (q.abs() <= 1)
            h[near] = 2 - 4 * q[near].abs()
            h[far] = 0.4
        return grad * h, None


def composed(weight: torch.Tensor, threshold: torch.Tensor, name: str) -> torch.Tensor:
    """P as autograd sees it, operation by operation."""
    return weight * Step.apply(weight.abs() - threshold, name)


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
@pytest.mark.parametrize("shape", [(5, 1), (1, 1), (5, 7), (1, 7)])
def test_gradients_are_those_of_the_composition(estimator: str, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    weight = torch.randn(5, 7, dtype=torch.float64) * 0.8
    threshold = torch.rand(shape, dtype=torch.float64) - 0.2
    upstream = torch.randn(5, 7, dtype=torch.float64)
    found = []
    for function in (masked_weight, composed):
        w, t = weight.clone().requires_grad_(), threshold.clone().requires_grad_()
        masked = function(w, t, estimator)
        masked.backward(upstream)
        found.append((masked.detach(), w.grad, t.grad))
    for ours, reference in zip(*found, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-12, atol=1e-12)


numbers = st.floats(-2, 2, allow_nan=False, width=32)


@given(st.lists(numbers, min_size=1, max_size=30), st.floats(-1, 2), st.floats(0, 1))
def test_raising_a_threshold_never_raises_density(values: list[float], threshold: float, more: float) -> None:
    weight = torch.tensor([values])
    low = bool_mask(weight, torch.tensor([[threshold]]))
    high = bool_mask(weight, torch.tensor([[threshold + more]]))
    assert not (high & ~low).any()


@given(st.lists(numbers, min_size=1, max_size=30), st.floats(-3, 0))
def test_a_threshold_at_or_below_zero_masks_nothing(values: list[float], threshold: float) -> None:
    weight = torch.tensor([values])
    assert bool_mask(weight, torch.tensor([[threshold]])).all()
    assert torch.equal(masked_weight(weight, torch.tensor([[threshold]])), weight)


def test_a_layer_of_zeros_can_learn() -> None:
    weight, threshold = torch.zeros(2, 3, requires_grad=True), torch.zeros(2, 1, requires_grad=True)
    masked_weight(weight, threshold).sum().backward()
    assert torch.equal(weight.grad, torch.ones(2, 3))


def test_masked_weights_that_are_nan_stay_nan() -> None:
    masked = masked_weight(torch.tensor([[math.nan, 0.1, math.inf]]), torch.tensor([[0.5]]))
    assert masked.isnan().tolist() == [[True, False, False]]
    assert masked[0, 2] == math.inf


def test_a_second_derivative_is_refused() -> None:
    weight, threshold = torch.randn(2, 3, requires_grad=True), torch.full((2, 1), 0.1, requires_grad=True)
    (grad,) = torch.autograd.grad(masked_weight(weight, threshold).square().sum(), threshold, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        grad.sum().backward()


needs_compiler = pytest.mark.skipif(compiled_kernels() is None, reason="no C compiler on this machine")


@needs_compiler
@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=4),
    st.sampled_from(["long-tail", "clipped"]),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 2**31),
)
def test_compiled_loops_give_the_eager_results(axes, estimator: str, dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    view = tuple(size for size, _ in axes)
    shape = tuple(size if row else 1 for size, row in axes)
    masking = Masking(estimator, (view,), (shape,), (math.prod(shape),))
    weight = torch.randn(view, generator=generator, dtype=dtype)
    threshold = torch.rand(math.prod(shape), generator=generator, dtype=dtype) - 0.2
    grad = torch.randn(view, generator=generator, dtype=dtype)
    compiled = compiled_kernels()
    assert torch.equal(
        compiled.forward(masking, threshold, [weight])[0], EAGER.forward(masking, threshold, [weight])[0]
    )
    assert torch.equal(compiled.count(masking, threshold, [weight]), EAGER.count(masking, threshold, [weight]))
    ours = compiled.backward(masking, threshold, [weight], [grad])
    reference = EAGER.backward(masking, threshold, [weight], [grad])
    assert torch.equal(ours[0][0], reference[0][0])
    torch.testing.assert_close(ours[1], reference[1])


@needs_compiler
def test_a_large_weight_split_among_threads_gives_the_same_results() -> None:
    torch.manual_seed(0)
    weight, threshold, grad = torch.randn(301, 1999), torch.rand(301), torch.randn(301, 1999)
    masking = Masking("long-tail", ((301, 1999),), ((301, 1),), (301,))
    compiled, threads = compiled_kernels(), torch.get_num_threads()
    results = []
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            counts: list[int] = []
            masked = compiled.forward(masking, threshold, [weight], counts)[0]
            (grad_weight,), grad_threshold = compiled.backward(masking, threshold, [weight], [grad])
            results.append((masked, torch.tensor(counts), grad_weight, grad_threshold))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, three) for one, three in zip(*results, strict=True))


@needs_compiler
def test_unsupported_weights_go_through_the_eager_loops() -> None:
    masking = Masking("long-tail", ((2, 3, 2, 3, 2),), ((1, 3, 1, 3, 1),), (9,))
    assert axes_of(masking.views[0], masking.shapes[0]) is None
    half = Masking("long-tail", ((4, 6),), ((4, 1),), (4,))
    for plan, weight, threshold in (
        (masking, torch.randn(2, 3, 2, 3, 2), torch.rand(9)),
        (half, torch.randn(4, 6, dtype=torch.bfloat16), torch.rand(4)),
        (half, torch.randn(6, 4).t(), torch.rand(4)),
    ):
        ours = compiled_kernels().forward(plan, threshold, [weight])[0]
        assert torch.equal(ours, EAGER.forward(plan, threshold, [weight])[0])


@pytest.mark.parametrize(
    ("view", "threshold", "expected"),
    [
        ((5, 7), (5, 1), (1, 1, 5, 7)),
        ((5, 7), (1, 7), (1, 5, 7, 1)),
        ((5, 7), (1, 1), (1, 1, 1, 35)),
        ((5, 7), (5, 7), (1, 1, 35, 1)),
        ((2, 4, 3, 2, 2), (2, 1, 3, 1, 1), (2, 4, 3, 4)),
        ((4, 5, 6), (4, 5, 1), (1, 1, 20, 6)),
        ((4, 1, 3, 3), (4, 1, 1, 1), (1, 1, 4, 9)),
        ((1, 1), (1, 1), (1, 1, 1, 1)),
    ],
)
def test_axes(view, threshold, expected) -> None:
    assert axes_of(view, threshold) == expected
