"""From a file to a `Scenario`: parse, validate, and say every mistake in our own words.

Hidden here: pydantic's error list and how one of its errors becomes an `Issue`. A `Draft` keeps the sections that are
sound and what is left of the others, so that later checks can report their mistakes together with those found here.
"""

from __future__ import annotations

import copy
import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from placer.errors import InvalidInputError, Issue, KeyName, Path, did_you_mean
from placer.scenario.fields import ERROR_TYPE
from placer.scenario.remnant import salvage, touches_pool
from placer.scenario.schema import (
    ClusterSpec,
    ConstraintsSpec,
    ModelSpec,
    ParallelismSpec,
    Scenario,
    Section,
    TrafficSpec,
    TrainingSpec,
)
from placer.scenario.source import MAX_ISSUES, Document, describe, parse_document, read_document

VERSION = 1


@dataclass(frozen=True)
class Draft:
    """What could be read of a scenario.

    ``scenario`` is None if anything is wrong; ``issues`` says what. The name of a section with a mistake is in
    ``faulty``, and its attribute is what can still be checked of it (see `placer.scenario.remnant`), or None; no job
    may be made of it. ``knows_pool``: the hosts and GPUs of ``cluster`` are as they were meant. An unknown key that
    stands for no other key is reported and leaves its section sound. ``model`` and ``training`` are also None when they
    are absent. ``num_left_out``: mistakes beyond the first `MAX_ISSUES`, which are only counted.
    """

    document: Document
    scenario: Scenario | None
    issues: tuple[Issue, ...]
    faulty: frozenset[str] = frozenset()
    knows_pool: bool = True
    cluster: ClusterSpec | None = None
    model: ModelSpec | None = None
    parallelism: ParallelismSpec | None = None
    training: TrainingSpec | None = None
    traffic: TrafficSpec | None = None
    constraints: ConstraintsSpec | None = None
    num_left_out: int = 0

    def finish(self, issues: Iterable[Issue] = ()) -> Scenario:
        """The scenario, unless there are ``issues`` here or among those that later checks found.

        Raises `InvalidInputError` with all of them (the first `MAX_ISSUES`, and how many more there are), in the order
        of the file, each with its place.
        """
        found = self.document.place([*self.issues, *issues])
        if found or self.scenario is None:
            left_out = self.num_left_out + max(0, len(found) - MAX_ISSUES)
            raise InvalidInputError(found[:MAX_ISSUES], num_left_out=left_out)
        return self.scenario


def read_scenario(path: str | os.PathLike[str]) -> Scenario:
    """Read and validate a scenario.yaml. Raises `InvalidInputError` with every mistake and its file:line:column."""
    return read_draft(path).finish()


def parse_scenario(text: str, *, file: str = "scenario.yaml") -> Scenario:
    """Like `read_scenario`, for YAML text. ``file`` is its name in messages; relative paths start beside it."""
    return draft_scenario(parse_document(text.encode(), file=file)).finish()


def read_draft(path: str | os.PathLike[str]) -> Draft:
    """Like `read_scenario`, but raises only for files that are no YAML mapping; mistakes are in the draft."""
    return draft_scenario(read_document(path))


def draft_scenario(document: Document) -> Draft:
    """Validate a document. An unknown version is its only issue: nothing else can be judged."""
    data = dict(document.data)
    version_issue = _check_version(data)
    if version_issue:
        return Draft(document, None, (version_issue,), frozenset(Scenario.model_fields))
    data.setdefault("name", os.path.splitext(os.path.basename(document.file))[0] or "scenario")
    for key in ("traffic", "constraints"):
        if key in data and data[key] is None:  # a section whose lines are all comments
            del data[key]
    try:
        scenario = Scenario.model_validate(data)
    except ValidationError as error:
        issues, mistakes = _translate(error, data)
        faulty = frozenset(str(path[0]) for path in mistakes)
        sections = _read_sections(data, mistakes)
        issues += _check_sections(sections)
        knows_pool = not any(touches_pool(path[1:]) for path in mistakes if path[0] == "cluster")
        num_left_out = max(0, error.error_count() - MAX_ISSUES)
        return Draft(document, None, tuple(issues), faulty, knows_pool, **sections, num_left_out=num_left_out)
    scenario._document = document
    sections = {name: getattr(scenario, name) for name in _SECTIONS}
    issues = _check_sections(sections)
    return Draft(document, None if issues else scenario, tuple(issues), **sections)


_SECTIONS: Mapping[str, type[Section]] = {
    "cluster": ClusterSpec,
    "model": ModelSpec,
    "parallelism": ParallelismSpec,
    "training": TrainingSpec,
    "traffic": TrafficSpec,
    "constraints": ConstraintsSpec,
}


def _check_version(data: Mapping[str, Any]) -> Issue | None:
    hint = f"write `version: {VERSION}`"
    if "version" not in data:
        return Issue("the scenario has no `version`", hint, ())
    version = data["version"]
    if str(version) != str(VERSION):
        message = f"version is {describe(version)}, which isn't known: this program reads version {VERSION}"
        return Issue(message, hint, ("version",))
    return None


def _check_sections(sections: Mapping[str, Any]) -> list[Issue]:
    """Mistakes within one section that no single value shows."""
    model = sections["model"]
    if model is not None and model.preset is not None and model.hf_config is not None:
        hint = "keep one of them; explicit keys can override either"
        return [Issue("model has both `preset` and `hf_config`", hint, ("model", KeyName("hf_config")))]
    return []


def _read_sections(data: Mapping[str, Any], mistakes: list[Path]) -> dict[str, Any]:
    """The sound sections, and what is left of those with ``mistakes``."""
    sections: dict[str, Any] = {}
    for name, model in _SECTIONS.items():
        inside = [path[1:] for path in mistakes if path[0] == name]
        if inside:
            sections[name] = salvage(model, data.get(name), inside)
        elif name in data and data[name] is not None:
            sections[name] = model.model_validate(data[name])
        else:
            sections[name] = model() if name in ("traffic", "constraints") else None
    return sections


def _translate(error: ValidationError, data: dict[str, Any]) -> tuple[list[Issue], list[Path]]:
    """The issues of a failed validation, and the paths of those that their section can't be used with.

    Unknown keys are removed from ``data``; those that stand for no other key leave their section sound.
    """
    for name in data.keys() & _SECTIONS.keys():
        data[name] = copy.deepcopy(data[name])
    errors = error.errors(include_url=False)
    # comparing names is slow, and a file that is no scenario at all may have any number of them
    errors, left_out = errors[:MAX_ISSUES], errors[MAX_ISSUES:]
    misspelt = {_path_of(details["loc"]): _find_misspelt(details, data) for details in errors}
    issues: list[Issue] = []
    mistakes: list[Path] = []
    for details in errors:
        path = _path_of(details["loc"])
        if details["type"] == "missing" and path in misspelt.values():
            continue  # one mistake, reported as the unknown key
        issues.append(_issue_of(details))
        if details["type"] == "extra_forbidden":
            _value_at(data, path[:-1]).pop(path[-1], None)
        if details["type"] != "extra_forbidden" or misspelt[path] is not None:
            mistakes.append(misspelt[path] or path)
    return issues, [*mistakes, *(_path_of(details["loc"]) for details in left_out)]


def _issue_of(details: ErrorDetails) -> Issue:
    """One pydantic error as an issue."""
    path = _path_of(details["loc"])
    kind = details["type"]
    shown = _show(path)
    given = details["input"]
    context = details.get("ctx", {})
    if kind == ERROR_TYPE:
        if path and isinstance(path[-1], KeyName):
            rule = str(context["message"]).removeprefix("it must be ")
            return Issue(f"unknown key '{path[-1]}' in {_show(path[:-1])}: {rule}", context["hint"], path)
        return Issue(f"{shown} is {describe(given)}: {context['message']}", context["hint"], path)
    if kind == "missing":
        field = _field(_model_at(path[:-1]), str(path[-1]))
        example = field.examples[0] if field is not None and field.examples else None
        hint = f"add `{path[-1]}: {example}`" if example is not None else f"add `{path[-1]}:` with its keys"
        return Issue(f"{_show(path[:-1])} has no `{path[-1]}`", hint, path)
    if kind == "extra_forbidden":
        known = _keys_of(_model_at(path[:-1]))
        key = KeyName(path[-1])
        hint = did_you_mean(key, known)
        return Issue(f"unknown key '{key}' in {_show(path[:-1])}", hint, (*path[:-1], key))
    wanted = "a list" if kind in ("tuple_type", "list_type") else "a mapping of keys to values"
    if wanted == "a list":
        hint = f"write `{path[-1]}: [ … ]`, or one entry a line after `- `"
    else:
        field = _field(_model_at(path[:-1]), str(path[-1]))
        model = _model_at(path) if field is None else _find_model(field.annotation)
        such = f", with keys such as {', '.join(_keys_of(model)[:4])}" if model else ""
        hint = f"write lines `key: value` below it{such}"
    return Issue(f"{shown} is {describe(given)}: {wanted} is wanted", hint, path)


def _find_misspelt(details: ErrorDetails, data: Mapping[str, Any]) -> Path | None:
    """Path of the absent key that an unknown key most likely stands for."""
    if details["type"] != "extra_forbidden":
        return None
    path = _path_of(details["loc"])
    owner = _value_at(data, path[:-1])
    absent = [key for key in _keys_of(_model_at(path[:-1])) if key not in owner]
    # a misspelt key is a value that is missing: what depends on it can't be judged
    close = difflib.get_close_matches(str(path[-1]), absent, n=1, cutoff=0.6)
    return (*path[:-1], close[0]) if close else None


def _path_of(loc: tuple[int | str, ...]) -> Path:
    """pydantic's location as a path of the document."""
    steps: list[int | str] = list(loc)
    if steps[:2] == ["cluster", "hosts"] and len(steps) > 4 and steps[3] == "domains":
        del steps[3]
    if steps and steps[-1] == "[key]":
        steps[-2:] = [KeyName(steps[-2])]
    return tuple(steps)


def _show(path: Path) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text.removeprefix(".") or "the scenario"


def _value_at(data: Any, path: Path) -> Any:
    for step in path:
        data = data[step]
    return data


def _keys_of(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _field(model: type[BaseModel], key: str) -> Any:
    return next((f for name, f in model.model_fields.items() if (f.alias or name) == key), None)


def _model_at(path: Path) -> type[BaseModel]:
    """The model that describes the mapping at ``path``."""
    model: type[BaseModel] = Scenario
    for step in path:
        if isinstance(step, str):
            field = _field(model, step)
            model = (field and _find_model(field.annotation)) or model
    return model


def _find_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _find_model(part))), None)
