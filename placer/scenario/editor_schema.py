"""The JSON Schema of scenario.yaml, for editors: hover text, completion, and red lines while typing.

Hidden here: what pydantic's own schema lacks (host rows take tier names as keys; one source of hosts) and what it has
too much of (titles, nulls).
"""

from __future__ import annotations

import json
from typing import Any

from placer.scenario.fields import DomainOfRow
from placer.scenario.schema import Scenario

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of scenario.yaml. Quantities are strings with a pattern."""
    schema: dict[str, Any] = _without_nulls(Scenario.model_json_schema(by_alias=True))
    definitions = schema["$defs"]
    row = definitions["HostRow"]
    del row["properties"]["domains"]
    row["additionalProperties"] = DomainOfRow().json_schema() | {"description": "Domain of these hosts at that tier"}
    cluster = definitions["ClusterSpec"]
    cluster["oneOf"] = [{"required": [source]} for source in ("shape", "hosts", "topology")]
    cluster["anyOf"] = [{"required": [source]} for source in ("tiers", "preset")]
    schema["properties"]["version"] = {"const": 1, "description": schema["properties"]["version"]["description"]}
    return {"$schema": DIALECT, "title": "placer scenario, version 1", **schema}


def json_schema_text() -> str:
    """The content of scenarios/scenario.schema.json."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _without_nulls(value: Any, *, names_keys: bool = False) -> Any:
    """The schema without titles, without ``null`` alternatives and the defaults that go with them.

    ``names_keys``: ``value`` maps names of the scenario to schemas; one of them could be called "title".
    """
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if not isinstance(value, dict):
        return value
    result = {
        key: _without_nulls(item, names_keys=key in ("properties", "$defs"))
        for key, item in value.items()
        if names_keys or not (key == "title" or (key == "default" and item is None))
    }
    alternatives = result.get("anyOf", [])
    if not names_keys and {"type": "null"} in alternatives:
        rest = [item for item in alternatives if item != {"type": "null"}]
        del result["anyOf"]
        result = {**rest[0], **result} if len(rest) == 1 else {"anyOf": rest, **result}
    return result
