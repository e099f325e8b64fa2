"""Slim models of Hugging Face's: optional labels, the original's class of output, and learning in both ways."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from slim_checks import zero_removed

from dst_analyze import couple_channels
from dst_analyze.model.loading.torchvision_compat import torchvision_module
from dst_analyze.model.tracing.trace import trace_model
from dst_analyze.slimming.source.write import write_source
from dst_analyze.slimming.surgery.build import slim

TOKENS = 40


def bert() -> Any:
    torchvision_module()
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=TOKENS, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
        max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def gpt2() -> Any:
    torchvision_module()
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=TOKENS, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def batch(language_model: bool, size: int = 4, length: int = 9, *, padded: bool = True) -> dict[str, torch.Tensor]:
    ids, mask = torch.randint(1, TOKENS, (size, length)), torch.ones(size, length, dtype=torch.long)
    if padded:
        mask[0, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids if language_model else ids[:, 0] % 3}


def imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("slim_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("build", [bert, gpt2], ids=["bert", "gpt2"])
def test_labels_masks_and_outputs_are_the_originals(build: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, given = build(), batch(build is gpt2)
    traced = trace_model(model, given)
    coupling = couple_channels(traced)
    whole = slim(traced, {}, coupling=coupling)
    assert not whole.meta["notes"]
    calls = [given, {"input_ids": given["input_ids"]}, {k: given[k] for k in ("input_ids", "labels")}]
    for training in (False, True):
        for call in calls:
            results = []
            for one in (model, whole):
                torch.manual_seed(1)
                results.append(one.train(training)(**call))
            expected, actual = results
            assert type(expected) is type(actual)
            torch.testing.assert_close(expected.logits, actual.logits, rtol=1e-4, atol=1e-5)
            assert (expected.loss is None) is (actual.loss is None)
            if expected.loss is not None:
                torch.testing.assert_close(expected.loss, actual.loss, rtol=1e-4, atol=1e-5)

    removal = {group.name: range(group.width // 2) for group in coupling.removable}
    file = imported(write_source(slim(traced, removal, coupling=coupling), tmp_path / "slim_model.py"))
    ids, mask, _ = file.example_inputs()
    assert 1 < ids.max() < TOKENS
    assert (mask == 1).all()
    small = file.build_model()
    exact = {group.name: removal[group.name] for group in coupling.removable if not group.inexact}
    zeroed, cut = zero_removed(traced, exact, coupling=coupling).eval(), slim(traced, exact, coupling=coupling).eval()
    torch.testing.assert_close(zeroed(**given)["logits"], cut(**given).logits, rtol=1e-4, atol=1e-5)
    optimizer = torch.optim.AdamW(small.train().parameters(), 0.01)
    losses = []
    for step in range(30):
        data = batch(build is gpt2, 6, 7, padded=False)
        data["labels"] = data["labels"] * 0 + 1  # soon learned
        out = small(**data) if step % 2 else small(data["input_ids"])
        scores = out.logits if build is bert else out.logits[:, :-1].flatten(0, 1)
        target = data["labels"] if build is bert else data["labels"][:, 1:].flatten()
        loss = out.loss if step % 2 else torch.nn.functional.cross_entropy(scores, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4])


@pytest.mark.parametrize("build", [bert, gpt2], ids=["bert", "gpt2"])
def test_masks_are_read_although_the_examples_hide_nothing(build: Any, tmp_path: Path) -> None:
    """transformers leaves a mask of ones out, so the graph of such an example does not read it."""
    torch.manual_seed(0)
    model, example = build().eval(), batch(build is gpt2, padded=False)
    with torch.no_grad():
        for parameter in model.parameters():  # with its small initial weights attention hardly matters
            parameter.mul_(1 + 4 * (parameter.ndim > 1))
    traced = trace_model(model, example)
    assert traced.graph_module is not None
    (mask,) = [node for node in traced.graph_module.graph.nodes if node.target == "attention_mask"]
    assert not mask.users
    coupling = couple_channels(traced)
    whole = slim(traced, {}, coupling=coupling)
    assert not whole.meta["notes"]
    removal = {group.name: range(group.width // 2) for group in coupling.removable}
    small = slim(traced, removal, coupling=coupling)
    file = imported(write_source(small, tmp_path / "slim_model.py"))
    padded = batch(build is gpt2)
    with torch.no_grad():
        for call in (example, padded, {"input_ids": example["input_ids"]}):
            torch.testing.assert_close(whole.eval()(**call).logits, model(**call).logits, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(file.build_model().eval()(**call).logits, small.eval()(**call).logits)
        hidden = whole(**padded).logits - whole(padded["input_ids"]).logits
    assert hidden.abs().max() > 1e-2
