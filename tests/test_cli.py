"""The command line: results on stdout, talk on stderr, the documented exit codes, no traceback for a user's mistake."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from placer import cli
from placer.rank_map import RankMap

SCENARIOS = Path(__file__).parents[1] / "scenarios"
QUICKSTART = str(SCENARIOS / "quickstart.yaml")
SLOW = str(SCENARIOS / "mixtral-8x22b-fragmented.yaml")


@pytest.fixture
def run(capfd, monkeypatch, tmp_path):
    """Run a command in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments):
        code = cli.main([str(argument) for argument in arguments])
        return code, *capfd.readouterr()

    return run_command


def start(*arguments, **options):
    environment = os.environ | {"PYTHONPATH": str(SCENARIOS.parent)}
    command = [sys.executable, "-m", "placer", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    ignored = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_IGN]
    for number in ignored:  # the tests run under nohup, say: children would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        return subprocess.Popen(command, text=True, **{**pipes, "env": environment, **options})
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


# solve


def test_solve_writes_the_map_and_reports(run, tmp_path):
    """The map goes to rank_map.json, the table to stdout, progress to stderr."""
    code, out, err = run("solve", QUICKSTART)
    assert code == 0
    rank_map = RankMap.load(tmp_path / "rank_map.json")
    assert rank_map.world_size == 16
    assert "Proven optimal" in out
    assert "\x1b" not in out + err
    assert "baselines" in err
    assert "rank map: rank_map.json (16 ranks, " in err


def test_solve_json(run, tmp_path):
    """With --json stdout is one JSON document, whose map is the one in the file."""
    code, out, err = run("solve", QUICKSTART, "--json", "-o", "m.json", "--time-limit", "20", "--seed", "3")
    found = json.loads(out)
    assert code == 0
    assert found["schema"] == "placer.result/1"
    assert found["seed"] == 3
    assert found["rank_map"] == json.loads((tmp_path / "m.json").read_text())
    assert "this map" in err


def test_solve_to_stdout(run, tmp_path):
    """With -o - stdout is the map, the table goes to stderr, and no file is written."""
    code, out, err = run("solve", QUICKSTART, "-o", "-")
    assert code == 0
    assert json.loads(out)["schema"] == "placer.rank_map/1"
    assert "this map" in err
    assert list(tmp_path.iterdir()) == []


def test_solve_quietly(run, tmp_path):
    """--quiet leaves nothing but the map."""
    assert run("solve", QUICKSTART, "--quiet") == (0, "", "")
    assert (tmp_path / "rank_map.json").exists()


def test_solve_twice_gives_the_same_bytes(run, tmp_path):
    """The same scenario and seed give the same file, which replaces the earlier one."""
    run("solve", QUICKSTART, "--quiet")
    before = (tmp_path / "rank_map.json").read_bytes()
    run("solve", QUICKSTART, "--quiet")
    assert (tmp_path / "rank_map.json").read_bytes() == before


def test_json_has_the_trace(run):
    """--json tells how the answer and the bound improved; the end is what the result says."""
    found = json.loads(run("solve", QUICKSTART, "--json", "--quiet")[1])
    trace = found["trace"]
    assert [list(point) for point in trace] == [["time_s", "objective", "bound", "phase"]] * len(trace)
    assert (trace[-1]["objective"], trace[-1]["bound"]) == (found["objective"], found["lower_bound"])
    assert 0 < trace[0]["time_s"] <= trace[-1]["time_s"] <= found["runtime_s"]


def test_deterministic_solves_give_the_same_bytes(run, tmp_path):
    """With --deterministic a search that the limit cuts short gives the same file, also beside a busy process."""
    arguments = ("solve", SLOW, "--quiet", "--deterministic", "--time-limit", "3", "--seed", "2")
    assert run(*arguments)[0] == 0
    before = (tmp_path / "rank_map.json").read_bytes()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        assert run(*arguments)[0] == 0
        busy.kill()
    assert (tmp_path / "rank_map.json").read_bytes() == before


def test_target_gap_stops_early(run):
    """With a generous gap a hard scenario ends long before its limit, and the gap holds."""
    code, out, _ = run("solve", SLOW, "--json", "--quiet", "--target-gap", "0.9")
    found = json.loads(out)
    assert code == 0
    assert found["gap"] <= 0.9
    assert found["runtime_s"] < 30


# evaluate


def test_evaluate_our_own_map(run):
    """The figures of an evaluated map are those of its solve."""
    solved = json.loads(run("solve", QUICKSTART, "--json", "--quiet")[1])
    code, out, err = run("evaluate", QUICKSTART, "--rank-map", "rank_map.json", "--json", "--quiet")
    found = json.loads(out)
    assert (code, err) == (0, "")
    for key in ("objective", "bytes", "status", "baselines", "rank_map", "step_time", "tiers", "traffic"):
        assert found[key] == solved[key]
    assert "Proven optimal" in run("evaluate", QUICKSTART, "--rank-map", "rank_map.json")[1]


def test_evaluate_a_map_of_another_cluster(run, tmp_path):
    """Hosts that the scenario hasn't are named with their place in the map: exit 3."""
    run("solve", QUICKSTART, "--quiet")
    text = (tmp_path / "rank_map.json").read_text().replace("gpu2", "gpu22")
    (tmp_path / "other.json").write_text(text)
    code, out, err = run("evaluate", QUICKSTART, "--rank-map", "other.json")
    assert (code, out) == (3, "")
    line = next(k for k, row in enumerate(text.splitlines(), 1) if "gpu22" in row)
    assert f"other.json:{line}:" in err
    assert "did you mean 'gpu2'?" in err


def test_evaluate_a_damaged_map(run, tmp_path):
    """A file that is no rank map: exit 3, with its place."""
    (tmp_path / "bad.json").write_text('{"schema": "placer.rank_map/1", "world_size": 2,}')
    code, _, err = run("evaluate", QUICKSTART, "--rank-map", "bad.json")
    assert code == 3
    assert "bad.json:1:" in err
    assert "Traceback" not in err


# check, schema, help


def test_check(run, tmp_path):
    """check prints degrees, groups, bytes with their formula, and what is free, and writes nothing."""
    code, out, err = run("check", SLOW)
    assert (code, err) == (0, "")
    for part in (
        "128 = tp × cp × pp × dp",
        "edp 2",
        "2·v·m·X/t'",
        "l1 40, l2 31, l3 22, l4 31, l5 14",
        "138 usable GPUs",
    ):
        assert part in out
    assert list(tmp_path.iterdir()) == []


def test_schema(run):
    """schema prints what the repository holds for editors."""
    code, out, _ = run("schema")
    assert code == 0
    assert out == (SCENARIOS / "scenario.schema.json").read_text("utf-8")


def test_version(run):
    """--version names the program and the version."""
    from placer import __version__

    assert run("--version") == (0, f"placer, version {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], {"ortools", "networkx", "rich", "numpy", "pydantic", "yaml", "numba"}),
        (["solve", "--help"], {"ortools", "networkx", "rich", "numpy", "pydantic", "yaml", "numba"}),
        (["check", QUICKSTART], {"ortools", "networkx", "rich", "numba"}),
    ],
)
def test_light_commands_import_nothing_heavy(arguments, heavy):
    """Help and check stay fast: what only a solve needs isn't imported."""
    code = f"import sys; from placer.cli import main; main({arguments!r}); print(sorted({heavy!r} & set(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": str(SCENARIOS.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == "[]"


# usage and output files: exit 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["solve"], "Missing argument 'SCENARIO'"),
        (["solv", QUICKSTART], "No such command"),
        (["solve", QUICKSTART, "--fast"], "No such option"),
        (["solve", QUICKSTART, "--time-limit", "0"], "no positive number of seconds"),
        (["solve", QUICKSTART, "--time-limit", "nan"], "no positive number of seconds"),
        (["solve", QUICKSTART, "--target-gap", "2"], "no share from 0 to 1"),
        (["solve", QUICKSTART, "--seed", "-1"], "-1 is not in the range"),
        (["solve", QUICKSTART, "--objective", "time"], "'time' is not"),
        (["solve", QUICKSTART, "-o", "-", "--json"], "both want stdout"),
        (["solve", QUICKSTART, "-o", "none/map.json"], "there is no folder 'none'"),
        (["solve", QUICKSTART, "-o", "."], "it is a folder"),
        (["solve", QUICKSTART, "-o", QUICKSTART], "no rank map"),
        (["solve", QUICKSTART, "-o", QUICKSTART, "--force"], "is the scenario itself"),
        (["solve", QUICKSTART, "-o", "/dev/null", "--force"], "no regular file"),
        (["evaluate", QUICKSTART], "Missing option '--rank-map'"),
    ],
)
def test_wrong_usage(run, arguments, message, tmp_path):
    """Wrong options and outputs that must not be written: exit 2, before any work, and nothing is written."""
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_another_kind_of_file_is_kept(run, tmp_path):
    """A file that is no rank map survives, unless --force is given."""
    (tmp_path / "notes.json").write_text("{}")
    code, _, err = run("solve", QUICKSTART, "-o", "notes.json")
    assert code == 2
    assert "--force" in err
    assert (tmp_path / "notes.json").read_text() == "{}"
    assert run("solve", QUICKSTART, "-o", "notes.json", "--force", "--quiet")[0] == 0
    assert RankMap.load(tmp_path / "notes.json").world_size == 16


# invalid input: exit 3; infeasible: exit 4; limit: exit 5


@pytest.mark.parametrize("command", ["solve", "check"])
def test_invalid_scenario(run, tmp_path, command):
    """Each mistake with file:line:column, a caret and a hint; nothing is written, an earlier map stays."""
    run("solve", QUICKSTART, "--quiet")
    before = (tmp_path / "rank_map.json").read_bytes()
    (tmp_path / "bad.yaml").write_text(
        Path(QUICKSTART).read_text().replace("tp: 2", "tp: 2\n  pt: 3").replace("450 GB/s", "450")
    )
    code, out, err = run(command, "bad.yaml")
    assert (code, out) == (3, "")
    assert err.count("bad.yaml:") == 2
    assert err.count("^") == 2
    assert "2 mistakes" in err
    assert "Traceback" not in err
    assert (tmp_path / "rank_map.json").read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"\x00\x01", b"a: ]", b"\xff", b"- 1", b"version: 9"])
def test_hostile_files(run, tmp_path, content):
    """Files that are no scenario: exit 3, one clear error."""
    (tmp_path / "bad.yaml").write_bytes(content)
    code, _, err = run("check", "bad.yaml")
    assert code == 3
    assert "bad.yaml:1:" in err
    assert "Traceback" not in err


def test_missing_file(run):
    """A file that isn't there: exit 3."""
    code, _, err = run("check", "none.yaml")
    assert code == 3
    assert "can't read 'none.yaml'" in err


def test_infeasible(run, tmp_path):
    """A constraint that can't be met: exit 4, with its name, its place and the domain."""
    text = Path(QUICKSTART).read_text() + "\nconstraints:\n  together: {dp: nvlink}\n"
    (tmp_path / "tight.yaml").write_text(
        text.replace("dp: 4", "dp: 4").replace("tp: 2", "tp: 1").replace("dp: 4", "dp: 16").replace("pp: 2", "pp: 1")
    )
    for command in ("solve", "check"):
        code, _, err = run(command, "tight.yaml")
        assert code == 4
        assert "together: a dp group has 16 GPUs; the largest nvlink domain, gpu1, has 8 usable" in err
        assert "tight.yaml:" in err
    assert not (tmp_path / "rank_map.json").exists()


def test_limit_reached(run, tmp_path, monkeypatch):
    """No map within the limit: exit 5, and nothing is written; after Ctrl-C it is 130."""
    from placer import api, interrupt
    from placer.errors import LimitReachedError

    def fail(*_, **__):
        raise LimitReachedError("no placement was found in 1 s", hint="give a longer --time-limit")

    monkeypatch.setattr(api, "solve", fail)
    code, _, err = run("solve", QUICKSTART)
    assert code == 5
    assert "no placement was found" in err
    monkeypatch.setattr(interrupt.StopRequest, "is_made", lambda _: True)
    assert run("solve", QUICKSTART)[0] == 130
    assert list(tmp_path.iterdir()) == []


# bugs and streams


def test_bug_is_one_line_without_a_traceback(run, monkeypatch):
    """An unforeseen error is one line and how to report it; the traceback comes with PLACER_DEBUG=1."""
    from placer import api

    def fail(*_, **__):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(api, "solve", fail)
    code, _, err = run("solve", QUICKSTART, "--quiet")
    assert code == 1
    assert "internal error: ZeroDivisionError: oops" in err
    assert "PLACER_DEBUG=1" in err
    assert "Traceback" not in err
    monkeypatch.setenv("PLACER_DEBUG", "1")
    assert "Traceback" in run("solve", QUICKSTART, "--quiet")[2]


def test_keyboard_interrupt_while_reading(run, monkeypatch):
    """Ctrl-C where there is nothing to keep: exit 130, no traceback."""
    from placer import formulate

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(formulate, "read_job", interrupted)
    code, _, err = run("check", QUICKSTART)
    assert (code, err.strip()) == (130, "interrupted")


def test_broken_pipe_is_quiet():
    """A reader that stops reading isn't an error."""
    reader, writer = os.pipe()
    os.close(reader)
    with start("check", QUICKSTART, stdout=writer) as process:
        _, err = process.communicate(timeout=60)
    os.close(writer)
    assert (process.returncode, err) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_on_stdout():
    """stdout that can't take the result: one line, exit 2."""
    with open("/dev/full", "w") as full, start("check", QUICKSTART, stdout=full) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "can't write to stdout" in err
    assert "Traceback" not in err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_on_stdout_of_help():
    """What the option parser prints by itself is no exception."""
    with open("/dev/full", "w") as full, start("--help", stdout=full) as process:
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (2, "error: can't write to stdout: No space left on device\n")


@pytest.mark.parametrize("stderr", ["full", "unread"])
def test_what_nobody_can_hear_stops_no_work(tmp_path, stderr):
    """Progress that can't be shown costs neither the map nor the exit code; nor do errors that can't."""
    reader, unread = os.pipe()
    os.close(reader)
    with open("/dev/full" if os.path.exists("/dev/full") else os.devnull, "w") as full:
        where = {"full": full, "unread": unread}[stderr]
        output = tmp_path / "map.json"
        with start("solve", QUICKSTART, "--time-limit", "5", "-o", output, stderr=where) as process:
            process.communicate(timeout=60)
        assert process.returncode == 0
        assert RankMap.load(output).world_size == 16
        with start("check", tmp_path / "none.yaml", stderr=where) as process:
            process.communicate(timeout=60)
        assert process.returncode == 3
    os.close(unread)


def test_interrupt_while_starting():
    """Ctrl-C while the command line is still being imported: exit 130, no traceback."""
    code = """
import _thread, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "click":
            _thread.interrupt_main()
sys.meta_path.insert(0, Interrupting())
from placer.__main__ import run
sys.exit(run())
"""
    environment = os.environ | {"PYTHONPATH": str(SCENARIOS.parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (130, "")


def test_closed_streams():
    """Closed streams are no crash."""
    command = [
        sys.executable,
        "-c",
        "import sys; sys.stdout = sys.stderr = None; from placer.cli import main; sys.exit(main(sys.argv[1:]))",
    ]
    environment = os.environ | {"PYTHONPATH": str(SCENARIOS.parent)}
    for arguments, code in ((["check", QUICKSTART], 0), (["check", "none.yaml"], 3)):
        assert subprocess.run([*command, *arguments], check=False, env=environment).returncode == code


class Terminal:
    """A stream that says it is a terminal."""

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_live_progress_on_a_terminal_only():
    """A terminal gets one line that is rewritten and cleared; its width covers the line before."""
    from placer.solver import Progress

    terminal = Terminal()
    line = cli._ProgressLine(terminal, is_shown=True)
    line.show(Progress("search", 1.0, 2e12, 1e12))
    line.show(Progress("b", 2.0, None, None))
    line.end()
    parts = terminal.text.split("\r")
    assert parts[1] == "   1.0 s  search  best 2 TB  bound 1 TB  gap 50.00 %"
    assert parts[2].rstrip() == "   2.0 s  b"
    assert len(parts[2]) == len(parts[1])
    assert "\n" not in terminal.text


def test_progress_off_a_terminal_is_sparse(capsys):
    """Elsewhere a line per phase and one every few seconds is enough."""
    from placer.solver import Progress

    line = cli._ProgressLine(sys.stderr, is_shown=True)
    for k in range(100):
        line.show(Progress("search", 0.1 * k, 1.0, 0.5))
    line.end()
    assert capsys.readouterr().err.count("search") == 2


def test_terminal_gets_rich_tables(monkeypatch):
    """On a terminal tables come from rich; NO_COLOR is heeded."""
    from placer.report.text import Table, write_report

    blocks = ["host[0] is a name", Table(("family", "bytes"), (("tp", "1 TB"),))]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    write_report(blocks, terminal)
    assert "host[0] is a name" in terminal.text
    assert "1 TB" in terminal.text
    assert "\x1b[3" not in terminal.text


# Ctrl-C


def read_until(process, word):
    seen = ""
    for line in process.stderr:
        seen += line
        if word in line:
            return seen
    raise AssertionError(f"{word!r} never came: {seen}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_solve_writes_its_best_map(tmp_path, number):
    """The first Ctrl-C (or SIGTERM) ends the solve soon, with a valid map, status interrupted and exit 130."""
    with start("solve", SLOW, "-o", tmp_path / "m.json", "--json", "--time-limit", "100") as process:
        read_until(process, "best")
        time.sleep(0.5)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "stopping" in err
    found = json.loads(out)
    assert found["status"] == "interrupted"
    assert found["runtime_s"] < 60
    assert RankMap.load(tmp_path / "m.json").to_dict() == found["rank_map"]


def test_second_signal_ends_at_once(tmp_path):
    """The second Ctrl-C ends the program even if the main thread never looks, and touches no file."""
    code = (
        "import time\n"
        "from placer.interrupt import StopRequest\n"
        "with StopRequest(lambda: print('asked', flush=True)) as stop:\n"
        "    print('ready', stop.is_made(), flush=True)\n"
        "    while True: time.sleep(0.05)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(SCENARIOS.parent)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout.readline() == "ready False\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 130


def test_signal_ends_what_has_nothing_to_keep(tmp_path):
    """evaluate has no file to write: the first Ctrl-C ends it, exit 130."""
    done = start("solve", SLOW, "-o", tmp_path / "m.json", "--target-gap", "0.9", "--quiet")
    assert done.wait(timeout=60) == 0
    done.communicate()
    code = (
        "import sys, os, signal\n"
        "from placer import api, cli\n"
        "def wait(*_, **__):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    signal.sigwait([signal.SIGUSR1])\n"
        "api.evaluate = wait\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(SCENARIOS.parent)}
    command = [sys.executable, "-c", code, "evaluate", SLOW, "--rank-map", str(tmp_path / "m.json")]
    assert subprocess.run(command, check=False, env=environment, timeout=60).returncode == 130


def test_ignored_signals_stay_ignored():
    """Under nohup, or in a shell's background, SIGINT isn't for us."""
    from placer.interrupt import StopRequest

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopRequest(None) as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            assert not stop.is_made()
    finally:
        signal.signal(signal.SIGINT, before)
