"""torchvision beside a CPU-only torch. Import state is the point here: every test runs in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parents[2]

# Stands in for a torchvision wheel that does not fit the torch beside it, whatever wheel this machine has.
BREAK_ITS_LIBRARY = """
import torch
torch.ops.load_library = lambda path: (_ for _ in ()).throw(OSError(f"Could not load this library: {path}"))
"""

# Stands in for a wheel that fits: its operators are there before its Python asks for them.
HAVE_ITS_OPERATORS = """
import torch
library = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def run(*parts: str, cwd: Path | None = None) -> str:
    """What a fresh interpreter prints, with warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(parts)],
        env={"PYTHONPATH": str(REPO), "PATH": ""},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_torchvision_module_works_even_after_a_failed_import() -> None:
    printed = run(
        BREAK_ITS_LIBRARY,
        """
try:
    import torchvision
except RuntimeError as error:
    print(error)
from dst_analyze.model.loading import torchvision_compat
first, second = torchvision_compat.torchvision_module(), torchvision_compat.torchvision_module()
import torchvision, torchvision.transforms.v2
print(first is second is torchvision, len(torchvision_compat.declared), end=" ")
print(torchvision.models.get_model("resnet18").fc.out_features)
""",
    )
    assert printed.splitlines() == ["operator torchvision::nms does not exist", "True 1 1000"]


def test_nothing_is_declared_where_the_operators_exist() -> None:
    printed = run(
        HAVE_ITS_OPERATORS,
        """
from dst_analyze.model.loading import torchvision_compat
print(torchvision_compat.torchvision_module().__name__, torchvision_compat.declared)
""",
    )
    assert printed == "torchvision []"


def test_a_users_file_and_its_siblings_and_hooks_may_import_torchvision(tmp_path: Path) -> None:
    (tmp_path / "backbone.py").write_text("import torchvision\nnet = torchvision.models.squeezenet1_1\n")
    (tmp_path / "mymodel.py").write_text("from backbone import net\ndef build_model():\n    return net()\n")
    (tmp_path / "lazy.py").write_text(
        "from torch import nn\nmodel = nn.Linear(3, 2)\n"
        "def example_inputs():\n    from torchvision.transforms import v2\n    return v2.__name__\n"
    )
    printed = run(
        BREAK_ITS_LIBRARY,
        """
import sys
from dst_analyze.model.loading.load import load_model
lazy = load_model("lazy.py")
print("torchvision" in sys.modules)
print(lazy.example_inputs())
print(type(load_model("mymodel.py").model).__name__)
""",
        cwd=tmp_path,
    )
    assert printed.splitlines() == ["False", "torchvision.transforms.v2", "SqueezeNet"]


def test_an_operator_that_is_missing_is_named() -> None:
    printed = run(
        BREAK_ITS_LIBRARY,
        """
import torch
from dst_analyze.errors import ModelError
from dst_analyze.model.loading.torchvision_compat import torchvision_module
from dst_analyze.model.tracing.trace import trace_model

class Detector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.boxes = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torchvision_module().ops.nms(self.boxes(x), x[:, 0], 0.5)

try:
    trace_model(Detector(), torch.rand(3, 4))
except ModelError as error:
    print(error.cause, "|", error.hint)
""",
    )
    cause, hint = printed.split(" | ")
    assert cause.startswith("the model needs compiled operators of torchvision, such as nms")
    assert hint.startswith("install a torchvision that is built for this torch")
