"""Units: what is accepted, what is refused and with which advice, and that text and value agree both ways."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.scenario.quantity import (
    BANDWIDTH,
    COMPUTE_RATE,
    FRACTION_PATTERN,
    SIZE,
    TIME,
    Kind,
    QuantityError,
    parse_fraction,
)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (BANDWIDTH, "450 GB/s", 450e9),
        (BANDWIDTH, "400 Gbps", 50e9),
        (BANDWIDTH, "400 Gb/s", 50e9),
        (BANDWIDTH, "400Gbit/s", 50e9),
        (BANDWIDTH, "25 GiB/s", 25 * 2**30),
        (SIZE, "80 GiB", 80 * 2**30),
        (SIZE, "1.2 TB", 1.2e12),
        (SIZE, "0 B", 0.0),
        (TIME, "3.4 us", 3.4e-6),
        (TIME, "3.4 µs", 3.4e-6),
        (TIME, "5 ms", 5e-3),
        (TIME, "7 ns", 7e-9),
        (COMPUTE_RATE, "989 TFLOP/s", 989e12),
        (COMPUTE_RATE, "989 TFLOPS", 989e12),
    ],
)
def test_units_are_read_exactly(kind: Kind, text: str, value: float) -> None:
    """Every unit of the format gives the float that the SI value is nearest to."""
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "advice"),
    [
        (BANDWIDTH, "400", "`400 GB/s` or `400 Gbps` (= 50 GB/s)"),
        (SIZE, "80", "`80 GB` or `80 GiB`"),
        (TIME, "14", "`14 us`"),
        (BANDWIDTH, "400 gb/s", "`400 GB/s` or `400 Gb/s`"),
        (BANDWIDTH, "4 parsec", "GB/s"),
        (SIZE, "80 Gb", "`80 GB`"),
        (BANDWIDTH, "nan", "50 GB/s"),
        (BANDWIDTH, "inf GB/s", "50 GB/s"),
        (BANDWIDTH, "-3 GB/s", "50 GB/s"),
        (BANDWIDTH, "0 GB/s", "50 GB/s"),
        (BANDWIDTH, "1e400 GB/s", "prefix"),
        (TIME, "-1 us", "14 us"),
        (SIZE, "", "80 GiB"),
        (SIZE, "1_000 GB", "GB"),
        (SIZE, "٣ GB", "80 GiB"),
    ],
)
def test_a_refusal_says_what_to_write(kind: Kind, text: str, advice: str) -> None:
    """A number without a unit, an unknown unit and a value out of range each get advice that fits."""
    with pytest.raises(QuantityError) as caught:
        kind.parse(text)
    assert advice in caught.value.hint


@given(st.sampled_from([BANDWIDTH, SIZE, TIME, COMPUTE_RATE]), st.floats(0, 1), st.integers(6, 12))
def test_format_and_parse_are_inverse(kind: Kind, position: float, digits: int) -> None:
    """Parsing what was printed with d digits gives the value back to d digits."""
    value = kind.smallest * (kind.largest / kind.smallest) ** (position * 0.98 + 0.01)
    assert kind.parse(kind.format(value, digits=digits)) == pytest.approx(value, rel=10.0 ** (1 - digits))


def test_zero_is_printed_as_it_is_read() -> None:
    """Zero has no largest unit that keeps it above 1 and is still printed with a unit."""
    assert TIME.parse(TIME.format(0.0)) == 0.0


@given(
    st.sampled_from([BANDWIDTH, SIZE, TIME, COMPUTE_RATE]),
    st.sampled_from(["", "1", "8.", ".5", "1e3", "2e-3", "-1", "+7", "x", "1_0"]),
    st.sampled_from(["", " ", "  "]),
    st.sampled_from(["", "B", "GB", "GiB", "GB/s", "Gbps", "KiB/s", "us", "µs", "s", "TFLOP/s", "TFLOPS", "gb", "%"]),
)
def test_the_editors_pattern_accepts_what_the_parser_accepts(kind: Kind, number: str, space: str, unit: str) -> None:
    """The JSON Schema pattern and the parser agree on syntax; signs and bounds apart."""
    text = number + space + unit
    try:
        kind.parse(text)
    except QuantityError as error:
        is_accepted = "lies between" in error.message or (error.message.endswith("above 0") and number[:1] != "-")
    else:
        is_accepted = True
    assert bool(re.search(kind.pattern, text)) == is_accepted


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.3", 0.3), ("1", 1.0), ("100 %", 1.0), ("0", 0.0)])
def test_shares_are_fractions_or_percentages(text: str, share: float) -> None:
    """A share is read with or without a percent sign, and the editor's pattern accepts it."""
    assert parse_fraction(text) == pytest.approx(share)
    assert re.search(FRACTION_PATTERN, text)


@pytest.mark.parametrize("text", ["2", "-0", "-1%", "150%", "nan", "inf", "", "half"])
def test_shares_outside_0_to_1_are_refused(text: str) -> None:
    """Nothing outside 0 … 1 passes, not even a negative zero."""
    with pytest.raises(QuantityError):
        parse_fraction(text)
