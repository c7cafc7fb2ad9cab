"""A YAML file as plain data, with the place of every key and value.

Hidden here: PyYAML, its node trees and marks, the habits of YAML 1.1, and everything a hostile file can do. Readers
get dicts, lists and text; whether ``1101`` is a number or a host's name is the schema's business, not the file's.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any

import yaml

from placer.errors import InvalidInputError, Issue, KeyName, Location, Path

Data = Any
"""dict with str keys, list, str, `Plain` or None, nested."""

MAX_FILE_BYTES = 16 * 2**20
MAX_VALUES = 500_000
MAX_DEPTH = 32
MAX_ISSUES = 100

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_TEXT, _NULL, _MAP, _SEQUENCE = _TAG + "str", _TAG + "null", _TAG + "map", _TAG + "seq"
_PLAIN = frozenset(_TAG + name for name in ("int", "float", "bool", "timestamp", "value"))
_LINE_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


class Plain(str):
    """Unquoted text that YAML could read as a number, a truth value or a date: ``8``, ``1e3``, ``no``, ``1:30``."""

    __slots__ = ()


@dataclass(frozen=True)
class Document:
    """One YAML file that was read without a mistake.

    ``data`` is its content; ``sha256`` that of its bytes; ``directory`` where relative paths in it start.
    """

    file: str
    data: dict[str, Data]
    directory: FilePath
    sha256: str
    text: str = field(repr=False)
    root: yaml.Node = field(repr=False)

    @cached_property
    def _lines(self) -> list[str]:
        return _LINE_BREAK.split(self.text)

    @cached_property
    def _entries(self) -> dict[int, dict[str, tuple[yaml.Node, yaml.Node]]]:
        """Keys and values of the mappings that were asked for, by the node's id."""
        return {}

    def locate(self, path: Path) -> Location:
        """Where the value at ``path`` stands; for a `KeyName` at its end, where that key stands.

        For a value that isn't there (a missing key), the place of the innermost part of the path that is.
        """
        node, mark = self.root, self.root.start_mark
        for position, step in enumerate(path):
            if isinstance(node, yaml.MappingNode):
                if id(node) not in self._entries:
                    self._entries[id(node)] = {key.value: (key, value) for key, value in node.value}
                found = self._entries[id(node)].get(str(step))
                if found is None:
                    break
                key, node = found
                wants_key = position == len(path) - 1 and isinstance(step, KeyName)
                # a block mapping or list begins on a later line: its key is where the reader looks
                is_block = isinstance(node, yaml.CollectionNode) and not node.flow_style
                mark = key.start_mark if wants_key or is_block else node.start_mark
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                mark = node.start_mark
            else:
                break
        return _location(self.file, mark.line, mark.column, self._lines)

    def place(self, issues: Iterable[Issue]) -> tuple[Issue, ...]:
        """The issues with their locations filled in, in the order of the file, each once."""
        placed = [issue if issue.location else replace(issue, location=self.locate(issue.path)) for issue in issues]
        unique = {(issue.message, issue.location): issue for issue in placed}
        return tuple(
            sorted(unique.values(), key=lambda i: (i.location.line, i.location.column) if i.location else (0, 0))
        )


def read_document(path: str | os.PathLike[str]) -> Document:
    """Read one YAML file.

    Raises `InvalidInputError` for a file that is missing, empty, binary, too large or no regular file, for syntax
    errors, and (all at once) for duplicate keys, keys that aren't text, unknown tags and merge keys.
    """
    file = os.fspath(path)
    return parse_document(_read_bytes(file), file=file)


def parse_document(content: bytes, *, file: str) -> Document:
    """Like `read_document`, for content that has already been read. ``file`` is its name in messages."""
    text = _decode(content, file)
    # counting separators first: libyaml needs a kilobyte for every value, whatever it is worth
    if sum(content.count(separator) for separator in (b",", b"\n", b"[", b"{", b"- ")) > MAX_VALUES:
        raise InvalidInputError(
            Issue(
                f"more than {MAX_VALUES:,} values in one file",
                "write many hosts as one row with a hostlist, or as a shape",
                location=Location(file, 1, 1),
            )
        )
    root = _compose(text, file)
    walk = _Walk(file, text)
    data = walk.read(root)
    if not isinstance(data, dict) and not walk.issues:
        walk.report(root, f"a scenario is a mapping of keys to values, not {describe(data)}", "begin with `version: 1`")
    if walk.issues:
        raise InvalidInputError(walk.issues)
    directory = FilePath(file).resolve().parent
    return Document(file, data, directory, hashlib.sha256(content).hexdigest(), text, root)


def describe(value: object) -> str:
    """A value as a message shows it: short, and with its kind if it is no simple value."""
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = str(value) if isinstance(value, Plain) or not isinstance(value, str) else repr(str(value))
    return text if len(text) <= 60 else text[:57] + "…"


def _read_bytes(file: str) -> bytes:
    here = Location(file, 1, 1)
    try:
        status = os.stat(file)
        if stat.S_ISDIR(status.st_mode):
            raise InvalidInputError(Issue(f"{file} is a directory", "name the scenario file in it"))
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInputError(Issue(f"{file} is no regular file", "write the scenario to a file first"))
        if status.st_size > MAX_FILE_BYTES:
            raise InvalidInputError(
                Issue(
                    f"the file has {status.st_size:,} bytes; at most {MAX_FILE_BYTES:,} are read",
                    "is it a scenario? write many hosts as one row with a hostlist",
                    location=here,
                )
            )
        with open(file, "rb") as stream:
            return stream.read(MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidInputError(Issue(f"can't read {file!r}: {reason}")) from error


def _decode(content: bytes, file: str) -> str:
    here = Location(file, 1, 1)
    hint = "a scenario is a YAML file in UTF-8; see `placer schema`"
    if b"\0" in content:
        raise InvalidInputError(Issue("the file is binary (it holds zero bytes)", hint, location=here))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        message = f"the file isn't UTF-8 text (byte 0x{content[error.start]:02x})"
        raise InvalidInputError(Issue(message, hint, location=Location(file, line, column))) from error
    if not text.strip():
        raise InvalidInputError(Issue("the file is empty", hint, location=here))
    return text


def _compose(text: str, file: str) -> yaml.Node:
    """The node tree of the only document in ``text``."""
    try:
        loader = _LOADER(text)
        try:
            root: yaml.Node | None = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        lines = _LINE_BREAK.split(text)
        mark = error.problem_mark or error.context_mark
        if error.context_mark and mark and not "".join(lines[mark.line :]):
            mark = error.context_mark  # the file ends too early: what was left open says more than its end
        line, column = (mark.line, mark.column) if mark else (0, 0)
        if error.context and "single document" in error.context:
            message, hint = "a second document begins here", "one file holds one scenario: remove the line `---`"
        elif "nesting" in str(error.problem):
            message, hint = "values are nested too deeply", f"a scenario nests fewer than {MAX_DEPTH} levels"
        else:
            message = f"not valid YAML: {error.problem}" + (f" ({error.context})" if error.context else "")
            hint = _syntax_hint(str(error.problem))
        location = _location(file, line, column, lines)
        raise InvalidInputError(Issue(message, hint, location=location)) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position] if isinstance(error.position, int) else ""
        lines = _LINE_BREAK.split(text)
        breaks = _LINE_BREAK.split(before)
        location = _location(file, len(breaks) - 1, len(breaks[-1]), lines)
        raise InvalidInputError(
            Issue("a control character isn't allowed in YAML", "remove it", location=location)
        ) from error
    except RecursionError as error:
        message = f"values are nested more than {MAX_DEPTH} levels deep"
        raise InvalidInputError(Issue(message, location=Location(file, 1, 1))) from error
    if root is None:
        hint = "begin with `version: 1`"
        raise InvalidInputError(Issue("the file holds no values, only comments", hint, location=Location(file, 1, 1)))
    return root


def _syntax_hint(problem: str) -> str:
    if "tab" in problem or "\\t" in problem or "cannot start any token" in problem:
        return "indent with spaces, and quote values that begin with a special character"
    if "mapping values are not allowed" in problem:
        return "check the indentation, and quote a value that contains `: `"
    if "undefined alias" in problem:
        return "quote a value that begins with `*`"
    return "check brackets, quotes and indentation at and above this place"


def _location(file: str, line: int, column: int, lines: list[str]) -> Location:
    text = lines[line] if line < len(lines) else ""
    return Location(file, line + 1, column + 1, text)


class _Walk:
    """Turns nodes into data and collects mistakes."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.issues: list[Issue] = []
        self.budget = MAX_VALUES * 2

    def report(self, node: yaml.Node, message: str, hint: str = "") -> None:
        mark = node.start_mark
        issue = Issue(message, hint, location=_location(self.file, mark.line, mark.column, self._lines))
        if issue not in self.issues:  # an aliased node is read more than once
            self.issues.append(issue)
        if len(self.issues) >= MAX_ISSUES:
            raise InvalidInputError(self.issues)

    @cached_property
    def _lines(self) -> list[str]:
        return _LINE_BREAK.split(self.text)

    def read(self, node: yaml.Node, depth: int = 0) -> Data:
        tag = node.tag
        if type(node) is yaml.ScalarNode:
            if tag == _TEXT:
                return node.value
            if tag == _NULL:
                return None
            if tag in _PLAIN:
                return Plain(node.value)
            self._report_tag(node)
            return None
        if depth >= MAX_DEPTH:
            self.report(node, f"values are nested more than {MAX_DEPTH} levels deep", "does an alias contain itself?")
            raise InvalidInputError(self.issues)
        # aliases share nodes: what they expand to must be counted here, not in the file
        self.budget -= len(node.value)
        if self.budget < 0:
            message = f"aliases expand to more than {2 * MAX_VALUES:,} values"
            self.report(node, message, "write the values out instead of nesting aliases (&name, *name)")
            raise InvalidInputError(self.issues[-1])
        if tag == _MAP:
            return self._read_mapping(node, depth + 1)
        if tag == _SEQUENCE:
            return [self.read(child, depth + 1) for child in node.value]
        self._report_tag(node)
        return None

    def _read_mapping(self, node: yaml.Node, depth: int) -> dict[str, Data]:
        result: dict[str, Data] = {}
        for key_node, value_node in node.value:
            tag = key_node.tag
            if tag != _TEXT and (type(key_node) is not yaml.ScalarNode or tag not in _PLAIN):
                if tag == _TAG + "merge":
                    self.report(key_node, "merge keys (<<) aren't supported", "write the keys out")
                else:
                    self.report(key_node, "a key must be text", "write `key: value`, the key a single word")
                continue
            key: str = key_node.value
            if key in result:
                first = next(other for other, _ in node.value if other.value == key)
                line = first.start_mark.line + 1
                self.report(key_node, f"duplicate key '{key}', first in line {line}", "remove one of the two")
            result[key] = self.read(value_node, depth)
        return result

    def _report_tag(self, node: yaml.Node) -> None:
        name = node.tag.replace(_TAG, "!!")
        self.report(node, f"the YAML tag {name} isn't supported", "write plain values without a tag")
