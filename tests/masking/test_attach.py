"""`attach`: masks on a model that a loop of the user's trains, in the loops that people have."""

from __future__ import annotations

import copy
import inspect
import io
import os
import pickle
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

import dst_analyze as dst
from dst_analyze.errors import ModelError
from dst_analyze.masking.masked import mask_model
from dst_analyze.masking.training.threshold_training import ThresholdTraining

ALPHA = 3e-2
STEPS = 12


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))


def batches(count=STEPS, size=16):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 8, generator=generator), torch.randint(0, 4, (size,), generator=generator))
        for _ in range(count)
    ]


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.2, "momentum": 0.9, **options})


def take(model, optimizer, batch):
    optimizer.zero_grad()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()


def loop(model, optimizer, data=None):
    torch.manual_seed(2)
    for batch in data or batches():
        take(model, optimizer, batch)


def attached(model, optimizer=None, **options):
    return dst.attach(model, batches(1)[0][0][:2], optimizer, **{"alpha": ALPHA, **options})


def test_a_plain_loop_gives_what_a_masked_copy_gives_to_the_bit():
    model, by_hand = net(), mask_model(net(), batches(1)[0][0][:2], form="modules")
    optimizer = sgd(model)
    names, objects = list(model.state_dict()), [id(p) for p in model.parameters()]
    with attached(model, optimizer, write_zeros=False) as masks:
        loop(model, optimizer)
        assert list(model.state_dict()) == names
    theirs = sgd(by_hand.model)
    ThresholdTraining(by_hand, ALPHA).follow(theirs)
    loop(by_hand, theirs)
    assert torch.equal(masks.masked.thresholds, by_hand.thresholds)
    assert all(map(torch.equal, model.parameters(), by_hand.model.parameters()))
    assert [id(p) for p in model.parameters()] == objects
    assert masks.remaining() == by_hand.remaining()
    assert 0 < masks.model_remaining() < 1
    assert "forward" not in vars(model)
    assert masks.sparsity_loss().item() == pytest.approx(torch.exp(-by_hand.thresholds).sum().item())


def test_leaving_the_block_writes_the_zeros():
    model = net()
    optimizer = sgd(model)
    with attached(model, optimizer) as masks:
        loop(model, optimizer)
        kept = masks.masks()
    assert all(torch.equal(model[i].weight != 0, kept[str(i)]) for i in (0, 3))
    assert not all(mask.all() for mask in kept.values())


@pytest.mark.parametrize("given", [True, False])
def test_the_optimizer_is_found_by_its_first_step(given):
    model, other = net(), nn.Linear(2, 2)
    optimizer, unrelated = torch.optim.AdamW(model.parameters(), lr=0.05), sgd(other)
    with attached(model, optimizer if given else None) as masks:
        other(torch.ones(1, 2)).sum().backward()
        unrelated.step()
        loop(model, optimizer)
    assert masks.training.steps == STEPS
    assert isinstance(masks.training.optimizer, torch.optim.AdamW)
    assert masks.training.optimizer.param_groups[0]["weight_decay"] == 0


def test_accumulated_gradients_give_what_one_large_batch_gives():
    ends = []
    for parts in (1, 4):
        model = net()
        model[2].p = 0.0
        optimizer = sgd(model)
        with attached(model, optimizer) as masks:
            for x, y in batches():
                optimizer.zero_grad()
                for i in range(parts):
                    F.cross_entropy(model(x[i::parts]), y[i::parts]).div(parts).backward()
                optimizer.step()
        assert masks.training.steps == STEPS
        ends.append(masks.masked.thresholds.detach())
    assert torch.allclose(*ends, atol=1e-5)


def test_clipping_leaves_the_thresholds_alone_and_dropped_gradients_drop_theirs():
    model = net()
    optimizer = sgd(model)
    with attached(model, optimizer) as masks:
        x, y = batches(1)[0]
        (1e6 * F.cross_entropy(model(x), y)).backward()
        optimizer.zero_grad()  # the loop thinks better of it
        loop(model, optimizer)
        before = masks.masked.thresholds.detach().clone()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
        optimizer.step()
    calm = net()
    with attached(calm, sgd_of := sgd(calm)) as untouched:
        loop(calm, sgd_of)
    assert torch.equal(before, untouched.masked.thresholds)
    assert not torch.equal(before, masks.masked.thresholds)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscaled", [False, True])
def test_a_gradient_scaler_changes_nothing_but_the_rounding(unscaled, fused):
    def trained(scaler):
        model = net()
        model[2].p = 0.0
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, fused=fused)
        with attached(model, optimizer) as masks:
            for number, (x, y) in enumerate(batches()):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.float16, enabled=scaler is not None):
                    loss = F.cross_entropy(model(x).float(), y)
                if scaler is None:
                    loss.backward()
                    optimizer.step()
                    continue
                if number == 5:
                    loss = loss * torch.inf  # a step that the scaler leaves out
                scaler.scale(loss).backward()
                if unscaled:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 1e3)
                scaler.step(optimizer)
                scaler.update()
        return masks

    scaled, plain = trained(torch.amp.GradScaler("cpu", init_scale=2.0**10)), trained(None)
    assert scaled.training.steps == STEPS - 1
    assert scaled.masked.thresholds.isfinite().all()
    assert torch.allclose(scaled.masked.thresholds, plain.masked.thresholds, atol=0.05)
    assert scaled.model_remaining() == pytest.approx(plain.model_remaining(), abs=0.1)


def test_autocast_in_bfloat16():
    model = net()
    optimizer = sgd(model)
    with attached(model, optimizer) as masks:
        for x, y in batches():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    assert masks.masked.thresholds.dtype == torch.float32
    assert 0 < masks.model_remaining() < 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_learning_rate_is_followed_through_its_schedule(when):
    model = net()
    optimizer = sgd(model, momentum=0.0)

    def schedule():
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.5], total_steps=STEPS)

    first = schedule() if when == "before" else None
    with attached(model, optimizer, clock=3.0) as masks:
        scheduler = first or schedule()
        for batch in batches():
            take(model, optimizer, batch)
            group = masks.training.optimizer.param_groups[0]
            assert group["lr"] == pytest.approx(3 * optimizer.param_groups[0]["lr"])
            assert group["momentum"] == optimizer.param_groups[0]["momentum"]
            scheduler.step()
    assert len(optimizer.param_groups) == 1


def test_of_several_optimizers_the_one_with_most_of_the_weights_is_followed():
    model = net()
    first, rest = sgd(model[0]), torch.optim.Adam(model[3].parameters())
    with attached(model, [rest, first]) as masks:
        for x, y in batches():
            for optimizer in (first, rest):
                optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            first.step()
            rest.step()
    assert masks.training.steps == STEPS
    assert isinstance(masks.training.optimizer, torch.optim.SGD)


class SignDescent(torch.optim.Optimizer):
    """An optimizer as other packages write them."""

    def __init__(self, params, lr=1e-2, scale=1.0):
        super().__init__(params, {"lr": lr, "scale": scale, "weight_decay": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad.sign() * group["lr"] * group["scale"])
        return loss


class MatricesOnly(SignDescent):
    """One that refuses vectors, as Muon does."""

    def __init__(self, params, lr=1e-2):
        params = list(params)
        if any(p.ndim != 2 for p in params):
            raise ValueError("matrices only")
        super().__init__(params, lr)


@pytest.mark.parametrize(("kind", "own"), [(SignDescent, SignDescent), (MatricesOnly, torch.optim.SGD)])
def test_optimizers_that_are_not_torchs(kind, own):
    model = net()
    optimizer = kind([p for p in model.parameters() if p.ndim == 2], lr=1e-2)

    def closure_of(x, y):
        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return closure

    with attached(model, optimizer) as masks:
        for x, y in batches():
            optimizer.step(closure_of(x, y))
    assert type(masks.training.optimizer) is own
    assert masks.training.steps == STEPS
    assert 0 < masks.model_remaining() < 1


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile's own
@pytest.mark.parametrize("order", ["compiled first", "attached first"])
def test_a_compiled_model(order):
    model, plain = net(), net()
    model[2].p = plain[2].p = 0.0
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True) if order == "compiled first" else model
    if order == "compiled first":
        compiled(batches(1)[0][0])
    optimizer, theirs = sgd(model), sgd(plain)
    with attached(compiled, optimizer) as masks:
        if order == "attached first":
            compiled = torch.compile(model, backend="aot_eager")
        loop(compiled, optimizer)
    with attached(plain, theirs) as expected:
        loop(plain, theirs)
    assert torch.allclose(masks.masked.thresholds, expected.masked.thresholds, atol=1e-5)
    x = batches(1)[0][0]
    assert torch.allclose(compiled(x), model(x), atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile's own
def test_a_layer_that_collapses_under_compile_is_set_back():
    model = net()
    compiled = torch.compile(model, backend="eager")
    optimizer = sgd(model)
    with attached(compiled, optimizer, alpha=50.0) as masks:
        loop(compiled, optimizer)
    assert sum(masks.masked.resets.values()) > 0


def test_two_forward_passes_in_a_step():
    model = net()
    optimizer = sgd(model)
    with attached(model, optimizer) as masks:
        for x, _ in batches():
            optimizer.zero_grad()
            F.mse_loss(model(x), model(x + 0.1)).backward()
            optimizer.step()
    assert masks.training.steps == STEPS
    assert 0 < masks.model_remaining() < 1


def test_of_several_models_only_the_attached_one_is_masked():
    one, other = net(0), net(1)
    before = other.forward
    optimizer, theirs = sgd(one), sgd(other)
    with attached(one, optimizer) as masks:
        for x, y in batches():
            for each in (optimizer, theirs):
                each.zero_grad()
            (F.cross_entropy(one(x), y) + F.cross_entropy(other(x), y)).backward()
            optimizer.step()
            theirs.step()
        assert other.forward == before
    assert masks.training.steps == STEPS
    assert (other[0].weight != 0).all()


def test_copies_have_a_life_apart():
    """What averages weights, or saves a model, copies it in the middle of training."""
    model = net()
    optimizer = sgd(model)
    x = batches(1)[0][0]
    with attached(model, optimizer, write_zeros=False) as masks:
        averaged = AveragedModel(model)
        for batch in batches():
            take(model, optimizer, batch)
            averaged.update_parameters(model)
        copied, loaded = copy.deepcopy(model).eval(), pickle.loads(pickle.dumps(model)).eval()
        model.eval()
        dense = F.linear(F.linear(x, model[0].weight, model[0].bias).relu(), model[3].weight, model[3].bias)
        assert torch.equal(copied(x), dense)
        assert torch.equal(loaded(x), dense)
        assert not torch.equal(model(x), dense)
        assert inspect.signature(model.forward) == inspect.signature(nn.Sequential.forward).replace(
            parameters=list(inspect.signature(nn.Sequential.forward).parameters.values())[1:]
        )
        with torch.no_grad():
            copied[0].weight.zero_()
        assert not torch.equal(copied(x), dense)
        assert masks.model_remaining() > 0
    assert torch.equal(model(x), dense)


def test_a_checkpoint_goes_on_where_it_was_to_the_bit(tmp_path):
    data = batches()

    def trained(stop=None, start=None):
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        model[2].p = 0.0
        with attached(model, optimizer, clock=4.0) as masks:
            if start is not None:
                saved = torch.load(start, weights_only=True)
                model.load_state_dict(saved["model"])
                optimizer.load_state_dict(saved["optimizer"])
                masks.load_state_dict(saved["masks"])
            loop(model, optimizer, data[masks.training.steps : stop])
            if stop is not None:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state | {"masks": masks.state_dict()}, tmp_path / "saved.pt")
        return masks

    whole = trained()
    trained(stop=7)
    resumed = trained(start=tmp_path / "saved.pt")
    assert torch.equal(whole.masked.thresholds, resumed.masked.thresholds)
    assert all(map(torch.equal, whole.model.parameters(), resumed.model.parameters()))
    assert resumed.training.steps == STEPS


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_whatever_ends_the_block_the_model_is_given_back(error):
    model = net()
    optimizer = sgd(model)

    def broken_off():
        with attached(model, optimizer):
            loop(model, optimizer)
            raise error

    with pytest.raises(error):
        broken_off()
    assert "forward" not in vars(model)
    assert (model[0].weight != 0).all()
    loop(model, optimizer)
    with attached(model, optimizer) as again:
        loop(model, optimizer)
    assert again.training.steps == STEPS


class Stepper(nn.Module):
    """A module whose loop calls another method than forward, as Lightning's does."""

    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, x):
        return self.inner(x)

    def training_step(self, batch):
        return F.cross_entropy(self.inner(batch[0]), batch[1])


def test_a_loop_that_calls_another_method():
    model = Stepper()
    optimizer = sgd(model)

    def train():
        for batch in batches():
            optimizer.zero_grad()
            model.training_step(batch).backward()
            optimizer.step()

    with attached(model, optimizer, methods=["training_step"]) as masks:
        train()
    assert 0 < masks.model_remaining() < 1
    assert "training_step" not in vars(model)
    with pytest.raises(ModelError, match="none of them had gradients that came through") as unseen, attached(model):
        train()
    assert "methods=" in unseen.value.hint


def test_bad_use_is_named():
    model = net()
    optimizer = sgd(model)
    with attached(model, optimizer, write_zeros=False):
        with pytest.raises(ModelError, match="attached to this model already"):
            attached(model)
        with pytest.raises(ModelError, match="attached to this model already"):
            attached(nn.Sequential(model))
        take(model, optimizer, batches(1)[0])
    with pytest.raises(ModelError, match="holds none of the weights"):
        attached(model, sgd(net()))
    with pytest.raises(ModelError, match="LBFGS evaluates the loss several times"):
        attached(model, torch.optim.LBFGS(model.parameters()))
    with pytest.raises(ModelError, match="no torch"):
        attached(model, object())
    with pytest.raises(ModelError, match="DataParallel copies the model"):
        attached(nn.DataParallel(model))
    with pytest.raises(ModelError, match="no optimizer took a step"), attached(model, sgd(model)):
        pass
    with pytest.raises(ModelError, match="nothing in the model is left to mask"):
        attached(nn.Sequential(nn.ReLU()))
    assert "forward" not in vars(model)


DISTRIBUTED = """
    import sys, torch, torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    import dst_analyze as dst

    rank, where = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{where}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    with dst.attach(parallel, torch.randn(2, 8), optimizer, alpha=3e-2) as masks:
        for _ in range(10):
            x, y = torch.randn(16, 8, generator=generator), torch.randint(0, 4, (16,), generator=generator)
            optimizer.zero_grad()
            nn.functional.cross_entropy(parallel(x[rank::2]), y[rank::2]).backward()
            optimizer.step()
    torch.save({"thresholds": masks.masked.thresholds.detach(), "weight": model[0].weight}, f"{where}/{rank}.pt")
    dist.barrier()
    del parallel
    dist.destroy_process_group()
"""


def test_ddp_keeps_the_thresholds_of_all_processes_the_same(tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(textwrap.dedent(DISTRIBUTED))
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen([sys.executable, script, str(rank), tmp_path], env=surroundings, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    for process in ranks:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    one, other = (torch.load(io.BytesIO((tmp_path / f"{rank}.pt").read_bytes())) for rank in range(2))
    assert torch.equal(one["thresholds"], other["thresholds"])
    assert torch.equal(one["weight"], other["weight"])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = sgd(model)
    generator = torch.Generator().manual_seed(1)
    with dst.attach(model, torch.randn(2, 8), optimizer, alpha=3e-2) as masks:
        for _ in range(10):
            take(
                model,
                optimizer,
                (torch.randn(16, 8, generator=generator), torch.randint(0, 4, (16,), generator=generator)),
            )
    assert torch.allclose(masks.masked.thresholds, one["thresholds"], atol=1e-5)
