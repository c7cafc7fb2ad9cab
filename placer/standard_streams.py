"""stdout and stderr as the caller left them: closed, full, read by nobody, or unable to show a character.

Hidden here: what Python does about such streams at its end. stdout is the result: what can't be written there is an
error. stderr is the conversation: what can't be written there is dropped, and the work goes on.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator

from placer.errors import UsageError


@contextlib.contextmanager
def usable_streams() -> Iterator[None]:
    """Within it stdout and stderr exist and take every character; stderr never fails.

    Writing to stdout raises `UsageError` when it can't be done, on a full disk say, or BrokenPipeError.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: `placer … >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  it lives as long as the process
    given = sys.stdout, sys.stderr
    if not (isinstance(given[0], io.TextIOWrapper) and isinstance(given[1], io.TextIOWrapper)):
        yield  # a caller's own objects: theirs to handle
        return
    output = _Output(given[0].buffer, given[0].encoding, "replace", line_buffering=given[0].line_buffering)
    talk = _Talk(given[1].buffer, given[1].encoding, "backslashreplace", line_buffering=True)
    sys.stdout, sys.stderr = output, talk
    try:
        yield
    finally:
        sys.stdout, sys.stderr = given
        for stream in (output, talk):
            with contextlib.suppress(UsageError, BrokenPipeError):  # who has reached this place has flushed or failed
                stream.detach()  # the buffer is the given stream's to close


def print_data(text: str) -> None:
    """Write to stdout. Data is UTF-8, whatever the terminal's encoding is. Raises as other writing does."""
    with _writing_stdout():
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()


def drop_stdout() -> None:
    """Send what is left in the buffer nowhere, or the interpreter would complain at its end."""
    _drop(1)


class _Output(io.TextIOWrapper):
    def write(self, text: str) -> int:
        with _writing_stdout():
            return super().write(text)

    def flush(self) -> None:
        with _writing_stdout():
            super().flush()


class _Talk(io.TextIOWrapper):
    """Text that goes nowhere once it can't be written."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            _drop(2)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            _drop(2)


@contextlib.contextmanager
def _writing_stdout() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_stdout()
        raise UsageError(f"can't write to stdout: {error.strerror or error}") from error


def _drop(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
