"""Slurm hostlists: ``gpu[0001-0016,0020],login1`` to host names and back.

Order, duplicates and zero padding are kept exactly. A list is counted before it is expanded, so that
``h[0-999999999]`` costs nothing.

Grammar: items separated by commas; an item is text with any number of brackets; a bracket holds numbers and ranges
``low-high``. A low end with leading zeros pads the whole range: ``[08-10]`` is 08, 09, 10. The first bracket of an
item varies slowest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

MAX_HOSTS = 1_000_000
MAX_NAME_LENGTH = 253  # of a DNS name
_MAX_DIGITS = 18
_LITERAL = re.compile(r"[A-Za-z0-9._-]*")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_GPU = re.compile(r":(\d{1,9})(?!\d)", re.ASCII)
_DIGITS = re.compile(r"(\d+)", re.ASCII)


class HostlistError(ValueError):
    """A text that is no hostlist. ``message`` names the position (from 1) in the text; ``hint`` says what to write."""

    def __init__(self, message: str, hint: str = "write e.g. gpu[0001-0016,0020]") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True)
class _Range:
    low: int
    high: int
    width: int

    def texts(self) -> Iterator[str]:
        if self.width:
            return (f"{number:0{self.width}d}" for number in range(self.low, self.high + 1))
        return map(str, range(self.low, self.high + 1))


@dataclass(frozen=True)
class Hostlist:
    """A parsed hostlist, not yet expanded. ``count``: number of names in it."""

    items: tuple[tuple[str | tuple[_Range, ...], ...], ...]
    count: int

    def expand(self) -> tuple[str, ...]:
        """All names, in order."""
        names: list[str] = []
        for item in self.items:
            if len(item) == 1 and isinstance(item[0], str):
                names.append(item[0])
                continue
            parts = [[p] if isinstance(p, str) else [text for r in p for text in r.texts()] for p in item]
            names.extend(map("".join, product(*parts)))
        return tuple(names)


def parse_hostlist(text: str) -> Hostlist:
    """Parse and count a hostlist. Raises `HostlistError` for bad syntax and for more than `MAX_HOSTS` names."""
    parsed = _parse_items(text, with_gpu=False)
    count = sum(hostlist.count for hostlist, _ in parsed)
    return Hostlist(tuple(item for hostlist, _ in parsed for item in hostlist.items), count)


def parse_exclusion(text: str) -> list[tuple[Hostlist, int | None]]:
    """``gpu0003,gpu[5-8]:2`` → one hostlist per item, with the GPU index after its colon, None for whole hosts."""
    return _parse_items(text, with_gpu=True)


def expand_hostlist(text: str) -> tuple[str, ...]:
    """``gpu[08-10],x`` → (``gpu08``, ``gpu09``, ``gpu10``, ``x``). Raises `HostlistError`."""
    return parse_hostlist(text).expand()


def compress_hostlist(names: Iterable[str]) -> str:
    """A short hostlist that expands to exactly ``names``: same order, duplicates and padding."""
    items: list[str] = []
    group: list[list[str]] = []
    varying = -1
    for name in names:
        pieces = _DIGITS.split(name)
        if group:
            place = _only_difference(group[-1], pieces)
            if place >= 0 and varying in (-1, place):
                varying = place
                group.append(pieces)
                continue
            items.append(_compress_group(group, varying))
        group, varying = [pieces], -1
    if group:
        items.append(_compress_group(group, varying))
    return ",".join(items)


def _parse_items(text: str, *, with_gpu: bool) -> list[tuple[Hostlist, int | None]]:
    parsed: list[tuple[Hostlist, int | None]] = []
    total = position = 0
    while True:
        position = _skip_spaces(text, position)
        item, after = _parse_item(text, position)
        if not item:
            raise _syntax_error(text, position, "a host name is missing")
        count = prod(sum(r.high - r.low + 1 for r in part) for part in item if not isinstance(part, str))
        total += count
        if total > MAX_HOSTS:
            raise HostlistError(
                f"it names {total:,} hosts or more; at most {MAX_HOSTS:,} are allowed", "check the ranges"
            )
        gpu = _GPU.match(text, after) if with_gpu else None
        parsed.append((Hostlist((item,), count), int(gpu[1]) if gpu else None))
        position = _skip_spaces(text, gpu.end() if gpu else after)
        if position == len(text):
            return parsed
        if text[position] == ":":
            hint = (
                "write host:gpu, e.g. gpu0005:2"
                if with_gpu
                else "a single GPU of a host is named in `down` or `exclude`"
            )
            raise HostlistError(f"no GPU index can stand here (character {position + 1} of '{_short(text)}')", hint)
        if text[position] != ",":
            raise _syntax_error(text, position, f"{text[position]!r} can't stand in a host name")
        position += 1


def _skip_spaces(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\n":
        position += 1
    return position


def _parse_item(text: str, position: int) -> tuple[tuple[str | tuple[_Range, ...], ...], int]:
    parts: list[str | tuple[_Range, ...]] = []
    start, length = position, 0
    while position < len(text):
        if text[position] == "[":
            end = text.find("]", position)
            if end < 0:
                raise _syntax_error(text, position, "this bracket is never closed")
            ranges = _parse_ranges(text, position + 1, end)
            parts.append(ranges)
            length += max(max(len(str(r.high)), r.width) for r in ranges)
            position = end + 1
        else:
            match = _LITERAL.match(text, position)
            if match is None or not match[0]:
                break
            parts.append(match[0])
            length += len(match[0])
            position = match.end()
        if length > MAX_NAME_LENGTH:
            raise _syntax_error(text, start, f"the name has more than {MAX_NAME_LENGTH} characters")
    return tuple(parts), position


def _parse_ranges(text: str, position: int, end: int) -> tuple[_Range, ...]:
    ranges: list[_Range] = []
    for piece in text[position:end].split(","):
        stripped = piece.strip(" ")
        match = _RANGE.fullmatch(stripped)
        if match is None:
            what = f"'{_short(stripped)}' is no number or range" if stripped else "a number is missing"
            raise _syntax_error(text, position, what)
        low_text, high_text = match[1], match[2] or match[1]
        if max(len(low_text), len(high_text)) > _MAX_DIGITS:
            raise _syntax_error(text, position, f"a number has more than {_MAX_DIGITS} digits")
        low, high = int(low_text), int(high_text)
        width = len(low_text) if low_text[0] == "0" and len(low_text) > 1 else 0
        if high < low:
            raise _syntax_error(text, position, f"'{stripped}' runs backwards")
        if high_text[0] == "0" and len(high_text) > 1 and len(high_text) != len(low_text):
            raise _syntax_error(text, position, f"the ends of '{stripped}' are padded differently")
        ranges.append(_Range(low, high, width))
        position += len(piece) + 1
    return tuple(ranges)


def _syntax_error(text: str, position: int, what: str) -> HostlistError:
    return HostlistError(f"{what} (character {position + 1} of '{_short(text)}')")


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"


def _only_difference(one: list[str], other: list[str]) -> int:
    """Index of the only piece in which two split names differ if that is a number of both, else −1."""
    if len(one) != len(other):
        return -1
    places = [k for k, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    is_number = len(places) == 1 and places[0] % 2 == 1
    return places[0] if is_number and max(len(one[places[0]]), len(other[places[0]])) <= _MAX_DIGITS else -1


def _compress_group(group: list[list[str]], varying: int) -> str:
    """Names that differ in piece ``varying`` only, as one item."""
    first = group[0]
    if len(group) == 1:
        return "".join(first)
    runs: list[tuple[str, str]] = []
    for pieces in group:
        text = pieces[varying]
        if runs and _follows(runs[-1], text):
            runs[-1] = (runs[-1][0], text)
        else:
            runs.append((text, text))
    inside = ",".join(low if low == high else f"{low}-{high}" for low, high in runs)
    return "".join(first[:varying]) + f"[{inside}]" + "".join(first[varying + 1 :])


def _follows(run: tuple[str, str], text: str) -> bool:
    low, high = run
    width = len(low) if low[0] == "0" else 0
    return text == f"{int(high) + 1:0{width}d}"
