"""How one value of a scenario is read: from its text in the file to an int, a float, a name.

Hidden here: pydantic's hooks. A `Reader` annotates a field's type; it reads the value, and says what JSON Schema an
editor needs. Its mistakes carry our words: the rule, and what to write instead.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from placer.errors import did_you_mean
from placer.scenario import quantity
from placer.scenario.hostlist import MAX_NAME_LENGTH, HostlistError, parse_exclusion, parse_hostlist
from placer.scenario.source import Plain

JsonSchema = dict[str, Any]
ERROR_TYPE = "placer"
"""``type`` of the pydantic errors that carry our own ``message`` and ``hint`` in their context."""
MAX_TEXT_LENGTH = 16 * 2**20
"""Of a hostlist that names its hosts one by one: as long as a file may be."""
MAX_PATH_LENGTH = 4096

_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]{0,29})")
_FLOAT = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NAME_TYPES = ["string", "integer"]  # an unquoted host name 1101 is an integer to an editor


def fail(message: str, hint: str = "") -> NoReturn:
    """Refuse a value: ``message`` is the rule that it breaks, ``hint`` what to write instead."""
    raise PydanticCustomError(ERROR_TYPE, "{message}", {"message": message, "hint": hint})


class Reader:
    """Base of all readers: `read` turns raw data into the field's value, `json_schema` describes the raw data."""

    def read(self, value: Any) -> Any:
        """The field's value. Calls `fail` for raw data that is no such value."""
        raise NotImplementedError

    def json_schema(self) -> JsonSchema:
        """JSON Schema of what `read` accepts."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let pydantic call `read` and nothing else."""
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        """Let pydantic take our JSON Schema."""
        return self.json_schema()


@dataclass(frozen=True)
class Integer(Reader):
    """A whole number from ``low`` to ``high``, or one of ``words``."""

    low: int = 1
    high: int = 10**9
    words: tuple[str, ...] = ()

    def read(self, value: Any) -> Any:
        """An int, or the word."""
        if self.words and isinstance(value, str) and value in self.words:
            return str(value)
        wanted = "".join(f"`{word}` or " for word in self.words) + "a whole number"
        if isinstance(value, Plain):
            if not _INTEGER.fullmatch(value):
                fail(f"{wanted} is wanted", self._hint(value))
            value = int(value)
        if isinstance(value, str):
            number = value.strip()
            if _INTEGER.fullmatch(number):
                fail(f"{wanted} is wanted, without quotes", f"write `{number}`")
            if self.words:
                fail(f"{wanted} is wanted", did_you_mean(value, self.words))
        if not isinstance(value, int) or isinstance(value, bool):
            fail(f"{wanted} is wanted", f"write e.g. `{self.words[0] if self.words else 8}`")
        if not self.low <= value <= self.high:
            nearest = self.low if value < self.low else self.high
            fail(f"it must lie between {self.low:,} and {self.high:,}", f"write e.g. `{nearest}`")
        return value

    def _hint(self, text: str) -> str:
        if _FLOAT.fullmatch(text) and math.isfinite(float(text)) and abs(float(text)) < 1e15:
            return f"write `{round(float(text))}`"
        if re.fullmatch(r"[0-9]+(:[0-9]+)+", text):
            return "YAML 1.1 reads `1:30` as 90; write the number itself"
        digits = text.replace("_", "").replace(",", "")
        return (
            f"write `{int(digits)}`"
            if digits.isascii() and digits.isdecimal() and len(digits) < 20
            else "write e.g. `8`"
        )

    def json_schema(self) -> JsonSchema:
        """An integer with bounds."""
        schema: JsonSchema = {"type": "integer", "minimum": self.low, "maximum": self.high}
        return {"anyOf": [{"enum": list(self.words)}, schema]} if self.words else schema


@dataclass(frozen=True)
class Number(Reader):
    """A finite bare number from ``low`` to ``high``; ``low`` itself only if ``includes_low``."""

    low: float
    high: float
    includes_low: bool = True

    def read(self, value: Any) -> float:
        """A float."""
        if isinstance(value, str):
            if not _FLOAT.fullmatch(value.strip()):
                fail("a finite number without a unit is wanted", "write e.g. `2`")
            value = float(value)
        if not isinstance(value, int | float) or isinstance(value, bool):
            fail("a number is wanted", "write e.g. `2`")
        number = float(value)
        if not (self.low < number or (self.includes_low and number == self.low)) or not number <= self.high:
            least = "at least" if self.includes_low else "above"
            fail(f"it must be {least} {self.low:g} and at most {self.high:g}", f"write e.g. `{min(2.0, self.high):g}`")
        return number

    def json_schema(self) -> JsonSchema:
        """A number with bounds."""
        return {
            "type": "number",
            "minimum" if self.includes_low else "exclusiveMinimum": self.low,
            "maximum": self.high,
        }


@dataclass(frozen=True)
class Truth(Reader):
    """``true`` or ``false``."""

    def read(self, value: Any) -> bool:
        """A bool."""
        if isinstance(value, bool):
            return value
        if isinstance(value, Plain) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        word = value.strip().lower() if isinstance(value, str) else ""
        meant = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false"}.get(word, word)
        hint = f"write `{meant}`" if meant in ("true", "false") else "write `true` or `false`"
        fail(
            "`true` or `false` is wanted" + (", without quotes" if word == meant and word in ("true", "false") else ""),
            hint,
        )

    def json_schema(self) -> JsonSchema:
        """A boolean."""
        return {"type": "boolean"}


@dataclass(frozen=True)
class Text(Reader):
    """A name or other text of at most ``most`` characters, as it is written: ``1101`` and ``no`` are names too."""

    what: str = "a name"
    most: int = MAX_NAME_LENGTH

    def read(self, value: Any) -> str:
        """A non-empty str without control characters."""
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            fail(f"{self.what} is wanted", "write a single word or a quoted text")
        if not value.strip():
            fail(f"{self.what} can't be blank", "write a single word or a quoted text")
        if not value.isprintable():
            hint = "remove them; invisible ones (U+202E, say) are often pasted in with a text"
            fail(f"{self.what} can't hold line breaks or control characters", hint)
        if len(value) > self.most:
            fail(f"{self.what} has at most {self.most} characters, this one {len(value)}", "write a shorter one")
        return str(value)

    def json_schema(self) -> JsonSchema:
        """A string; an editor takes ``1101`` for an integer."""
        return {"type": list(_NAME_TYPES)}


@dataclass(frozen=True)
class Choice(Reader):
    """One of ``words``."""

    words: tuple[str, ...]

    def read(self, value: Any) -> str:
        """The word."""
        if not isinstance(value, str) or value not in self.words:
            shown = ", ".join(self.words)
            word = value if isinstance(value, str) else ""
            fail(f"it must be one of {shown}", did_you_mean(word, self.words))
        return str(value)

    def json_schema(self) -> JsonSchema:
        """An enumeration."""
        return {"type": "string", "enum": list(self.words)}


@dataclass(frozen=True)
class Quantity(Reader):
    """A number with a unit, read to SI. ``allows_zero`` follows the kind unless it is given."""

    kind: quantity.Kind
    is_positive: bool = False

    def read(self, value: Any) -> float:
        """A float in SI units."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = repr(value)
        if not isinstance(value, str):
            fail(f"a {self.kind.name} is a number with a unit", f"write e.g. {self.kind.example}")
        try:
            number = self.kind.parse(value)
        except quantity.QuantityError as error:
            fail(error.message, error.hint)
        if self.is_positive and number == 0:
            fail(f"a {self.kind.name} must be above 0 here", f"write e.g. {self.kind.example}")
        return number

    def json_schema(self) -> JsonSchema:
        """A string with a pattern."""
        return {"type": "string", "pattern": self.kind.pattern, "examples": [self.kind.example.strip("`")]}


@dataclass(frozen=True)
class Fraction(Reader):
    """A share of 0 … 1: ``0.3`` or ``30%``. ``refuses_bare_one``: 1 needs its unit, it could mean 1%."""

    refuses_bare_one: bool = False

    def read(self, value: Any) -> float:
        """A float from 0 to 1."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = repr(value)
        if not isinstance(value, str):
            fail("a share is a number from 0 to 1, or a percentage", "write e.g. `0.3` or `30%`")
        try:
            share = quantity.parse_fraction(value)
        except quantity.QuantityError as error:
            fail(error.message, error.hint)
        if self.refuses_bare_one and share == 1 and "%" not in value:
            fail("a bare 1 could mean 1% or 100%", "write `1%` or `100%`")
        return share

    def json_schema(self) -> JsonSchema:
        """A number from 0 to 1, or a string such as 30%."""
        number = {"type": "number", "minimum": 0, "maximum": 1}
        return {"anyOf": [number, {"type": "string", "pattern": quantity.FRACTION_PATTERN}]}


@dataclass(frozen=True)
class HostNames(Reader):
    """A hostlist; with ``allows_gpu`` each item may end in ``:gpu``. It is checked and counted, not expanded."""

    allows_gpu: bool = False

    def read(self, value: Any) -> str:
        """The text of the hostlist."""
        text: str = Text("a hostlist", most=MAX_TEXT_LENGTH).read(value)
        try:
            if self.allows_gpu:
                parse_exclusion(text)
            else:
                parse_hostlist(text)
        except HostlistError as error:
            fail(error.message, error.hint)
        return text

    def json_schema(self) -> JsonSchema:
        """A string; an editor takes ``1101`` for an integer."""
        return {"type": list(_NAME_TYPES)}


@dataclass(frozen=True)
class DomainOfRow(Reader):
    """A host row's domain at one tier: its name, or lists of GPU indices for domains narrower than a host."""

    def read(self, value: Any) -> str | tuple[tuple[int, ...], ...]:
        """The name, or the GPU indices of every domain of the host."""
        if not isinstance(value, list | tuple):
            name: str = Text("a domain's name").read(value)
            return name
        index = Integer(0, 10**6)
        hint = "write e.g. [[0, 1, 2, 3], [4, 5, 6, 7]]"
        if not value or not all(isinstance(part, list | tuple) and part for part in value):
            fail("domains within a host are lists of GPU indices", hint)
        try:
            return tuple(tuple(index.read(gpu) for gpu in part) for part in value)
        except PydanticCustomError:
            fail("each index in the lists is a whole number from 0", hint)

    def json_schema(self) -> JsonSchema:
        """A name, or a list of lists of GPU indices."""
        gpus = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
        return {"anyOf": [{"type": list(_NAME_TYPES)}, {"type": "array", "minItems": 1, "items": gpus}]}
