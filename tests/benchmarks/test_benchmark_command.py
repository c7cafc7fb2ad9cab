"""The command: what it runs, saves, resumes and refuses."""

import json
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import __main__ as command
from benchmarks.measure import Answer, judge, load_job, run_peer, run_placer
from benchmarks.measured_process import run_measured
from benchmarks.peers import PEERS, Peer, find_peer
from benchmarks.pools import Cell, find_cell, write_scenario
from benchmarks.results import PLACER, describe_environment, load
from placer.problem import evaluate

CELL = Cell("fragmented", 64, "moe", "any")


def invoke(*arguments):
    return CliRunner().invoke(command.main, list(arguments))


def test_measured_process_sees_time_and_the_memory_of_children(tmp_path):
    """200 MB held by a grandchild for 0.4 s are seen; output and exit code come back."""
    child = "import time; b = bytearray(200_000_000); time.sleep(.4); print('done')"
    parent = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {child!r}]).returncode + 3)"
    found = run_measured([sys.executable, "-c", parent], timeout_s=60, directory=tmp_path)
    assert (found.returncode, found.stdout) == (3, "done\n")
    assert found.seconds >= 0.4
    assert found.peak_bytes > 200e6


def test_measured_process_ends_what_takes_too_long(tmp_path):
    """A process that outlives its timeout is killed, its children too."""
    sleep = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    found = run_measured([sys.executable, "-c", sleep], timeout_s=0.3, directory=tmp_path)
    assert found.returncode is None
    assert found.seconds < 30


def test_placer_and_peers_are_judged_alike():
    """placer runs as the real command, a peer in its own process; both are judged by the evaluator here."""
    text = write_scenario(CELL, 0)
    job = load_job(text)
    answer = run_placer(text, job, seed=0, time_limit_s=5)
    default = run_peer(find_peer("default"), text, job, seed=0, time_limit_s=5)
    assert default.objective == evaluate(job.problem, find_peer("default").place(job.problem, 0, 5.0)).objective
    assert answer.note == default.note == ""
    assert answer.lower_bound <= answer.objective <= default.objective
    assert answer.status in {"optimal", "feasible"}
    assert answer.seconds > 0
    assert answer.peak_bytes > default.peak_bytes / 2 > 10e6


def test_a_peer_that_is_not_installed_or_not_applicable_is_skipped_with_a_word():
    """Neither is an error: the answer has no objective but a note."""
    text = write_scenario(Cell("fragmented", 512, "dense"), 1)
    job = load_job(text)
    absent = run_peer(Peer("x", "X", "x", "no_such_package"), text, job, seed=0, time_limit_s=5)
    assert absent == Answer(None, note="no_such_package isn't installed")
    refused = run_peer(find_peer("p2"), text, job, seed=0, time_limit_s=5)
    assert refused == Answer(None, note="the pool is no regular tree")


def test_a_peer_that_fails_or_cheats_has_no_objective():
    """A crash is noted with its last line; a placement with two ranks on a GPU is no answer."""
    text = write_scenario(CELL, 0)
    job = load_job(text)
    failed = run_peer(Peer("no-such-peer", "X", "x"), text, job, seed=0, time_limit_s=5)
    assert failed.objective is None
    assert failed.note.startswith("exit code 1: KeyError")
    assert judge(job, np.zeros(64, dtype=np.int32)) == (None, "two ranks sit on one GPU")


def test_a_run_is_saved_resumed_and_rendered(tmp_path, monkeypatch):
    """All answers are saved; a second run measures only what is missing; the table goes into the README."""
    asked = []

    def fake_placer(text, job, *, seed, time_limit_s):
        asked.append((PLACER, seed, time_limit_s))
        return Answer(50.0, 1.0, 10**8, lower_bound=50.0, status="optimal")

    def fake_peer(peer, text, job, *, seed, time_limit_s):
        asked.append((peer.name, seed, time_limit_s))
        return Answer(100.0, 1.0, 10**8)

    monkeypatch.setattr(command, "run_placer", fake_placer)
    monkeypatch.setattr(command, "run_peer", fake_peer)
    path = tmp_path / "results.json"
    options = ["--cells", "fragmented-64-moe-any", "--seeds", "2", "-o", str(path)]
    assert invoke(*options, "--peers", "p2").exit_code == 0
    assert asked == [(name, seed, 60.0) for seed in (0, 1) for name in ("default", "p2", PLACER)]
    asked.clear()
    found = invoke(*options, "--peers", "p2,axis-orders")
    assert asked == [("axis-orders", 0, 60.0), ("axis-orders", 1, 60.0)]
    assert "| fragmented, any | 64 | moe | 2 | 0.500 |" in found.output
    assert [set(run.answers) for run in load(path).runs] == [{"default", "p2", "axis-orders", PLACER}] * 2
    asked.clear()
    assert invoke(*options, "--peers", "p2", "--time-limit", "7", "--restart").exit_code == 0
    assert {limit for _, _, limit in asked} == {7.0}

    monkeypatch.setattr(command, "README", tmp_path / "README.md")
    command.README.write_text("<!-- benchmarks: begin -->\n<!-- benchmarks: end -->\n")
    asked.clear()
    assert invoke("--render", "-o", str(path)).exit_code == 0
    assert not asked
    assert "| fragmented, any | 64 |" in command.README.read_text()


def test_results_of_other_versions_are_not_mixed(tmp_path):
    """Earlier results of another placer are refused with what to do, and stay."""
    path = tmp_path / "results.json"
    environment = {**describe_environment(), "source": "other"}
    text = json.dumps({"schema": "placer.benchmarks/1", "environment": environment, "dates": [], "runs": []})
    path.write_text(text)
    found = invoke("--cells", "clean-64", "-o", str(path))
    assert found.exit_code == 1
    assert "another source" in found.output
    assert "--restart" in found.output
    assert path.read_text() == text


def test_scenarios_can_be_written(tmp_path):
    """Anyone gets the file of any cell, on stdout or as a file."""
    wanted = write_scenario(find_cell("racks-64-moe"), 4)
    assert invoke("--write-scenario", "racks-64-moe", "4").output == wanted
    path = tmp_path / "scenario.yaml"
    assert invoke("--write-scenario", "racks-64-moe", "4", "-o", str(path)).exit_code == 0
    assert path.read_text() == wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cells", "nothing"], "no cell matches"),
        (["--write-scenario", "nothing", "0"], "no cell is called"),
        (["--cells", "clean-64", "--peers", "nobody"], "unknown peers: nobody"),
        (["--render", "-o", "/no/such/file"], "No such file"),
    ],
)
def test_wrong_usage_is_refused(arguments, message):
    """Unknown cells, peers and files are named."""
    found = invoke(*arguments)
    assert found.exit_code in {1, 2}
    assert message in found.output


def test_list_shows_cells_and_peers():
    """Everything that --cells and --peers take."""
    output = invoke("--list").output
    assert "fragmented-98304-moe  (120 s)" in output
    assert all(f"{peer.name}: " in output for peer in PEERS)


def test_an_objective_of_zero_is_an_answer(tmp_path):
    """racks-64-moe, seed 1, fits one rack: nothing crosses a boundary, so there is no ratio to show."""
    path = tmp_path / "results.json"
    found = invoke("--cells", "racks-64-moe", "--seeds", "2", "--peers", "p2", "-o", str(path))
    assert found.exit_code == 0
    assert "placer       J 0.0000, bound 0.0000, optimal" in found.output
    assert "default      J / default 1.0000" in found.output
