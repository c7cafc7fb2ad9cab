"""The JSON Schema that editors use: current, valid, and of the same opinion as the reader."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from placer.scenario import json_schema, json_schema_text, read_scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
FILES = sorted(SCENARIOS.glob("*.yaml"))


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_schema_in_the_repository_is_current() -> None:
    """scenarios/scenario.schema.json is what the code says; `placer schema` writes it."""
    assert json.loads((SCENARIOS / "scenario.schema.json").read_text(encoding="utf-8")) == json_schema()
    assert json_schema_text().endswith("}\n")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_scenario_of_the_repository_is_valid(path: Path, validator: Any) -> None:
    """Editors and the reader both accept it, and it tells the editor where the schema is."""
    text = path.read_text(encoding="utf-8")
    validator.validate(yaml.safe_load(text))
    assert read_scenario(path).version == 1
    assert "$schema=./scenario.schema.json" in text


SOUND: dict[str, Any] = {
    "version": 1,
    "cluster": {"preset": "h100", "hosts": [{"hosts": "a[1-2]", "gpus": 8, "leaf": "l1", "nvlink": [[0, 1], [2, 3]]}]},
    "parallelism": {"tp": 8},
}


@pytest.mark.parametrize(
    ("section", "value", "is_valid"),
    [
        ("parallelism", {"tp": 8}, True),
        ("parallelism", {"tp": 0}, False),
        ("parallelism", {"tpp": 8}, False),
        ("version", 2, False),
        ("traffic", {"bytes": {"dp": "12.4 GB"}}, True),
        ("traffic", {"bytes": {"dp": 12.4}}, False),
        ("traffic", {"bytes": {"dpp": "12.4 GB"}}, False),
        ("cluster", {"preset": "h100"}, False),
        ("cluster", {"shape": {"host": 2, "gpu": 8}}, False),
        ("cluster", {"preset": "h100", "shape": {"host": 2, "gpu": 8}, "hosts": []}, False),
        ("cluster", {"preset": "h100", "hosts": [{"hosts": 1101, "gpus": 8, "leaf": 7}]}, True),
        ("cluster", {"preset": "h100", "hosts": [{"hosts": "a", "gpus": "8"}]}, False),
        ("constraints", {"ranks_per_host": "any", "tolerance": "1%"}, True),
        ("constraints", {"ranks_per_host": "some"}, False),
    ],
)
def test_editors_see_what_the_reader_sees(section: str, value: Any, is_valid: bool, validator: Any) -> None:
    """Quantities are strings with a unit, keys are known ones, and the hosts come from one source."""
    assert validator.is_valid(SOUND | {section: value}) == is_valid


def test_every_key_is_explained() -> None:
    """Each property has a description: it is the editor's hover text."""
    schema = json_schema()
    for definition in [schema, *schema["$defs"].values()]:
        for key, value in definition["properties"].items():
            assert value.get("description"), key
