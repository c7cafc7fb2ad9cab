"""The search in a process of its own: it uses the second core, compiles while others work, and can be ended at once.

`Worker` starts a Python that runs `main` and compiles the search at once, later hands it the problem and the starts,
and collects placements. The child is not forked (the caller may have threads) and never imports the
caller's main module; it ends when its input closes.
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
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from placer.problem import IntArray, Problem

if TYPE_CHECKING:
    from placer.solver.search import Start

_LENGTH = struct.Struct("<Q")


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


class Worker:
    """A search process: it gets ready when made, and works from `begin` on.

    Use as a context manager; leaving it ends the process.
    """

    def __init__(self) -> None:
        self._found: queue.SimpleQueue[IntArray | None] = queue.SimpleQueue()
        self.is_done = False
        self.failure = ""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed on exit
        environment = dict(os.environ)
        root = str(Path(__file__).resolve().parents[2])
        environment.setdefault("NUMBA_OPT", "1")  # compiles in half the time, and runs no slower
        environment["PYTHONPATH"] = os.pathsep.join(p for p in (root, environment.get("PYTHONPATH")) if p)
        self._process = subprocess.Popen(
            # -P: never import from the working directory; not -m, as the package itself imports this module
            [sys.executable, "-P", "-c", "from placer.solver.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is the parent's to handle
            env=environment,
        )
        self._conversation: threading.Thread | None = None

    def begin(self, problem: Problem, starts: list[Start], *, seed: int) -> None:
        """Hand over the task; `poll` then gives what is found."""
        self._conversation = threading.Thread(target=self._converse, args=((problem, starts, seed),), daemon=True)
        self._conversation.start()

    def _converse(self, task: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(EOFError, OSError, ValueError, pickle.UnpicklingError):
            _write(self._process.stdin, task)
            while True:
                message = _read(self._process.stdout)
                if message is None:
                    self._found.put(None)
                    return
                self._found.put(message)  # type: ignore[arg-type]
        self._log.seek(0)
        last_words = self._log.read().decode(errors="replace").strip().splitlines()[-1:]
        self.failure = "".join(["the search process ended early", *(f": {line}" for line in last_words)])
        self._found.put(None)

    def poll(self, timeout_s: float) -> IntArray | None:
        """The next placement if one comes within the time; sets ``is_done`` once the search has ended."""
        if self.is_done:
            return None
        with contextlib.suppress(queue.Empty):
            found = self._found.get(timeout=timeout_s) if timeout_s > 0 else self._found.get_nowait()
            self.is_done = found is None
            return found
        return None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        if self._conversation is not None:
            self._conversation.join()  # it reads the streams: its pipes are at their end now
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def main() -> None:
    """Run the search that standard input describes; placements go to standard output, None ends them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    task_stream, result_stream = sys.stdin.buffer, sys.stdout.buffer
    from placer.solver.search import search, warm_up  # noqa: PLC0415  compiles: only here

    warm_up()
    try:
        problem, starts, seed = cast("tuple[Problem, list[Start], int]", _read(task_stream))
    except EOFError:  # there was no need for a search
        return

    def end_with_parent() -> None:
        os.read(task_stream.fileno(), 1)  # not through the buffer: its lock would be held when the interpreter ends
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()
    for found in search(problem, starts, seed=seed):
        if found is not None:
            _write(result_stream, found)
    _write(result_stream, None)
