"""What goes wrong, said so that the reader can mend it: value, rule, place, fix.

Every error that a user can cause is a `PlacerError`. It carries one or more `Issue`s (all mistakes are reported
at once) and the exit code of the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Path = tuple[str | int, ...]
"""Where a value stands in a document: ``("cluster", "hosts", 3, "gpus")``."""


class KeyName(str):
    """Last part of a `Path` when the mistake is the key itself (unknown, say) and not its value."""

    __slots__ = ()


@dataclass(frozen=True)
class Location:
    """A place in a text file.

    ``line`` and ``column`` count from 1; ``text`` is that line, for the caret, or "" when there is none to show.
    """

    file: str
    line: int
    column: int
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Issue:
    """One mistake: what is wrong (with the value and the rule), where, and what to write instead.

    ``path`` names the value in its document; ``location`` is filled in by whoever knows the file.
    """

    message: str
    hint: str = ""
    path: Path = ()
    location: Location | None = None

    def render(self) -> str:
        """Several lines for a terminal: ``file:line:column: message``, the line with a caret, the hint."""
        lines = [f"{self.location}: {self.message}" if self.location else self.message]
        if self.location and self.location.text:
            start = max(0, self.location.column - 60)
            shown = self.location.text[start : start + 110]
            lines += ["    " + shown, "    " + " " * (self.location.column - 1 - start) + "^"]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(_defuse(line) for line in lines)


def _defuse(line: str) -> str:
    """``line`` without control characters, each a blank: names in it may come from a hostile file.

    As long as before, so that a caret below it still points at the same character.
    """
    return line if line.isprintable() else "".join(c if c.isprintable() else " " for c in line)


class PlacerError(Exception):
    """An error that the user can act on. ``issues`` is never empty; ``num_left_out`` more are only counted."""

    exit_code = 1

    def __init__(self, issues: Issue | Sequence[Issue] | str, *, hint: str = "", num_left_out: int = 0) -> None:
        if isinstance(issues, str):
            issues = Issue(issues, hint=hint)
        self.issues: tuple[Issue, ...] = (issues,) if isinstance(issues, Issue) else tuple(issues)
        assert self.issues, "an error without an issue"
        self.num_left_out = num_left_out
        super().__init__("\n".join(issue.render() for issue in self.issues))


class UsageError(PlacerError):
    """A wrong combination of options, or an output file that must not be replaced."""

    exit_code = 2


class InvalidInputError(PlacerError):
    """A scenario, rank map or other input that breaks the format or contradicts itself."""

    exit_code = 3


class InfeasibleError(PlacerError):
    """Proven: no placement satisfies the constraints. Names the constraint and the domain."""

    exit_code = 4


class LimitReachedError(PlacerError):
    """The time limit came before any placement was found; nothing is proven."""

    exit_code = 5


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """``did you mean 'x'?`` for the closest known word, else a list of the known ones (at most 12)."""
    import difflib  # noqa: PLC0415  only needed once something is wrong

    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    shown = ", ".join(str(item) for item in known[:12])
    return f"known: {shown}{', …' if len(known) > 12 else ''}"
