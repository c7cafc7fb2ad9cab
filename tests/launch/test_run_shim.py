"""``python -m placer.run``: light, transparent for the program, and clear when it refuses."""

import json
import os
import socket
import subprocess
import sys
import threading

import pytest
from launch_maps import RESIDUE

PROGRAM = (
    "import json, os, sys; json.dump([dict(os.environ), sys.argv, sys.flags.dont_write_bytecode, __name__], sys.stdout)"
)
TORCHRUN = {"RANK": "5", "ROLE_RANK": "5", "GROUP_RANK": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
TORCHRUN |= {"WORLD_SIZE": "6", "GROUP_WORLD_SIZE": "3", "TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_ADDR": ""}


@pytest.fixture
def run(tmp_path):
    """Run the shim as torchrun does, on host gpu-2 of the map."""
    RESIDUE.save(tmp_path / "map.json")
    (tmp_path / "show.py").write_text(PROGRAM)

    def run_shim(*arguments, flags=("-u", "-B"), **environment):
        command = [sys.executable, *flags, "-m", "placer.run", "--rank-map", "map.json", *arguments]
        given = os.environ | {"PYTHONPATH": os.getcwd(), "PLACER_HOST": "gpu-2"} | TORCHRUN | environment
        return subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, check=False)

    return run_shim


@pytest.mark.parametrize(
    ("arguments", "argv"),
    [(["show.py", "--lr", "1"], ["show.py", "--lr", "1"]), (["-m", "show", "-m", "x"], ["show.py", "-m", "x"])],
)
def test_script_and_module(run, tmp_path, arguments, argv):
    """The program runs as main, with its arguments, the interpreter's options and the rank of the map."""
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    environment, found, without_bytecode, name = json.loads(done.stdout)
    assert [os.path.basename(found[0]), *found[1:]] == argv
    assert (without_bytecode, name) == (1, "__main__")
    assert (environment["RANK"], environment["LOCAL_RANK"], environment["GROUP_RANK"]) == ("3", "1", "0")
    assert environment["PLACER_RANK_MAP"] == str(tmp_path / "map.json")


@pytest.mark.parametrize("option", ["--no-python", "--exec"])
def test_any_program(run, option):
    """--exec runs what isn't Python, and the exit code is the program's."""
    done = run(option, "sh", "-c", 'echo "$RANK of $WORLD_SIZE"; exit 7')
    assert (done.stdout, done.returncode) == ("3 of 6\n", 7)


def test_ranks_are_told_unless_quiet(run):
    """The first process of a host tells old and new ranks."""
    assert run("--exec", "true", LOCAL_RANK="0", RANK="4").stderr == (
        "placer: gpu-2: launcher's rank → rank of the map: 4→0 5→3\n"
    )
    assert run("--quiet", "--exec", "true", LOCAL_RANK="0", RANK="4").stderr == ""


def test_refusal_is_clear_and_reaches_the_agent(run, tmp_path):
    """Exit code 3, the reason on stderr and in torchrun's report; the program never runs."""
    report = tmp_path / "error.json"
    done = run("show.py", WORLD_SIZE="8", TORCHELASTIC_ERROR_FILE=str(report))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("placer: the job has 8 processes, the map 6 ranks\n")
    assert "the job has 8 processes" in json.loads(report.read_text())["message"]["message"]


def test_stranger_is_refused(run):
    """A host that the map hasn't stops, whatever source its name has."""
    assert "--host 'gpu-7' is no host of the map" in run("--host", "gpu-7", "show.py").stderr


def test_invalid_map_is_refused(run, tmp_path):
    """All of the map is checked by every process, with the place of the mistake."""
    text = (tmp_path / "map.json").read_text().replace('"ranks": [1, 4]', '"ranks": [1, 1]')
    (tmp_path / "map.json").write_text(text)
    done = run("show.py")
    assert done.returncode == 3
    assert "map.json:9:" in done.stderr
    assert "rank 1 is placed twice" in done.stderr


def test_mistake_of_one_host_is_told_to_the_others(run, tmp_path):
    """A host whose visible GPUs can't be read reports it, as any other mistake, before it stops."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "False"}
        answered = []

        def answer():
            connection, _ = server.accept()
            with connection:
                answered.append(json.loads(connection.makefile().readline()))
                connection.sendall(b'"all stop"\n')

        thread = threading.Thread(target=answer)
        thread.start()
        done = run("show.py", CUDA_VISIBLE_DEVICES="GPU-8f2,GPU-77a", **address)
        thread.join()
    assert done.returncode == 3
    assert "GPU indices are wanted" in done.stderr
    assert "GPU indices are wanted" in answered[0]["mistake"]
    assert f"said on {socket.gethostname()}" in answered[0]["mistake"]


def test_missing_program(run):
    """A program that can't be started is a wrong usage, without a traceback."""
    done = run("--exec", "./nothing")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "placer: can't run './nothing': No such file or directory"


def test_light():
    """The shim and what it imports stay clear of everything that is slow to load."""
    code = "import sys, placer, placer.run; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"torch", "numpy", "pydantic", "yaml", "ortools", "numba", "click", "rich", "jax"}
    assert not heavy & {name.split(".")[0] for name in loaded}
