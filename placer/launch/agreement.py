"""All processes of a job go on, or all of them stop with the same reason. Light: every process of a job asks.

Only some may see that a map doesn't fit: the host that isn't in it, or has another file. Were they to stop alone, the
others would wait for them in vain. So everyone reports and waits for the verdict: through the store that torchrun's
agent serves, or, where rank 0 is to serve it, through a socket at that address, which is free until then.

Hidden here: the store's wire protocol (torch/csrc/distributed/c10d/TCPStoreBackend.hpp, torch 2.4 or newer) and what
happens when somebody is missing: after `TIMEOUT_S` a process that has nothing against the job goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from placer.launch.environment import AGENT_STORE, LauncherProcess

TIMEOUT_S = 60.0
_LINGER_S = 5.0  # how long the bearer of bad news stays, so that its agent's store lives until others have read them
_RETRY_S = 0.1
_FINE = "fine"
_OTHER_MAP = "rank maps differ: the file isn't the same on all hosts"
_PREFIX = "placer/"
_VALIDATE, _SET, _COMPARE_SET, _GET, _ADD, _WAIT, _PING = 0, 1, 2, 3, 4, 6, 13
_MAGIC = 0x3C85F7CE
_NONCE = 0x506C6163


class _UnknownProtocolError(OSError):
    """Something listens that isn't a store as we know it."""


@dataclass(frozen=True)
class Report:
    """What one process has to say: ``mistake``, with its host, or None, and a checksum of its rank map's file."""

    mistake: str | None
    checksum: str


def agree(
    environment: Mapping[str, str], process: LauncherProcess, report: Report, *, timeout_s: float = TIMEOUT_S
) -> str | None:
    """Report, wait for all others, and answer the reason why the job stops, the same for all, or None.

    Answers None also when others are missing for ``timeout_s`` or the store speaks another protocol.
    """
    address = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if process.world_size == 1 or not address[0] or not address[1].isdecimal():
        return report.mistake
    place = address[0], int(address[1])
    deadline = time.monotonic() + timeout_s
    try:
        if environment.get(AGENT_STORE) == "True":
            return _ask_store(place, process.world_size, report, deadline)
        if process.rank == 0:
            return _serve(place[1], process.world_size, report, deadline)
        return _ask_first(place, report, deadline)
    except (_UnknownProtocolError, TimeoutError):
        return report.mistake
    except OSError as error:
        lost = f"lost the other hosts at {address[0]}:{address[1]} ({error.strerror or error}): see what they say"
        return report.mistake or lost


def _ask_store(place: tuple[str, int], world_size: int, report: Report, deadline: float) -> str | None:
    """The counters tell attempts apart: torchrun's restarts may share a store, and its restart count isn't the same
    on all hosts.
    """
    with _connect(place, deadline) as connection:
        store = _Store(connection)
        attempt, number = divmod(store.add(f"{_PREFIX}reports", 1) - 1, world_size)
        verdict, complete = f"{_PREFIX}verdict/{attempt}", f"{_PREFIX}complete/{attempt}"
        mistake = report.mistake
        if mistake is None and store.compare_set(f"{_PREFIX}map/{attempt}", report.checksum) != report.checksum:
            mistake = _OTHER_MAP
        if mistake is not None:
            store.set(verdict, mistake)
        elif store.add(f"{_PREFIX}fine/{attempt}", 1) == world_size:
            store.set(verdict, _FINE)
        if number == world_size - 1:
            store.set(complete, "")
        store.wait(verdict)
        found = store.get(verdict)
        if mistake is not None:
            connection.settimeout(_LINGER_S)
            with contextlib.suppress(OSError):
                store.wait(complete)
        return None if found == _FINE else found


def _serve(port: int, world_size: int, report: Report, deadline: float) -> str | None:
    """The launcher's rank 0 collects the reports, closes the port, and tells everyone."""
    verdict = report.mistake
    with _many_files(), contextlib.ExitStack() as stack:
        connections: list[socket.socket] = []
        with _listen(port, world_size) as server:
            while len(connections) < world_size - 1:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    break
                stack.enter_context(connection)
                connection.settimeout(_LINGER_S)
                try:
                    given = Report(**json.loads(_read_line(connection)))
                except (OSError, ValueError, TypeError):
                    continue  # a stranger: no process of the job
                other = None if given.checksum == report.checksum else _OTHER_MAP
                verdict = verdict or given.mistake or other
                connections.append(connection)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps(verdict).encode() + b"\n")
    return verdict


def _ask_first(place: tuple[str, int], report: Report, deadline: float) -> str | None:
    with _connect(place, deadline) as connection:
        connection.sendall(json.dumps(vars(report)).encode() + b"\n")
        try:
            answer = json.loads(_read_line(connection))
        except ValueError as error:
            raise _UnknownProtocolError("another answer to a report") from error
        return None if answer is None else str(answer)


@contextlib.contextmanager
def _many_files() -> Iterator[None]:
    """Within it there may be as many connections as the system allows; the user's program gets its own limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _listen(port: int, backlog: int) -> socket.socket:
    """Listen on all addresses."""
    with contextlib.suppress(OSError):
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    try:
        return socket.create_server(("", port), backlog=backlog)
    except OSError as error:  # somebody serves there already
        raise _UnknownProtocolError(error.strerror) from error


def _connect(place: tuple[str, int], deadline: float) -> socket.socket:
    """Connect as soon as somebody listens; the connection's time ends at the deadline too."""
    while True:
        try:
            connection = socket.create_connection(place, timeout=max(0.01, deadline - time.monotonic()))
        except OSError as error:
            if time.monotonic() + _RETRY_S > deadline:
                raise TimeoutError from error
            time.sleep(_RETRY_S)
            continue
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        return connection


def _read(connection: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionResetError("the connection was closed")
        parts += part
    return parts


def _read_line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += _read(connection, 1)
    return line


class _Store:
    """The few requests of a TCPStore that are needed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.sendall(struct.pack("<BIBI", _VALIDATE, _MAGIC, _PING, _NONCE))
        try:
            answer = _read(connection, 4)
        except ConnectionResetError as error:
            raise _UnknownProtocolError(os.strerror(error.errno or 0)) from error
        if struct.unpack("<I", answer) != (_NONCE,):
            raise _UnknownProtocolError("another answer to a ping")

    def add(self, key: str, amount: int) -> int:
        self._send(_ADD, key, struct.pack("<q", amount))
        return int(struct.unpack("<q", _read(self._connection, 8))[0])

    def set(self, key: str, value: str) -> None:
        self._send(_SET, key, _text(value))

    def compare_set(self, key: str, value: str) -> str:
        """Set the value of a key that has none; answers the value that it has then."""
        self._send(_COMPARE_SET, key, _text("") + _text(value))
        return self._read_text()

    def wait(self, key: str) -> None:
        self._connection.sendall(struct.pack("<BQ", _WAIT, 1) + _text(key))
        _read(self._connection, 1)

    def get(self, key: str) -> str:
        self._send(_GET, key)
        return self._read_text()

    def _send(self, request: int, key: str, rest: bytes = b"") -> None:
        self._connection.sendall(bytes([request]) + _text(key) + rest)

    def _read_text(self) -> str:
        size = struct.unpack("<Q", _read(self._connection, 8))[0]
        return _read(self._connection, size).decode(errors="replace")


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded
