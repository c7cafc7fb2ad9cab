"""JSON files as data with places."""

import json

from placer.errors import KeyName
from placer.json_document import JsonDocument, parse_json


def test_places_of_values_and_keys():
    """A value is found at its own text, a key at the key's; equal keys at the last, absent values at their owner."""
    text = '{"a": [1, {"b": "x,]}"}, []], "a": [ 2,\n{"c" : null}]}'
    document = parse_json(text.encode(), file="m.json", what="a map")

    def text_at(*path):
        place = document.locate(path)
        return document.text.split("\n")[place.line - 1][place.column - 1 :]

    assert text_at("a", 0).startswith("2,")
    assert text_at("a", 1, "c").startswith("null")
    assert text_at("a", 1, KeyName("c")).startswith('"c" :')
    assert text_at("a", 5).startswith("[ 2")
    assert text_at("a", 1, "nope").startswith('{"c"')
    assert text_at("a", 0, "x", 3).startswith("2,")


def test_a_list_is_gone_through_once_for_all_issues(monkeypatch):
    """Placing a hundred issues in a file of 64 MB must not read it a hundred times."""
    scanned = []
    scan = JsonDocument._scan
    monkeypatch.setattr(JsonDocument, "_scan", lambda self, at: scanned.append(at) or scan(self, at))
    data = {"hosts": [{"ranks": [k]} for k in range(200)]}
    document = parse_json(json.dumps(data).encode(), file="m.json", what="a map")
    for k in range(100, 200):
        assert document.locate(("hosts", k, "ranks")).text[document.locate(("hosts", k, "ranks")).column - 1] == "["
    assert len(scanned) == len(set(scanned)) == 102
