"""A JSON file as plain data, with the place of every value. Light: launch processes import it.

Hidden here: size limits, duplicate keys, NaN, and how a path is found again in the text once something is wrong.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from json.decoder import scanstring  # type: ignore[attr-defined]  # exported, though not in typeshed
from typing import Any, NoReturn

from placer.errors import InvalidInputError, Issue, KeyName, Location, Path

_SPACE = re.compile(r"[ \t\n\r]*")


class JsonObject(dict[str, Any]):
    """An object of the file; ``duplicates`` are the keys that stand in it more than once."""

    duplicates: tuple[str, ...] = ()


@dataclass(frozen=True)
class JsonDocument:
    """One JSON file that could be parsed. ``data`` holds `JsonObject`, list, str, int, float, bool and None."""

    file: str
    data: Any
    text: str = field(repr=False)

    def locate(self, path: Path) -> Location:
        """Where the value at ``path`` stands (its last occurrence); with a `KeyName` at its end, where that key stands.

        For a value that isn't there, the place of the innermost part of the path that is.
        """
        at = mark = self._skip_space(0)
        for step in path:
            found = self._find(at, step)
            if found is None:
                break
            key_at, at = found
            mark = key_at if isinstance(step, KeyName) else at
        return _location(self.file, self.text, mark)

    def place(self, issues: list[Issue]) -> list[Issue]:
        """The issues with their locations filled in."""
        return [Issue(issue.message, issue.hint, issue.path, self.locate(issue.path)) for issue in issues]

    def _find(self, at: int, step: str | int) -> tuple[int, int] | None:
        """Positions of the key and of the value of one step into the object or list that begins at ``at``."""
        if self.text[at] != ("{" if isinstance(step, str) else "["):
            return None
        if at not in self._parts:  # many issues are in one list: it is gone through once
            self._parts[at] = self._scan(at)
        return self._parts[at].get(step)

    @cached_property
    def _parts(self) -> dict[int, dict[str | int, tuple[int, int]]]:
        """What `_scan` found, by the position of the object or list."""
        return {}

    def _scan(self, at: int) -> dict[str | int, tuple[int, int]]:
        """Positions of key and value of all that the object or list at ``at`` holds, the last of equal keys."""
        text, is_object = self.text, self.text[at] == "{"
        found: dict[str | int, tuple[int, int]] = {}
        at = self._skip_space(at + 1)
        while text[at] not in "}]":
            key_at, step = at, len(found)
            if is_object:
                step, end = scanstring(text, at + 1, True)
                at = self._skip_space(self._skip_space(end) + 1)
            found[step] = key_at, at
            _, at = _DECODER.raw_decode(text, at)
            at = self._skip_space(at)
            if text[at] == ",":
                at = self._skip_space(at + 1)
        return found

    def _skip_space(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        assert match is not None, "the pattern matches the empty text"
        return match.end()


def read_json(path: str | os.PathLike[str], *, max_bytes: int, what: str) -> JsonDocument:
    """Read one JSON file. ``what`` it should be, for messages: ``a rank map``.

    Raises `InvalidInputError` for a file that is missing, no regular file, larger than ``max_bytes``, not UTF-8 or not
    JSON. Duplicate keys are kept for the reader to report with its other issues.
    """
    file = os.fspath(path)
    return parse_json(_read_bytes(file, max_bytes, what), file=file, what=what)


def parse_json(content: bytes, *, file: str, what: str) -> JsonDocument:
    """Like `read_json`, for content that has already been read. ``file`` is its name in messages."""

    def fail(message: str, position: int = 0) -> NoReturn:
        hint = f"{what} is a JSON file in UTF-8"
        raise InvalidInputError(Issue(message, hint, location=_location(file, text, position)))

    text = ""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        text = content[: error.start].decode("utf-8")
        fail(f"the file isn't UTF-8 text (byte 0x{content[error.start]:02x})", error.start)
    if not text.strip():
        fail("the file is empty")
    try:
        data = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        fail(f"not valid JSON: {error.msg}", error.pos)
    except RecursionError:
        fail("values are nested too deeply")
    except ValueError as error:  # int() refuses numbers of thousands of digits
        fail(f"a number can't be read: {error}")
    return JsonDocument(file, data, text)


def _gather_object(pairs: list[tuple[str, Any]]) -> JsonObject:
    found = JsonObject(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        found.duplicates = tuple(key for key in found if counts[key] > 1)
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_gather_object)


def _read_bytes(file: str, max_bytes: int, what: str) -> bytes:
    try:
        status = os.stat(file)
        if stat.S_ISDIR(status.st_mode):
            raise InvalidInputError(Issue(f"{file} is a directory", f"name {what}"))
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInputError(Issue(f"{file} is no regular file", f"write {what} to a file first"))
        if status.st_size > max_bytes:
            message = f"the file has {status.st_size:,} bytes; at most {max_bytes:,} are read"
            raise InvalidInputError(Issue(message, f"is it {what}?", location=Location(file, 1, 1)))
        with open(file, "rb") as stream:
            return stream.read(max_bytes)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InvalidInputError(Issue(f"can't read {file!r}: {reason}")) from error


def _location(file: str, text: str, at: int) -> Location:
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line = text[start : len(text) if end < 0 else end].rstrip("\r")
    return Location(file, text.count("\n", 0, at) + 1, at - start + 1, line)
