"""Ctrl-C, SIGTERM and SIGHUP during a solve: the first asks for the best map so far, the second ends it at once.

Hidden here: Python runs signal handlers between two steps of the main thread, which may be inside a C++ solver for
long. The wake-up descriptor is written to at once, by the C handler; a thread reads it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

EXIT_INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last: its terminal is gone


class StopRequest:
    """Context in which a signal is a request to stop. Use it in the main thread.

    `is_made` is what a solver polls. ``on_request`` is called at the first signal, in a thread of its own; without it
    (a command that has nothing to keep) the first signal already ends the program. A signal that was ignored before
    (``nohup``, a shell's background job) stays ignored.
    """

    def __init__(self, on_request: Callable[[], None] | None) -> None:
        self._on_request = on_request
        self._event = threading.Event()

    def is_made(self) -> bool:
        """Whether the user has asked to stop."""
        return self._event.is_set()

    def __enter__(self) -> StopRequest:
        """Watch the signals."""
        self._reader, writer = os.pipe()
        self._writer = writer
        os.set_blocking(writer, False)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        self._handlers = {
            number: signal.signal(number, _do_nothing)
            for number in _SIGNALS
            if signal.getsignal(number) != signal.SIG_IGN
        }
        self._previous_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back."""
        signal.set_wakeup_fd(self._previous_fd)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._writer)  # ends the thread
        self._thread.join()
        os.close(self._reader)

    def _watch(self) -> None:
        while received := os.read(self._reader, 1):
            if received[0] not in _SIGNALS:
                continue
            if self._event.is_set() or self._on_request is None:
                os._exit(EXIT_INTERRUPTED)  # nothing is flushed, no file is touched
            self._event.set()
            with contextlib.suppress(OSError, ValueError):  # a closed terminal must not keep the solve from stopping
                self._on_request()


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """A handler must exist for the wake-up descriptor to be written."""
