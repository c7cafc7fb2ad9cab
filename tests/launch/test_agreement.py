"""All processes go on or all stop: what one of them has against the job stops every other, with its reason."""

import contextlib
import socket
import threading
import time

import pytest

from placer.launch import agreement
from placer.launch.agreement import Report, agree
from placer.launch.environment import LauncherProcess

SIZE = 4


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def ask(port, reports, *, timeout_s=20.0, agent_store="False"):
    """What every process is told; a report of None is a process that never comes."""
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": agent_store}
    verdicts = {}

    def take_part(rank):
        process = LauncherProcess(rank, SIZE, rank, SIZE, 1, SIZE, "CUDA_VISIBLE_DEVICES", None)
        verdicts[rank] = agree(environment, process, reports[rank], timeout_s=timeout_s)

    threads = [threading.Thread(target=take_part, args=(rank,)) for rank in range(SIZE) if reports[rank] is not None]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return verdicts


def reports(*mistakes, checksum="a"):
    return [Report(mistake, checksum) for mistake in mistakes]


@pytest.mark.parametrize("bad", [None, 0, 1, 3])
def test_one_stops_all(port, bad):
    """Nobody objects: all go on. One objects, whoever it is: all have its reason. So too the next time."""
    for _ in range(2):
        verdicts = ask(port, reports(*("no such host" if rank == bad else None for rank in range(SIZE))))
        assert verdicts == dict.fromkeys(range(SIZE), None if bad is None else "no such host")


def test_maps_must_be_the_same(port):
    """A host with another file stops all, though the file fits it."""
    given = [*reports(None, None, None), Report(None, "b")]
    assert set(ask(port, given).values()) == {"rank maps differ: the file isn't the same on all hosts"}


def test_missing_process_does_not_stop_the_others(port):
    """Who has waited long enough goes on, as without an agreement; who objects stops."""
    assert set(ask(port, [*reports(None, None, None), None], timeout_s=0.5).values()) == {None}
    assert ask(port, [None, *reports(None, "bad", None)], timeout_s=0.5) == {1: None, 2: "bad", 3: None}


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\n", b'{"mistake": 1}\n', b"[]\n", b""])
def test_stranger_that_connects_does_not_count(port, words):
    """What a port scanner, say, sends to rank 0 neither stops the job nor stands for one of its processes."""

    def knock():
        with contextlib.suppress(OSError), agreement._connect(("127.0.0.1", port), time.monotonic() + 5) as connection:
            connection.sendall(words)

    thread = threading.Thread(target=knock)
    thread.start()
    time.sleep(0.02)
    assert ask(port, reports(None, None, "bad", None)) == dict.fromkeys(range(SIZE), "bad")
    thread.join()


def test_port_that_somebody_serves_already(port):
    """Rank 0 can't collect reports there: the job goes on as without an agreement."""
    with socket.create_server(("", port)):
        assert set(ask(port, reports(None, None, None, None), timeout_s=0.5).values()) == {None}


def test_single_process_asks_nobody():
    """A job of one process has nobody to agree with."""
    process = LauncherProcess(0, 1, 0, 1, 1, 1, "CUDA_VISIBLE_DEVICES", None)
    assert agree({"MASTER_ADDR": "nowhere", "MASTER_PORT": "1"}, process, Report("bad", "")) == "bad"


def test_stranger_at_the_stores_address(port):
    """Something that isn't the agent's store, or speaks another protocol, can't stop a job."""
    with socket.create_server(("127.0.0.1", port)) as server:

        def answer():
            for _ in range(SIZE):
                connection, _ = server.accept()
                with connection:
                    connection.recv(64)
                    connection.sendall(b"HTTP")

        thread = threading.Thread(target=answer)
        thread.start()
        assert set(ask(port, reports(None, None, None, None), agent_store="True").values()) == {None}
        thread.join()


def test_store_that_dies_stops_those_who_wait(port, monkeypatch):
    """The agent that served the store has gone: its host has failed, and nobody waits for it for ever."""
    monkeypatch.setattr(agreement, "_NONCE", int.from_bytes(b"PLAC", "little"))
    with socket.create_server(("127.0.0.1", port)) as server:

        def answer():
            for _ in range(SIZE):
                connection, _ = server.accept()
                with connection:
                    connection.recv(10)
                    connection.sendall(b"PLAC")

        thread = threading.Thread(target=answer)
        thread.start()
        verdicts = ask(port, reports(None, None, None, None), agent_store="True")
        thread.join()
    assert all(text.startswith(f"lost the other hosts at 127.0.0.1:{port}") for text in verdicts.values())


@pytest.mark.parametrize("bad", [None, 2])
def test_real_store(bad):
    """The same through a TCPStore of torch, twice in a row as after a restart."""
    distributed = pytest.importorskip("torch.distributed")
    store = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    for _ in range(2):
        given = reports(*("no such host" if rank == bad else None for rank in range(SIZE)))
        verdicts = ask(store.port, given, agent_store="True")
        assert verdicts == dict.fromkeys(range(SIZE), None if bad is None else "no such host")
