"""verdict.json and summary.md: the same answer as the report's, complete, documented, safe to paste."""

import json
import re
from pathlib import Path

import pytest
from runs import HOSTILE, add_plan, chain, made_run

from dst_analyze import rank_layers
from dst_analyze.cli.main import main
from dst_analyze.report.page import write_report
from dst_analyze.report.verdict_file import VerdictFile

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "verdict.md"


@pytest.fixture
def run(tmp_path):
    record = made_run(tmp_path / "run", ["conv1", "fc"], graph=chain(["conv1", "fc"]))
    add_plan(record.folder, ["conv1", "fc"])
    write_report(record.folder)
    return record


def test_verdict_json_says_what_the_ranking_and_the_plan_say(run):
    found = json.loads((run.folder / "verdict.json").read_text())
    ranking = rank_layers(run)
    assert found["ranking"]["verdict"] == str(ranking.verdict)
    assert [layer["layer"] for layer in found["layers"]] == ranking.ordered()["layer"].tolist()
    assert [layer["label"] for layer in found["layers"]] == ranking.ordered()["label"].tolist()
    plan = json.loads((run.folder / "plan.json").read_text())
    assert found["suggestion"]["new_params"] == plan["new_params"]
    assert {g["group"]: g["new_width"] for g in found["suggestion"]["groups"]} == {
        g["group"]: g["new_width"] for g in plan["groups"]
    }
    proof = json.loads((run.folder / "verification.json").read_text())
    assert [m["name"] for m in found["proof"]["models"]] == [e["name"] for e in proof["entries"]]


def test_verdict_json_can_be_read_back_and_unknown_fields_are_refused(run):
    text = (run.folder / "verdict.json").read_bytes()
    assert VerdictFile.model_validate_json(text).as_bytes() == text
    with pytest.raises(ValueError, match="colour"):
        VerdictFile.model_validate({**json.loads(text), "colour": "red"})


def test_every_field_is_documented(run):
    documented = set(re.findall(r"^\| `([a-z_.\[\]]+)` \|", DOCS.read_text(), re.MULTILINE))
    assert documented == set(paths(VerdictFile.model_json_schema()))


def paths(schema, at=None, prefix=""):
    """Yield the dotted names of all fields of a JSON schema; lists carry brackets."""
    at = at or schema
    for name, field in at["properties"].items():
        kinds = [field, *field.get("anyOf", [])]
        kinds += [{**kind["items"], "listed": True} for kind in kinds if isinstance(kind.get("items"), dict)]
        listed = any(kind.get("type") == "array" for kind in kinds)
        path = f"{prefix}{name}{'[]' if listed else ''}"
        inner = next((kind["$ref"] for kind in kinds if "$ref" in kind), None)
        if inner is None:
            yield path
        else:
            yield from paths(schema, schema["$defs"][inner.rpartition("/")[2]], f"{path}.")


def test_the_summary_for_people_names_layers_saving_and_command(run):
    text = (run.folder / "summary.md").read_text()
    assert text.startswith("### ")
    assert "| conv1 |" in text
    assert "| fc |" in text
    assert "dst-analyze made.py --alphas" in text


def test_hostile_names_stay_inert_in_the_summary(tmp_path):
    record = made_run(tmp_path / "run", [*HOSTILE, "fc"])
    write_report(record.folder)
    text = (record.folder / "summary.md").read_text()
    assert "<script" not in text
    assert "<img" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {7}


@pytest.mark.parametrize(
    ("condition", "code"),
    [("redundant>100%", 0), ("needed>=0", 3), ("redundant<1000", 3), ("average>99", 0), ("unclear >= 0 %", 3)],
)
def test_fail_if_decides_the_exit_code(run, capsys, condition, code):
    assert main(["rank", str(run.folder), "--fail-if", condition]) == code
    said = capsys.readouterr()
    assert "Verdict:" in said.out  # the ranking is shown all the same
    assert ("failed: " in said.err) == (code == 3)


def test_one_true_condition_of_several_is_enough(run, capsys):
    assert main(["rank", str(run.folder), "--fail-if", "redundant>99", "--fail-if", "needed>=0"]) == 3
    assert capsys.readouterr().err.count("failed: ") == 1


@pytest.mark.parametrize("text", ["redundant", "redundant>30%%", "tired>3", "spare>3", "redundant>130%", ""])
def test_a_condition_that_is_none_is_an_error_before_anything_is_read(tmp_path, capsys, text):
    assert main(["rank", str(tmp_path / "nowhere"), "--fail-if", text]) == 2
    said = capsys.readouterr().err
    assert "--fail-if" in said
    assert "hint:" in said


def test_a_share_of_weights_of_unknown_size_is_an_error(tmp_path, capsys):
    (tmp_path / "ratios.csv").write_text("layer,alpha,remaining\na,1,0.9\nb,1,0.3\na,2,0.5\nb,2,0.1\n")
    assert main(["rank", str(tmp_path / "ratios.csv"), "--fail-if", "redundant>30%"]) == 2
    assert "number of layers" in capsys.readouterr().err
    assert main(["rank", str(tmp_path / "ratios.csv"), "--fail-if", "redundant>30"]) == 0
