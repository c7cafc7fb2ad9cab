"""The search in a process of its own: it uses another core, compiles while others work, and can be ended at once.

`Worker` starts a Python that runs `main` and compiles the search at once, later hands it the problem and task after
task, and collects what it finds. The child is not forked (the caller may have threads) and never imports the caller's
main module; it ends when its input closes.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from placer.problem import Problem

if TYPE_CHECKING:
    from placer.solver.schedule import Task
    from placer.solver.search import Finding

_LENGTH = struct.Struct("<Q")
NICENESS = 10
_DONE = None  # ends what a task finds; the first one says that the process is ready


def _write(stream: IO[bytes], message: object) -> None:
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def _read(stream: IO[bytes]) -> object:
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    return pickle.loads(stream.read(_LENGTH.unpack(head)[0]))


@dataclass(frozen=True)
class Failure:
    """A worker's process ended early: ``reason`` says what is known."""

    reason: str


Message = tuple[int, "Finding | Failure | None"]
"""Number of the worker, and what it has to say; None: its task is done."""


class Worker:
    """A search process: it gets ready when made, and works on one task after the other.

    What it finds goes to ``inbox``, which workers may share. ``after``: a worker that is to be ready before this one
    starts, so that what it compiles need not be compiled twice. Use as a context manager; leaving it ends the process.
    """

    def __init__(self, inbox: queue.SimpleQueue[Message], number: int = 0, *, after: Worker | None = None) -> None:
        self._inbox = inbox
        self._number = number
        self._after = after
        self._orders: queue.SimpleQueue[Problem | Task | None] = queue.SimpleQueue()
        self._is_ready = threading.Event()
        self._lock = threading.Lock()
        self._is_closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed on exit
        self._conversation = threading.Thread(target=self._converse, daemon=True)
        self._conversation.start()

    def begin(self, problem: Problem) -> None:
        """Say what the tasks to come are about."""
        self._orders.put(problem)

    def give(self, task: Task) -> None:
        """Hand over the next task."""
        self._orders.put(task)

    def _start(self) -> subprocess.Popen[bytes] | None:
        niceness = NICENESS if self._number else 0  # where cores are few, the bound and the first worker come first
        environment = dict(os.environ)
        root = str(Path(__file__).resolve().parents[2])
        environment.setdefault("NUMBA_OPT", "1")  # compiles in half the time, and runs no slower
        environment["PYTHONPATH"] = os.pathsep.join(p for p in (root, environment.get("PYTHONPATH")) if p)
        with self._lock:
            if not self._is_closed:
                self._process = subprocess.Popen(
                    # -P: never import from the working directory; not -m, as the package itself imports this module
                    [sys.executable, "-P", "-c", f"from placer.solver.worker import main; main({niceness})"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    start_new_session=True,  # Ctrl-C is the parent's to handle
                    env=environment,
                )
            return self._process

    def _converse(self) -> None:
        try:
            if self._after is not None:
                self._after._is_ready.wait()
            process = self._start()
            if process is None:
                return
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(EOFError, OSError, ValueError, pickle.UnpicklingError):
                _read(process.stdout)
                self._is_ready.set()
                while True:
                    order = self._orders.get()
                    if order is None:
                        return
                    _write(process.stdin, order)
                    if not isinstance(order, Problem):
                        self._pass_on(process.stdout)
            self._log.seek(0)
            last_words = self._log.read().decode(errors="replace").strip().splitlines()[-1:]
            reason = "".join(["a search process ended early", *(f": {line}" for line in last_words)])
            self._inbox.put((self._number, Failure(reason)))
        finally:
            self._is_ready.set()  # whoever waits for this one must not wait for ever

    def _pass_on(self, stream: IO[bytes]) -> None:
        """Pass on what a task finds, until it is done."""
        while True:
            message = cast("Finding | None", _read(stream))
            self._inbox.put((self._number, message))
            if message is _DONE:
                return

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_closed = True
        self._is_ready.set()
        self._orders.put(None)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._conversation.join()  # it reads the streams: its pipes are at their end now
        streams = [] if self._process is None else [self._process.stdin, self._process.stdout]
        for stream in (*streams, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def main(niceness: int) -> None:
    """Work on what standard input describes; what is found goes to standard output, None ends it."""
    os.nice(niceness)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # not by itself: the reading thread holds the lock of its stream, which the interpreter would need


def _work() -> None:
    results = sys.stdout.buffer
    orders: queue.SimpleQueue[Problem | Task] = queue.SimpleQueue()

    def listen() -> None:
        with contextlib.suppress(EOFError):
            while True:
                orders.put(cast("Problem | Task", _read(sys.stdin.buffer)))
        os._exit(0)  # the parent has ended, or needs no search any more

    from placer.solver.search import search, warm_up  # noqa: PLC0415  compiles: only here

    threading.Thread(target=listen, daemon=True).start()
    warm_up()
    _write(results, _DONE)
    problem = cast("Problem", orders.get())
    while True:
        for found in search(problem, cast("Task", orders.get())):
            _write(results, found)
        _write(results, _DONE)
