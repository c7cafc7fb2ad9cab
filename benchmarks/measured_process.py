"""Run a command in a process of its own, with its wall time and the memory of all its processes.

Hidden here: /proc. Memory is the sum of the resident sets of the command and everything that it started, sampled 20
times a second; pages that processes share count in each, so it is an upper bound. Needs Linux, as placer does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SAMPLE_S = 0.05


@dataclass(frozen=True)
class Measured:
    """How a command ended. ``returncode`` is None when it was ended at the timeout."""

    returncode: int | None
    stdout: str
    stderr: str
    seconds: float
    peak_bytes: int


def run_measured(command: Sequence[str], *, timeout_s: float, directory: Path) -> Measured:
    """Run a command in ``directory`` and wait for it; it is killed when ``timeout_s`` have passed."""
    started = time.perf_counter()
    with subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        sampler = _Sampler(process.pid)
        sampler.start()
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
            returncode: int | None = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            returncode = None
        except BaseException:  # Ctrl-C must not leave a solve running
            os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            sampler.stop()
        seconds = time.perf_counter() - started
    return Measured(returncode, stdout, stderr, seconds, sampler.peak_bytes)


class _Sampler(threading.Thread):
    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._done = threading.Event()
        self.peak_bytes = 0

    def run(self) -> None:
        while not self._done.is_set():
            self.peak_bytes = max(self.peak_bytes, sum(resident_bytes(pid) for pid in family_of(self._pid)))
            self._done.wait(SAMPLE_S)

    def stop(self) -> None:
        self._done.set()
        self.join()


def family_of(pid: int) -> list[int]:
    """A process and all that it started, as far as they still live."""
    found = [pid]
    for parent in found:
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue  # it has ended meanwhile
    return found


def resident_bytes(pid: int) -> int:
    """Resident memory of one process, 0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
