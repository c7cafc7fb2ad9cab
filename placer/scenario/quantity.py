"""Numbers with a unit, as text: ``450 GB/s``, ``400 Gbps``, ``80 GiB``, ``3.4 us``, ``989 TFLOP/s``, ``1%``.

Hidden here: spellings, prefixes and the trap between bits and bytes. Everything outside holds SI floats with the unit
in the name (``bandwidth_Bps``). A bare number where a unit is needed is refused, and the message shows every reading.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?"
_SPLIT = re.compile(rf"([+-]?{_NUMBER}) *(.*)", re.DOTALL | re.ASCII)
_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}


class QuantityError(ValueError):
    """A text that is no such quantity. ``message`` completes "<key> is '<text>': …"; ``hint`` says what to write."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True, eq=False)
class Kind:
    """What is measured: its unit spellings with their factors, how to print it, and its bounds.

    ``units``: spelling to SI factor. ``printed``: spellings used for output, largest first. ``readings``: unit
    spellings shown for a bare number. A value lies in ``smallest`` … ``largest``, or is 0 if ``allows_zero``.
    """

    name: str
    units: Mapping[str, float]
    printed: tuple[str, ...]
    readings: tuple[str, ...]
    smallest: float
    largest: float
    allows_zero: bool = False

    @property
    def pattern(self) -> str:
        """Regular expression (JSON Schema's dialect) of the accepted texts, sign and bounds apart."""
        units = "|".join(re.escape(unit).replace(r"\-", "-") for unit in sorted(self.units))
        return rf"^ *\+?{_NUMBER} *({units}) *$".replace(r"\d", "[0-9]")

    def parse(self, text: str) -> float:
        """SI value of a text such as ``450 GB/s``. Raises `QuantityError`."""
        match = _SPLIT.fullmatch(text.strip(" "))
        if match is None:
            lowered = text.strip().lower().lstrip("+-.")
            if lowered in ("nan", "inf", "infinity") or lowered.startswith(("nan ", "inf ")):
                raise QuantityError(f"a {self.name} is a finite number with a unit", f"write e.g. {self.example}")
            raise QuantityError(f"a {self.name} is a number with a unit", f"write e.g. {self.example}")
        number, unit = match.groups()
        if unit not in self.units:
            raise self._unit_error(number, unit)
        value = _scale(float(number), self.units[unit])
        if value == 0 and self.allows_zero and not number.startswith("-"):
            return 0.0
        if value <= 0:
            rule = "can't be negative" if self.allows_zero else "must be above 0"
            raise QuantityError(f"a {self.name} {rule}", f"write e.g. {self.example}")
        if not self.smallest <= value <= self.largest:
            low, high = self.format(self.smallest), self.format(self.largest)
            raise QuantityError(f"a {self.name} lies between {low} and {high}", "check the number and its prefix")
        return value

    def format(self, value: float, *, digits: int = 12) -> str:
        """``value`` (SI) with the largest unit that keeps it at or above 1: ``4.5e11`` → ``450 GB/s``."""
        if value == 0:
            return f"0 {self.readings[0]}"
        unit = next((u for u in self.printed if abs(value) >= self.units[u]), self.printed[-1])
        return f"{_scale(value, 1 / self.units[unit]):.{digits}g} {unit}"

    @property
    def example(self) -> str:
        """A text that is accepted."""
        return f"`{_EXAMPLES[self.name]}`"

    def _unit_error(self, number: str, unit: str) -> QuantityError:
        if not unit:
            shown = [f"`{number} {reading}`" for reading in self.readings]
            if self.name == "bandwidth":
                shown[-1] += f" (= {BANDWIDTH.format(_scale(float(number), self.units[self.readings[-1]]))})"
            return QuantityError("a bare number has no unit", "write " + " or ".join(shown))
        close = [known for known in self.units if known.lower() == unit.lower().replace("µ", "u").replace("μ", "u")]
        if close:
            shown = [f"`{number} {known}`" for known in close]
            return QuantityError(
                f"unit '{_short(unit)}' isn't known (letter case matters)", "write " + " or ".join(shown)
            )
        units = ", ".join(dict.fromkeys((*self.readings, *self.printed)))
        return QuantityError(f"unit '{_short(unit)}' is no unit of {self.name}", f"units: {units}")


def _scale(value: float, factor: float) -> float:
    # division by a whole number rounds once: 3.4 us is 3.4e-06, not 3.3999999999999996e-06
    return value * factor if factor >= 1 else value / round(1 / factor)


def _short(text: str) -> str:
    return text if len(text) <= 20 else text[:19] + "…"


def _with_prefixes(spellings: Mapping[str, float], *, binary: bool) -> Mapping[str, float]:
    prefixes = _DECIMAL | _BINARY if binary else _DECIMAL
    return MappingProxyType(
        {prefix + unit: scale * factor for unit, factor in spellings.items() for prefix, scale in prefixes.items()}
    )


_EXAMPLES = {
    "bandwidth": "50 GB/s",
    "size": "80 GiB",
    "time": "14 us",
    "compute rate": "989 TFLOP/s",
}

BANDWIDTH = Kind(
    "bandwidth",
    _with_prefixes({"B/s": 1.0, "Bps": 1.0, "b/s": 0.125, "bps": 0.125, "bit/s": 0.125}, binary=True),
    ("PB/s", "TB/s", "GB/s", "MB/s", "kB/s", "B/s"),
    ("GB/s", "Gbps"),
    smallest=1.0,
    largest=1e18,
)
"""Bytes per second. ``B`` is a byte, ``b`` a bit."""

SIZE = Kind(
    "size",
    _with_prefixes({"B": 1.0}, binary=True),
    ("PB", "TB", "GB", "MB", "kB", "B"),
    ("GB", "GiB"),
    smallest=1e-6,
    largest=1e21,
    allows_zero=True,
)
"""Bytes."""

TIME = Kind(
    "time",
    MappingProxyType({"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}),
    ("s", "ms", "us", "ns"),
    ("us", "ms"),
    smallest=1e-15,
    largest=1e6,
    allows_zero=True,
)
"""Seconds."""

COMPUTE_RATE = Kind(
    "compute rate",
    _with_prefixes({"FLOP/s": 1.0, "FLOPS": 1.0, "FLOPs/s": 1.0, "flop/s": 1.0, "flops": 1.0}, binary=False),
    ("PFLOP/s", "TFLOP/s", "GFLOP/s", "MFLOP/s", "kFLOP/s", "FLOP/s"),
    ("TFLOP/s", "PFLOP/s"),
    smallest=1.0,
    largest=1e24,
)
"""Floating point operations per second."""

FRACTION_PATTERN = rf"^ *\+?{_NUMBER} *%? *$".replace(r"\d", "[0-9]")


def parse_fraction(text: str) -> float:
    """A share of 0 … 1, written as ``30%`` or ``0.3``. Raises `QuantityError`."""
    match = _SPLIT.fullmatch(text.strip(" "))
    if match is None or match[2] not in ("", "%"):
        raise QuantityError("a share is a number from 0 to 1, or a percentage", "write e.g. `0.3` or `30%`")
    value = float(match[1]) * (0.01 if match[2] else 1.0)
    if not 0 <= value <= 1 or math.copysign(1, value) < 0:
        hint = f"write `{match[1]}%`?" if not match[2] and 1 < value <= 100 else "write e.g. `0.3` or `30%`"
        raise QuantityError("a share lies between 0 and 1 (0% and 100%)", hint)
    return value
