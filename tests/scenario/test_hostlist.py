"""Hostlists: exact expansion, exact compression, and refusal before any work is done."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.scenario.hostlist import (
    HostlistError,
    compress_hostlist,
    expand_hostlist,
    parse_exclusion,
    parse_hostlist,
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[8-11]", ["gpu8", "gpu9", "gpu10", "gpu11"]),
        ("gpu[08-10]", ["gpu08", "gpu09", "gpu10"]),
        ("gpu[0098-0101]", ["gpu0098", "gpu0099", "gpu0100", "gpu0101"]),
        ("gpu[099-100,7]-ib0", ["gpu099-ib0", "gpu100-ib0", "gpu7-ib0"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
        ("b, a ,a[2-2]", ["b", "a", "a2"]),
        ("a,a,b,a", ["a", "a", "b", "a"]),
        ("x[3,1,1-2]", ["x3", "x1", "x1", "x2"]),
        ("n.dom_1-x", ["n.dom_1-x"]),
    ],
)
def test_expansion_keeps_order_duplicates_and_padding(text: str, names: list[str]) -> None:
    """A hostlist expands to exactly these names in this order, and its count is known beforehand."""
    assert list(expand_hostlist(text)) == names
    assert parse_hostlist(text).count == len(names)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", 1),
        ("a,", 3),
        (",a", 1),
        ("a[", 2),
        ("a[1-3", 2),
        ("a[]", 3),
        ("a[1,,2]", 5),
        ("a[5-1]", 3),
        ("a[1-02]", 3),
        ("a[x]", 3),
        ("a[[1]]", 3),
        ("a]", 2),
        ("a b", 3),
        ("a:2", 2),
        ("é1", 1),
        ("a[1-9999999999999999999]", 3),
    ],
)
def test_bad_syntax_is_refused_with_its_position(text: str, position: int) -> None:
    """The message names the character at which the reader has to look."""
    with pytest.raises(HostlistError, match=rf"\(character {position} of"):
        expand_hostlist(text)


@pytest.mark.parametrize("text", ["h[0-999999999]", "r[1-1000]n[1-1000]x[1-1000]", "a[1-600000],b[1-600000]"])
def test_too_many_hosts_are_refused_while_counting(text: str) -> None:
    """A list beyond the cap is refused by its count, so nothing is ever expanded."""
    with pytest.raises(HostlistError, match="at most 1,000,000"):
        parse_hostlist(text)


def test_a_long_name_is_refused() -> None:
    """A million names of a million characters would fit the count and not the memory."""
    with pytest.raises(HostlistError, match="253"):
        parse_hostlist("x" * 300 + "[0-9]")


NAMES = st.lists(
    st.one_of(
        st.from_regex(r"[a-c]{1,2}[0-9]{1,3}(-ib[0-9]{1,2})?", fullmatch=True),
        st.integers(95, 105).map(lambda n: f"gpu{n:03d}"),
        st.integers(0, 12).map(lambda n: f"n{n}"),
        st.from_regex(r"[0-9]{17,20}", fullmatch=True),
    ),
    min_size=1,
    max_size=30,
)


@given(NAMES)
def test_compression_loses_nothing(names: list[str]) -> None:
    """Expanding a compressed list gives the same names, order, duplicates and padding included."""
    assert list(expand_hostlist(compress_hostlist(names))) == names


@pytest.mark.parametrize("text", ["gpu[0001-0016]", "gpu[08-12,7]", "r1n[1-3]-ib", "a,b[1-2],c"])
def test_compression_finds_the_short_form(text: str) -> None:
    """Runs are folded: a list written the short way comes back as it was."""
    assert compress_hostlist(expand_hostlist(text)) == text


def test_exclusions_name_hosts_or_single_gpus() -> None:
    """Each item may end in a GPU index of its own."""
    found = [(item.expand(), gpu) for item, gpu in parse_exclusion("a,b[1-2]:3")]
    assert found == [(("a",), None), (("b1", "b2"), 3)]


@pytest.mark.parametrize("text", ["a:", "a:x", "a:-1", "a:1:2", "a:1234567890123"])
def test_a_bad_gpu_index_is_refused(text: str) -> None:
    """What follows the colon is a whole number of sane size."""
    with pytest.raises(HostlistError):
        parse_exclusion(text)


def test_many_items_take_linear_time() -> None:
    """Two hundred thousand items are read without a quadratic scan."""
    assert parse_hostlist(",".join(["n1"] * 200_000)).count == 200_000
