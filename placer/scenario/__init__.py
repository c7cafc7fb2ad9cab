"""The problem as its user writes it: scenario.yaml, read and validated.

Names are loaded on first use: the hostlist and quantity parsers don't need pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placer.scenario.editor_schema import json_schema, json_schema_text
    from placer.scenario.reading import Draft, parse_scenario, read_draft, read_scenario
    from placer.scenario.schema import Scenario

__all__ = [
    "Draft",
    "Scenario",
    "json_schema",
    "json_schema_text",
    "parse_scenario",
    "read_draft",
    "read_scenario",
]

_HOMES = {
    "Draft": "reading",
    "Scenario": "schema",
    "json_schema": "editor_schema",
    "json_schema_text": "editor_schema",
    "parse_scenario": "reading",
    "read_draft": "reading",
    "read_scenario": "reading",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
