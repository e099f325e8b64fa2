"""The public names: all can be imported, and old ones still work with a warning that says the new one."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import dst_analyze
from dst_analyze.cli.main import main
from dst_analyze.run.config import SweepConfig


@pytest.mark.parametrize("name", dst_analyze.__all__)
def test_a_public_name_can_be_imported(name):
    assert getattr(dst_analyze, name) is not None


def test_public_names_are_those_that_type_checkers_see():
    assert {*dst_analyze._HOMES, "DstError", "__version__"} == set(dst_analyze.__all__) == set(dir(dst_analyze))


def test_an_old_public_name_warns_at_the_line_that_uses_it():
    with pytest.warns(FutureWarning, match="exact_slim is now dst_analyze.remove_dead_channels") as found:
        from dst_analyze import exact_slim
    assert exact_slim is dst_analyze.remove_dead_channels
    assert found[0].filename == __file__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'prune'"):
        _ = dst_analyze.prune


def test_old_arguments_work_with_a_warning_at_the_call():
    with pytest.warns(FutureWarning, match="operator= is now backend=") as found:
        masked = dst_analyze.mask_model(nn.Linear(4, 3), torch.randn(2, 4), operator="eager")
    assert masked.masking.backend == "eager"
    assert found[0].filename == __file__
    with pytest.warns(FutureWarning, match="unit= is now threshold_scale="):
        dst_analyze.mask_model(nn.Linear(4, 3), torch.randn(2, 4), unit="layer")
    with pytest.raises(TypeError, match="give backend= only"):
        dst_analyze.mask_model(nn.Linear(4, 3), torch.randn(2, 4), operator="eager", backend="eager")


def test_old_sweep_options_and_methods_work_with_a_warning(tmp_path):
    x, y = torch.randn(64, 8), torch.randint(0, 2, (64,))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    options = {"alphas": (1e-3, 1e-2), "steps": 3, "out": tmp_path / "run"}
    with pytest.warns(FutureWarning, match="is now") as found:
        analysis = dst_analyze.analyze(model, (x, y), **options, operator="eager", threshold_unit="one")
    assert {str(warning.message).split(";")[0] for warning in found} == {
        "operator= is now backend=",
        "threshold_unit= is now threshold_scale=",
    }
    assert {warning.filename for warning in found} == {__file__}
    config = analysis.record.config
    assert (config.backend, config.threshold_scale) == ("eager", "one")
    with pytest.warns(FutureWarning, match=r"Analysis.slim\(\) is now Analysis.suggest_widths\(\)") as found:
        plan = analysis.slim(write=False, round_to=1, rehearsal=True)
    assert found[0].filename == __file__
    with pytest.warns(FutureWarning, match="is now") as found:
        small = analysis.build(plan, fresh=True)
    assert len(found) == 2
    assert sum(p.numel() for p in small.parameters()) == plan.new_params
    with pytest.warns(FutureWarning, match=r"frame\(\) is now TracedModel.table"):
        assert analysis.traced.frame().equals(analysis.traced.table)


def test_run_folders_keep_the_keys_they_began_with(tmp_path):
    """Folders of earlier versions are read, and a run has the folder's name that it had there."""
    config = SweepConfig.checked(model="m.py", threshold_scale="one", backend="eager")
    stored = json.loads(config.model_dump_json(by_alias=True))
    assert (stored["threshold_unit"], stored["operator"]) == ("one", "eager")
    assert not {"threshold_scale", "backend"} & set(stored)
    assert SweepConfig.model_validate(stored) == config
    assert config.digest.startswith("53c8721166b481e2")


def test_old_options_of_the_command_line_and_of_files_work_with_a_note(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text('[training]\noperator = "eager"\n[slimmer-architecture]\nfresh = true\n')
    assert main(["m.py", "--config", "run.toml", "--threshold-unit=one", "--print-config"]) == 0
    shown = capsys.readouterr()
    assert {'backend = "eager"', "reinitialize = true", 'threshold-scale = "one"'} <= set(shown.out.splitlines())
    for old, new in (("operator", "backend"), ("fresh", "reinitialize"), ("threshold-unit", "threshold-scale")):
        assert f"--{old} is now --{new}" in shown.err
    (tmp_path / "run.toml").write_text('operator = "eager"\nbackend = "eager"\n')
    assert main(["m.py", "--config", "run.toml", "--print-config"]) == 2
    assert "set twice" in capsys.readouterr().err
