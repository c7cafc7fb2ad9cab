"""Errors as their reader sees them."""

from placer.errors import InvalidInputError, Issue, Location


def test_no_control_character_reaches_the_terminal():
    """Names, lines and file names may come from a hostile file; the caret stays below its character."""
    location = Location("a\x1b[31m.yaml", 1, 8, "ab\x07\u202ec: x")
    text = str(InvalidInputError(Issue("unknown key 'a\x1b[31mb\n'", "did you mean 'a\u200bb'?", location=location)))
    assert all(line.isprintable() for line in text.split("\n"))
    message, shown, caret, hint = text.split("\n")
    assert message == "a [31m.yaml:1:8: unknown key 'a [31mb '"
    assert shown[caret.index("^")] == "x"
    assert hint == "  hint: did you mean 'a b'?"
