"""Other formats of a slim model: each is loaded again, by the program that it is for, and computes the same."""

from __future__ import annotations

import json
import sys
from fnmatch import fnmatch
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from dst_analyze import (
    DstError,
    SlimPlan,
    export_model,
    rank_layers,
    read_masks,
    read_run,
    slim_model,
    suggest_widths,
    trace_model,
)
from dst_analyze.cli.main import main
from dst_analyze.integrations import formats
from dst_analyze.integrations.formats import exporters_of
from dst_analyze.run.derived import is_whole
from dst_analyze.slimming.exports.explorer import write_explorer
from dst_analyze.slimming.exports.hub import write_hub
from dst_analyze.slimming.exports.result import SlimResult, read_exports
from dst_analyze.slimming.source.write import source_of_model, weights_of

NET = """import torch
from torch import nn

# Numbers as people write them.


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)  # first
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.head = nn.Sequential(
            nn.Linear(32 * 4 * 4, 64),   # odd   spacing
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def forward(self, x):
        x = torch.relu(self.norm1(self.conv1(x)))
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.head(torch.flatten(x, 1))
"""
EVERY = "onnx,export,hub,sparse,explorer"


def planned(model, inputs, **asked):
    """A plan whose layers are all alike: widths shrink where they can."""
    traced = trace_model(model.eval(), inputs)
    rows = [(layer.name, alpha, 0.5) for alpha in (1e-6, 1e-5) for layer in traced.layers]
    ranking = rank_layers(pd.DataFrame(rows, columns=["layer", "alpha", "remaining"]))
    plan = suggest_widths(traced, ranking, **asked)
    return traced, plan, slim_model(traced, plan), ranking


def result_of(model, inputs, **asked):
    traced, plan, slim, ranking = planned(model, inputs, **asked)
    return _result(traced, plan, slim, ranking)


def halved(model, inputs, *patterns):
    """The slim model with half of the channels of some groups, in every layer the same."""
    traced, plan, _, ranking = planned(model, inputs)
    groups = []
    for group in plan.groups:
        gone = tuple(range(0, group.units, 2)) if any(fnmatch(group.group, one) for one in patterns) else ()
        width = group.width - len(gone) * (group.width // group.units)
        groups.append(group.model_copy(update={"removed": gone, "new_width": width}))
    plan = plan.model_copy(update={"groups": tuple(groups)})
    return _result(traced, plan, slim_model(traced, plan), ranking)


def _result(traced, plan, slim, ranking):
    return SlimResult(slim, traced, plan, source_of_model(slim).encode(), weights_of(slim), ranking=ranking)


@pytest.fixture(scope="module")
def run(tmp_path_factory, inline_module):
    """A run of a model file by the command line, with its suggestion in every format."""
    home = tmp_path_factory.mktemp("home")
    (home / "net.py").write_text(NET)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(home)
        options = ["--steps", "20", "--warm-up", "4", "--alphas", "1e-6,1e-5", "--jobs", "1"]
        assert main(["net.py", "--data", "digits", *options, "--out", "run", "--quiet"]) == 0
        assert main(["slim", "run", "--format", "onnx,export", "--format", "hub,sparse,explorer"]) == 0
        yield home / "run"


# --- ONNX and torch.export ------------------------------------------------------------------------------------------


def test_onnx_takes_any_batch_and_computes_the_same(run):
    onnxruntime = pytest.importorskip("onnxruntime")
    slim = _slim_source(run)
    session = onnxruntime.InferenceSession(str(run / "slim_model.onnx"), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    assert given.shape[0] == "batch"
    assert [output.name for output in session.get_outputs()] == ["output"]
    for size in (1, 5):
        x = torch.randn(size, 1, 8, 8)
        (found,) = session.run(None, {given.name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), slim(x), atol=1e-5, rtol=1e-4)


def test_onnx_says_what_is_known_of_each_layer_and_nothing_of_this_machine(run):
    onnx = pytest.importorskip("onnx")
    data = (run / "slim_model.onnx").read_bytes()
    model = onnx.load_from_string(data)
    about = {entry.key: entry.value for entry in model.metadata_props}
    plan = SlimPlan.load(run / "plan.json")
    assert about["dst_analyze.parameters"] == f"{plan.params} -> {plan.new_params}"
    assert about["dst_analyze.ranking"]
    nodes = [{entry.key: entry.value for entry in node.metadata_props} for node in model.graph.node]
    noted = {node["dst_analyze.layer"]: node for node in nodes if "dst_analyze.layer" in node}
    assert set(noted) == {"conv1", "conv2", "head.0", "head.2"}
    width = next(group for group in plan.groups if "conv2" in group.layers)
    assert noted["conv2"]["dst_analyze.width"].startswith(str(width.width))
    assert noted["conv2"]["dst_analyze.label"]
    for place in (str(Path(torch.__file__).parent), str(run.parent), sys.prefix):
        assert place.encode() not in data


def test_a_program_of_torch_export_takes_any_batch_and_has_no_example_within(run):
    program = torch.export.load(run / "slim_model.pt2")
    assert program.example_inputs is None
    slim = _slim_source(run)
    for size in (1, 5):
        x = torch.randn(size, 1, 8, 8)
        torch.testing.assert_close(program.module()(x), slim(x))


def test_the_record_of_exports_has_differences_and_checksums(run):
    record = read_run(run)
    found = {entry.format: entry for entry in read_exports(record).exports}
    assert set(found) == set(EVERY.split(","))
    for name in ("onnx", "export"):
        assert found[name].batch_sizes == (1, 3)
        assert 0 <= found[name].difference < 1e-5
    for name in ("slim_model.onnx", "slim_model.pt2", "sparse_model.safetensors", "exports.json"):
        assert is_whole(record, name)
    data = (run / "slim_model.pt2").read_bytes()
    (run / "slim_model.pt2").write_bytes(data[:-1] + b"x")
    assert not is_whole(record, "slim_model.pt2")
    (run / "slim_model.pt2").write_bytes(data)


class Fixed(nn.Module):
    """A model that knows its batch size."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)).view(2, 32))


def test_export_model_writes_one_file_and_says_how_near_it_is(tmp_path):
    *_, slim, _ = planned(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)), torch.randn(2, 8))
    found = export_model(slim, tmp_path / "small.pt2")
    assert (tmp_path / "small.pt2").exists()
    assert found.difference < 1e-6
    assert "batch sizes 1 and 3" in found.words
    with pytest.raises(DstError, match=r"\*\.bin"):
        export_model(slim, tmp_path / "small.bin")


def test_a_model_of_one_batch_size_is_exported_for_that(tmp_path):
    *_, slim, _ = planned(Fixed(), torch.randn(2, 8))
    found = export_model(slim, tmp_path / "fixed.pt2")
    assert found.batch_sizes == (2,)
    assert "batches of 2 only" in found.words


def test_unknown_formats_and_missing_packages_are_errors_before_anything_is_computed(monkeypatch, capsys):
    assert main(["slim", "no-such-run", "--format", "tflite"]) == 2
    assert "there is no format 'tflite'" in capsys.readouterr().err
    monkeypatch.setattr("dst_analyze.integrations.onnx.find_spec", lambda name: None)
    assert main(["no-such-model.py", "--format", "onnx"]) == 2
    said = capsys.readouterr().err
    assert "onnx and onnxscript and onnxruntime are not installed" in said
    assert "hint: pip install 'dst-analyze[onnx]'" in said
    assert list(exporters_of("export, hub,source")) == ["export", "hub"]
    assert set(formats.FORMATS) == set(EVERY.split(","))


# --- the hub --------------------------------------------------------------------------------------------------------

SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}
INSIDE = ("*intermediate*", "*mlp*", "*fc1*", "*up_proj*", "*gate_proj*")


def pretrained(name):
    transformers = pytest.importorskip("transformers")
    words = {"input_ids": torch.randint(2, 40, (2, 8))}
    if name == "bert":
        config = transformers.BertConfig(vocab_size=40, max_position_embeddings=32, **SMALL)
        return transformers.BertForSequenceClassification(config), words
    if name == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
        config = transformers.GPT2Config(vocab_size=40, bos_token_id=0, eos_token_id=0, **sizes)
        return transformers.GPT2LMHeadModel(config), words
    if name == "vit":
        config = transformers.ViTConfig(image_size=16, patch_size=8, num_labels=5, **SMALL)
        return transformers.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 16, 16)}
    config = transformers.LlamaConfig(vocab_size=40, max_position_embeddings=32, num_key_value_heads=2, **SMALL)
    return transformers.LlamaForCausalLM(config), words


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit", "llama"])
def test_the_class_of_a_pretrained_model_loads_its_slim_form(name, tmp_path):
    model, inputs = pretrained(name)
    result = halved(model, inputs, *INSIDE)
    found = write_hub(result)
    assert "from_pretrained loads it" in found.note
    folder = _written(found.folders["hub"], tmp_path)
    assert "slim_model.py" not in found.folders["hub"]
    loaded = type(model).from_pretrained(folder).eval()
    assert sum(p.numel() for p in loaded.parameters()) < sum(p.numel() for p in model.parameters())
    with torch.no_grad():
        expected = result.model.eval()(*inputs.values())
        logits = loaded(**inputs).logits
    torch.testing.assert_close(logits, expected["logits"], atol=1e-4, rtol=1e-4)
    card = (folder / "README.md").read_text()
    assert f"{type(model).__name__}.from_pretrained" in card
    assert "have not been trained since" in card


def test_heads_that_no_configuration_has_are_said_and_the_source_is_written(tmp_path):
    model, inputs = pretrained("bert")
    result = result_of(model, inputs, target_params=0.6, keep=["*intermediate*"])
    found = write_hub(result)
    assert "no configuration of BertForSequenceClassification has these widths" in found.note
    folder = _written(found.folders["hub"], tmp_path)
    slim = _built(folder / "slim_model.py")
    torch.testing.assert_close(slim(*inputs.values())["logits"], result.model.eval()(*inputs.values())["logits"])
    assert "cannot load it" in (folder / "README.md").read_text()


def test_any_model_has_a_card_with_its_evidence_which_is_the_users_to_change(run, capsys):
    files = {path.name for path in (run / "hub").iterdir()}
    assert files == {"README.md", "SHA256SUMS", "config.json", "model.safetensors", "slim_model.py"}
    card = (run / "hub" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: pytorch\n")
    for text in ("Strengths (alpha): 1e-06, 1e-05", "## Proof\n\nNone", "license:"):
        assert text in card
    narrowed = [group.group for group in SlimPlan.load(run / "plan.json").groups if group.new_width < group.width]
    assert narrowed
    assert all(f"| `{name}` |" in card for name in narrowed)
    slim = _built(run / "hub" / "slim_model.py")
    assert json.loads((run / "hub" / "config.json").read_text())["parameters"] == sum(
        p.numel() for p in slim.parameters()
    )

    (run / "hub" / "README.md").write_text(f"{card}license: mit\n")  # as a user is asked to
    assert main(["slim", "run", "--format", "hub"]) == 2
    assert "hint: move it away" in capsys.readouterr().err
    assert (run / "hub" / "README.md").read_text().endswith("license: mit\n")
    (run / "hub").rename(run.parent / "hub")


# --- sparse weights and Model Explorer ------------------------------------------------------------------------------


def test_sparse_weights_have_the_zeros_of_the_masks_that_the_run_kept(run):
    tensors = load_file(run / "sparse_model.safetensors")
    model = _built(run.parent / "net.py", "Net")
    model.load_state_dict(tensors)
    entry = next(entry for entry in read_exports(read_run(run)).exports if entry.format == "sparse")
    key = f"alpha={'1e-05' if 'alpha 1e-5' in entry.note else '1e-06'},seed=0"
    masks = read_masks(run / "trials" / key)
    assert any(not mask.all() for mask in masks.values())
    for layer, mask in masks.items():
        found = tensors[f"{layer}.weight"]
        assert not found[torch.from_numpy(~mask)].any()
        assert found[torch.from_numpy(mask)].ne(0).float().mean() > 0.999


def test_model_explorer_gets_a_graph_and_a_value_for_each_layer(run):
    folder = run / "model_explorer"
    (graph,) = json.loads((folder / "model.json").read_text())["graphs"]
    ids = {node["id"] for node in graph["nodes"]}
    assert all(edge["sourceNodeId"] in ids for node in graph["nodes"] for edge in node["incomingEdges"])
    layers = {
        node["id"]: attribute["value"]
        for node in graph["nodes"]
        for attribute in node["attrs"]
        if attribute["key"] == "layer"
    }
    plan = SlimPlan.load(run / "plan.json")
    widths = {layer: group.new_width for group in plan.groups for layer in group.layers}
    data = json.loads((folder / "width.json").read_text())[graph["id"]]
    assert {layers[node]: result["value"] for node, result in data["results"].items()} == widths
    for name in ("redundancy", "label", "spare"):
        assert set(json.loads((folder / f"{name}.json").read_text())[graph["id"]]["results"]) <= set(layers)
    labels = json.loads((folder / "label.json").read_text())
    assert set(labels["model"]["results"]) == set(layers)
    names = {node.name for node in torch.export.load(run / "slim_model.pt2").graph.nodes}
    assert set(labels["graph"]["results"]) <= names
    assert len(labels["graph"]["results"]) == len(layers)


def test_elsewhere_only_what_is_ours_is_replaced(run, tmp_path, capsys):
    for name in ("summary.md", "report.html"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "model_explorer").mkdir()
    (tmp_path / "model_explorer" / "notes.txt").write_text("mine")
    assert main(["slim", "run", "--out", str(tmp_path), "--format", "explorer"]) == 2
    assert "model_explorer" in capsys.readouterr().err
    assert main(["slim", "run", "--out", str(tmp_path), "--format", "export"]) == 0
    assert (tmp_path / "slim_model.pt2").exists()
    assert [(tmp_path / name).read_text() for name in ("summary.md", "report.html")] == ["mine", "mine"]
    assert (tmp_path / "model_explorer" / "notes.txt").exists()


def test_node_data_need_no_run():
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    found = write_explorer(result_of(model, torch.randn(2, 8)))
    widths = json.loads(found.folders["model_explorer"]["width.json"])["model"]["results"]
    assert [result["value"] for result in widths.values()] == [16]


def test_a_format_that_fails_is_said_in_one_line_and_the_rest_is_written(run, monkeypatch, capsys):
    onnx = pytest.importorskip("dst_analyze.integrations.onnx")

    def refuse(*args, **kwargs):
        raise RuntimeError("no such operator\nand much more")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    assert onnx.torch is torch
    assert main(["slim", "run", "--format", "onnx,export", "--target-params", "0.4"]) == 1
    said = capsys.readouterr().out
    assert "onnx        not written: torch.onnx: RuntimeError: no such operator\n" in said
    assert (run / "slim_model.pt2").exists()
    assert not (run / "slim_model.onnx").exists()
    assert not (run / "hub").exists()  # of another plan
    assert {entry.format: bool(entry.reason) for entry in read_exports(read_run(run)).exports} == {
        "onnx": True,
        "export": False,
    }
    monkeypatch.undo()
    assert main(["slim", "run", "--format", "export"]) == 0
    assert main(["slim", "run", "--format", "onnx"]) == 0  # of the same plan: the other is kept
    assert {entry.format for entry in read_exports(read_run(run)).exports} == {"export", "onnx"}
    assert is_whole(read_run(run), "slim_model.pt2")


def _slim_source(run):
    return _built(run / "slim_model.py")


def _built(path, name="build_model"):
    names = {"__name__": "built", "__file__": str(path)}
    exec(compile(Path(path).read_text(), str(path), "exec"), names)
    return names[name]().eval()


def _written(files, folder):
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder
