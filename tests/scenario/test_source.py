"""Files: what is refused, that every mistake has its place, and that positions are found again."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.errors import InvalidInputError, Issue, KeyName
from placer.scenario.source import MAX_FILE_BYTES, Plain, describe, parse_document, read_document


def refuse(content: bytes | str) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        parse_document(content.encode() if isinstance(content, str) else content, file="s.yaml")
    return caught.value


def places(error: InvalidInputError) -> list[tuple[int, int]]:
    return [(issue.location.line, issue.location.column) for issue in error.issues if issue.location]


def test_plain_scalars_keep_their_text() -> None:
    """What YAML 1.1 would turn into 1101, False, 90 or a date stays the text that was written."""
    data = parse_document(b"a: 1101\nb: no\nc: 1:30\nd: 2024-01-01\ne: 0012\nf: '8'\ng:\n1: x\n", file="s.yaml").data
    assert data == {"a": "1101", "b": "no", "c": "1:30", "d": "2024-01-01", "e": "0012", "f": "8", "g": None, "1": "x"}
    assert isinstance(data["a"], Plain)
    assert not isinstance(data["f"], Plain)


@pytest.mark.parametrize(
    ("content", "message", "place"),
    [
        ("", "empty", (1, 1)),
        (" \n\n", "empty", (1, 1)),
        ("# only\n", "only comments", (1, 1)),
        (b"a: \0", "binary", (1, 1)),
        ("a: 1".encode("utf-16"), "binary", (1, 1)),
        (b"a: 1\nb: \xff", "UTF-8", (2, 4)),
        ("- a", "not a list", (1, 1)),
        ("a: 1\n--- \nb: 1", "second document", (2, 1)),
        ("a: [1, 2\n", "not valid YAML", (1, 4)),
        ("a:\n\t- b", "not valid YAML", (2, 1)),
        ("a: *x", "undefined alias", (1, 4)),
        ('a: "\x01"', "control character", (1, 5)),
        ("a: !!python/object:os.system x", "!!python", (1, 4)),
        ("a: !!set {x}", "!!set", (1, 4)),
        ("a: &x [*x]", "32 levels", (1, 4)),
        ("a: " + "[" * 40 + "]" * 40, "32 levels", (1, 35)),
        ("<<: {a: 1}", "merge keys", (1, 1)),
    ],
)
def test_files_that_are_no_scenario_are_refused(content: bytes | str, message: str, place: tuple[int, int]) -> None:
    """Each is one issue with its place, and nothing of PyYAML shows."""
    error = refuse(content)
    assert message in str(error)
    assert places(error) == [place]
    assert "<unicode string>" not in str(error)


def test_deep_nesting_is_refused_whatever_the_depth() -> None:
    """A hundred thousand brackets end in an error and not in a crash."""
    assert "nested" in str(refuse("a: " + "[" * 100_000))


def test_all_key_mistakes_are_reported_at_once() -> None:
    """Duplicate keys name the first occurrence; keys that are no text are refused."""
    error = refuse("a: 1\na: 2\nb: {c: 1, c: 2}\n? [x]\n: 1\n")
    assert places(error) == [(2, 1), (3, 11), (4, 3)]
    assert "first in line 1" in error.issues[0].message


def test_alias_bombs_are_refused() -> None:
    """Nested aliases that expand to 9^11 values end at the budget; a mistake inside is reported once."""
    levels = "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    assert "aliases expand" in str(refuse("a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + levels))


def test_a_mistake_behind_an_alias_is_reported_once() -> None:
    """An aliased mapping is read at each use, its duplicate key is one mistake."""
    assert len(refuse("a: &a {x: 1, x: 2}\nb: *a\nc: [*a, *a]\n").issues) == 1


def test_too_many_values_are_refused_before_parsing() -> None:
    """Six million values of two bytes would fit the file cap and not the memory."""
    assert "500,000 values" in str(refuse(b"a: [" + b"x," * 3_000_000 + b"]"))


def test_only_regular_files_of_sane_size_are_opened(tmp_path: Path) -> None:
    """A missing file, a directory, a fifo, a device and 100 MB are refused without being read."""
    huge, fifo = tmp_path / "huge.yaml", tmp_path / "fifo"
    with huge.open("wb") as stream:
        stream.truncate(100 * 2**20)
    os.mkfifo(fifo)
    for path, message in (
        (tmp_path / "none.yaml", "No such file"),
        (tmp_path, "directory"),
        (fifo, "no regular file"),
        (Path("/dev/zero"), "no regular file"),
        (huge, f"{MAX_FILE_BYTES:,}"),
        (Path("a\0b"), "null byte"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            read_document(path)


def test_values_and_keys_are_found_again() -> None:
    """`locate` gives the value, the key for a KeyName, and the nearest thing that exists for what doesn't."""
    document = parse_document(b"a:\n  - {b: 1, c: [x, y]}\n  - d: 2\ne: &e {f: 3}\ng: *e\n", file="s.yaml")

    def at(*path: str | int) -> tuple[int, int]:
        location = document.locate(path)
        return location.line, location.column

    assert at("a", 0, "b") == (2, 9)
    assert at("a", 0, KeyName("b")) == (2, 6)
    assert at("a", 0, "c", 1) == (2, 19)
    assert at("a", 0, "missing") == (2, 5)
    assert at("a", 7) == (1, 1)
    assert at("a", 1, "d") == (3, 8)
    assert at("g", "f") == (4, 11)
    assert document.locate(("a", 1, "d")).text == "  - d: 2"


def test_relative_paths_and_the_digest_are_those_of_the_file(tmp_path: Path) -> None:
    """A byte order mark and line ends change the digest and not the content."""
    one, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    one.write_bytes(b"a: x\nb: y\n")
    other.write_bytes(b"\xef\xbb\xbfa: x\r\nb: y\r\n")
    first, second = read_document(one), read_document(other)
    assert first.data == second.data
    assert first.sha256 != second.sha256
    assert first.directory == tmp_path.resolve()


@given(st.text(alphabet="abc:-[]{}&*!|>'\"#%@`?,\n\t 01\x85\u2028é", max_size=40))
def test_no_text_breaks_the_reader(text: str) -> None:
    """Whatever the text, it is read or refused with issues that have a place."""
    issues: tuple[Issue, ...] = ()
    try:
        parse_document(text.encode(), file="s.yaml")
    except InvalidInputError as error:
        issues = error.issues
    assert all(issue.location for issue in issues)


def test_values_are_shown_short() -> None:
    """A message never repeats a value of any length."""
    assert describe("x" * 1000).endswith("…")
    assert describe(Plain("8.0")) == "8.0"
    assert describe("8") == "'8'"
    assert [describe(None), describe({}), describe([])] == ["empty", "a mapping", "a list"]
