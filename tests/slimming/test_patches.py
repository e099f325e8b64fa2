"""The change of a user's own file, and the call of a library's own class: both build the slim model."""

from __future__ import annotations

import subprocess

import pandas as pd
import pytest
import torch

from dst_analyze import load_model, rank_layers, slim_model, suggest_widths, trace_model
from dst_analyze.slimming.exports.library import slim_call
from dst_analyze.slimming.exports.same_class import fill_from
from dst_analyze.slimming.patches.sites import sites_of
from dst_analyze.slimming.patches.write import make_patch, with_sites
from dst_analyze.slimming.source.edits import changed_lines

HEAD = "import torch\nfrom torch import nn\n\n\n"
LITERAL = (
    HEAD
    + '''class Net(nn.Module):
    """Größen als Zahlen."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)  # erste Schicht, 16 Kanäle
        self.norm = nn.BatchNorm2d(
            num_features = 16 )
        self.conv2 = nn.Conv2d(16,32,3,padding=1); self.drop = nn.Dropout(0.1)
        self.head = nn.Sequential(
            nn.Linear(4 * 4 * 32, 64),   # odd   spacing
            nn.ReLU(),
            nn.Linear(64, 10),
        )

    def forward(self, x):
        x = torch.relu(self.norm(self.conv1(x)))
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.head(torch.flatten(self.drop(x), 1))'''
)
"""Without a newline at its end."""
NAMED = (
    HEAD
    + """HIDDEN = 32


def block(inside, outside):
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU())


def build_model(last=24):
    wide = 16
    return nn.Sequential(
        block(1, wide), block(wide, HIDDEN), block(HIDDEN, last), nn.Flatten(), nn.Linear(last * 64, 10)
    )
"""
)
LOOP = (
    HEAD
    + """class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        layers = []
        for inside, outside in ((1, width), (width, 2 * width)):
            layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.last = nn.Linear(32, 10)

    def forward(self, x):
        return self.last(self.layers(x).mean((2, 3)))
"""
)
SHARED = (
    HEAD
    + """class Net(nn.Module):
    def __init__(self, wide=32):
        super().__init__()
        self.one, self.two = nn.Linear(8, wide), nn.Linear(wide, wide)
        self.last = nn.Linear(wide, 4)

    def forward(self, x):
        return self.last(torch.relu(self.two(torch.relu(self.one(x)))))
"""
)
FIXED = (
    HEAD
    + """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 32), nn.Linear(32, 4)
        self.count = 32

    def forward(self, x):
        if self.one.out_features != self.count:
            raise ValueError("other widths")
        return self.two(torch.relu(self.one(x)))
"""
)


def slimmed(path, inputs, remaining=None, **asked):
    traced = trace_model(load_model(path).model.eval(), inputs)
    return traced, _slim(traced, remaining or {}, asked)


def _slim(traced, remaining, asked):
    rows = [(layer.name, a, remaining.get(layer.name, 0.5)) for a in (1e-6, 1e-5) for layer in traced.layers]
    ranking = rank_layers(pd.DataFrame(rows, columns=["layer", "alpha", "remaining"]))
    return slim_model(traced, suggest_widths(traced, ranking, **asked))


def _applied(folder, patch):
    """Apply a patch as a user would, in a copy beside the file."""
    (folder / "p.patch").write_bytes(patch.text.encode())
    subprocess.run(["git", "apply", "p.patch"], cwd=folder, check=True, capture_output=True)
    return (folder / "net.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", [LITERAL, NAMED], ids=["literal", "named"])
def test_a_patch_changes_numbers_alone_and_builds_the_slim_model(text, tmp_path):
    file = tmp_path / "net.py"
    file.write_text(text, encoding="utf-8")
    traced, slim = slimmed(str(file), torch.randn(2, 1, 8, 8))
    patch = make_patch(traced, slim, str(file), {})
    assert patch.reason == ""
    after = _applied(tmp_path, patch)
    digits = str.maketrans("", "", "0123456789")
    assert after.translate(digits) == text.translate(digits)  # comments and spaces are kept
    assert after != text
    built = load_model(str(file)).model
    fill_from(built, slim, traced.model)
    x = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(built.eval()(x), slim.eval()(x))


def test_of_a_product_the_factor_that_is_a_width_is_changed(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(LITERAL, encoding="utf-8")
    traced, slim = slimmed(str(file), torch.randn(2, 1, 8, 8))
    width = slim.get_submodule("conv2").out_channels
    assert width != 32
    assert f"nn.Linear(4 * 4 * {width}, " in make_patch(traced, slim, str(file), {}).text


def test_one_number_for_two_widths_is_said_and_not_patched(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(SHARED)
    traced, slim = slimmed(str(file), torch.randn(2, 8), {"one": 0.9, "two": 0.1})
    patch = make_patch(traced, slim, str(file), {})
    assert not patch.text
    assert "has one number, 32, for widths that become" in patch.reason


def test_widths_of_loops_get_the_line_that_builds_them(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(LOOP)
    traced, slim = slimmed(str(file), torch.randn(2, 1, 8, 8))
    patch = make_patch(traced, slim, str(file), {})
    assert not patch.text
    assert "`inside`" in patch.reason or "`outside`" in patch.reason
    changes = with_sites(changed_lines(traced, slim), sites_of(str(file), {})).set_index("layer")
    line = 1 + LOOP.split("\n").index("            layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU()]")
    assert changes.loc["layers.2", "place"].endswith(f"net.py:{line}")


def test_a_patch_that_does_not_run_is_not_written(tmp_path):
    file = tmp_path / "net.py"
    file.write_text(FIXED)
    traced, slim = slimmed(str(file), torch.randn(2, 8))
    patch = make_patch(traced, slim, str(file), {})
    assert not patch.text
    assert "the class does not run with these widths: ValueError: other widths" in patch.reason


def test_a_patch_leaves_siblings_imported_as_they_were(tmp_path, monkeypatch):
    (tmp_path / "layers_of_this_test.py").write_text(HEAD + "def wide():\n    return nn.Linear(8, 32)\n")
    file = tmp_path / "net.py"
    file.write_text("from torch import nn\nfrom layers_of_this_test import wide\n\n\ndef build_model():\n"
                    "    return nn.Sequential(wide(), nn.ReLU(), nn.Linear(32, 4))\n")  # fmt: skip
    traced, slim = slimmed(str(file), torch.randn(2, 8))
    import layers_of_this_test as before

    patch = make_patch(traced, slim, str(file), {})
    assert "+++ b/layers_of_this_test.py" in patch.text
    assert "+++ b/net.py" in patch.text
    import sys

    assert sys.modules["layers_of_this_test"] is before
    assert not any("dst" not in path and path.startswith("/tmp/tmp") for path in sys.path)


# --- classes of libraries -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "side", "said"),
    [
        ("torchvision:resnet18", 32, "model.layer4[1].bn2 = nn.BatchNorm2d("),
        ("torchvision:mobilenet_v2", 32, "inverted_residual_setting=["),
        ("timm:resnet10t", 32, 'timm.create_model("resnet10t", num_classes=10)'),
    ],
)
def test_the_call_of_a_library_builds_the_slim_model(spec, side, said):
    if spec.startswith("timm"):
        pytest.importorskip("timm")
    arguments = {"num_classes": 10}
    traced = trace_model(load_model(spec, model_args=arguments).model.eval(), torch.randn(2, 3, side, side))
    slim = _slim(traced, {}, {"target_params": 0.5})
    text, why = slim_call(traced, slim, spec, arguments)
    assert why == ""
    assert said in text
    names = {"__name__": "slim_call"}
    exec(compile(text, "slim_call.py", "exec"), names)
    built = names["build_model"]()
    assert type(built).__module__ == type(traced.model).__module__
    fill_from(built, slim, traced.model)
    x = torch.randn(2, 3, side, side)
    torch.testing.assert_close(built.eval()(x), slim.eval()(x), atol=1e-4, rtol=1e-3)
    assert slim_call(traced, slim, "mine.py", {})[0]  # the class says whose it is


def test_vgg_gets_its_list_of_widths():
    from torchvision.models.vgg import VGG, make_layers

    from dst_analyze.slimming.exports.library import _vgg

    model = VGG(make_layers([8, "M", 16, "M"], batch_norm=True), init_weights=False)
    wanted = {f"features.{at}.weight": (width,) for at, width in ((0, 6), (4, 12))}
    call = _vgg(model, {"num_classes": 10}, wanted)
    assert call.text == 'VGG(make_layers([6, "M", 12, "M"], batch_norm=True), init_weights=False, num_classes=10)'


def test_models_of_nobody_have_no_call():
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    traced = trace_model(model, torch.randn(2, 8))
    assert slim_call(traced, _slim(traced, {}, {}), "mine.py", {}) == ("", "")
