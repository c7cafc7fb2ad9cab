"""Real Open MPI and real Slurm on simulated hosts: their exports put every rank where the map says."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch_maps import GENERAL, UNEVEN_GENERAL
from simulated_hosts import SimulatedHosts, end, why_unavailable

from placer.launch.export import export
from placer.launch.export.files import write_files

pytest.importorskip("torch", reason="torch isn't installed: pip install '.[launch-tests]'")
pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(why_unavailable() is not None, reason=why_unavailable() or "hosts can be simulated"),
]

HERE = Path(__file__).parent
HOSTS = ["gpu-1", "gpu-2", "gpu-10"]
LIGHT = [str(HERE / "launched_program.py"), "results", "light"]
TIMEOUT = 150
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(HERE),
    "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
}
MAPS = {"general": GENERAL, "uneven": UNEVEN_GENERAL}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """The three hosts, for all tests of the module."""
    with SimulatedHosts(HOSTS, tmp_path_factory.mktemp("hosts")) as found:
        yield found


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "results").mkdir()
    return tmp_path


def assert_mapped(folder, rank_map):
    """Every rank ran where the map says, and its collectives worked."""
    results = {int(file.stem): json.loads(file.read_text()) for file in (folder / "results").glob("*.json")}
    assert sorted(results) == list(range(rank_map.world_size))
    for rank, found in results.items():
        assert found["identities"] == [[r, *rank_map.place_of(r)] for r in range(rank_map.world_size)]
        assert found["group_rank"] == rank_map.host_ranks(rank_map.place_of(rank)[0]).node_rank
        assert found["stride_sum"] == found["dp_sum"] == sum(range(rank % 2, rank_map.world_size, 2))


@pytest.fixture
def mpi(hosts, folder):
    """Run a command with Open MPI on gpu-1, which isn't even the first host of the maps: its end and output.

    ``command`` may use MPIRUN_ARGS: the options that Open MPI needs on simulated hosts.
    """
    if shutil.which("mpirun") is None:
        pytest.skip("Open MPI isn't installed: apt-get install openmpi-bin")
    reach = "".join(f"{host}) pid={hosts.pid(host)} ;;\n" for host in HOSTS)
    agent = folder / "agent.sh"
    agent.write_text(f'#!/bin/sh\ncase "$1" in\n{reach}esac\nshift\nexec nsenter -t $pid -n -u -m -- sh -c "$*"\n')
    agent.chmod(0o755)
    options = (
        f"--allow-run-as-root --mca plm_rsh_agent {agent} --mca oob_tcp_if_include eth0 --mca btl_tcp_if_include eth0"
    )
    exports = " ".join(f"-x {name}" for name in ENVIRONMENT)
    environment = ENVIRONMENT | {"MPIRUN_ARGS": f"{options} {exports} --wdir {folder}"}

    def run(*command):
        return hosts.run_on_all({"gpu-1": command}, environment=environment, timeout=TIMEOUT, folder=folder)["gpu-1"]

    return run


@pytest.mark.parametrize("name", MAPS)
def test_openmpi(mpi, folder, name):
    """mpirun.sh, with its sequential host file."""
    write_files(export(MAPS[name], "openmpi").files, str(folder))
    code, output = mpi("bash", "mpirun.sh", sys.executable, *LIGHT)
    assert code == 0, output
    assert_mapped(folder, MAPS[name])


@pytest.mark.parametrize("name", MAPS)
def test_openmpi_rankfile(mpi, folder, name, monkeypatch):
    """The rank file instead of it, in an mpirun of the user's own.

    Its slots are cores, and mpirun starts nothing where one is missing: hwloc reports eight on every host.
    """
    write_files(export(MAPS[name], "openmpi").files, str(folder))
    monkeypatch.setenv("HWLOC_SYNTHETIC", "core:8 pu:1")
    own = f'exec mpirun -np {MAPS[name].world_size} --rankfile rankfile $MPIRUN_ARGS bash worker.sh "$@"'
    code, output = mpi("bash", "-c", own, "bash", sys.executable, *LIGHT)
    assert code == 0, output
    assert_mapped(folder, MAPS[name])


@pytest.fixture(scope="module")
def slurm(hosts, tmp_path_factory):
    """A Slurm of the three hosts, controller on gpu-1: the variables with which its commands find it."""
    if shutil.which("slurmctld") is None or shutil.which("munged") is None:
        pytest.skip("Slurm isn't installed: apt-get install slurm-wlm munge")
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    key, munge_socket, conf = folder / "munge.key", folder / "munge.socket", folder / "slurm.conf"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    conf.write_text(_SLURM_CONF.format(folder=folder, hosts=",".join(HOSTS), munge=munge_socket))
    environment = os.environ | ENVIRONMENT | {"SLURM_CONF": str(conf)}
    names = ("log-file", "pid-file", "seed-file")
    munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge_socket}"]
    munge += [f"--{name}={folder / f'munge.{name}'}" for name in names]
    started = [hosts.start("gpu-1", munge, environment=environment, output=folder / "munged.out")]
    try:
        controller = ["slurmctld", "-D", "-i", "-f", conf]
        started.append(hosts.start("gpu-1", controller, environment=environment, output=folder / "slurmctld.out"))
        for host in HOSTS:
            (folder / f"spool.{host}").mkdir()
            daemon = ["slurmd", "-D", "-N", host, "-f", conf]
            started.append(hosts.start(host, daemon, environment=environment, output=folder / f"slurmd.{host}.out"))
        _wait_for_nodes(hosts, environment, folder)
        yield {"SLURM_CONF": str(conf)}
    finally:
        for process in started[::-1]:
            end(process)


def _wait_for_nodes(hosts, environment, folder):
    command = ["nsenter", "-t", str(hosts.pid("gpu-1")), "-n", "-u", "-m", "--", "sinfo", "-h", "-N", "-o", "%t"]
    found = ""
    for _ in range(60):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        found = done.stdout + done.stderr
        if done.stdout.split() == ["idle"] * len(HOSTS):
            return
        time.sleep(0.5)
    logs = "\n".join(f"{file.name}: {file.read_text()[-1500:]}" for file in folder.glob("*.out"))
    pytest.fail(f"Slurm's nodes aren't ready: {found}\n{logs}")


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("way", ["per_gpu", "per_node"])
def test_slurm(hosts, slurm, folder, name, way):
    """Both batch scripts: a task for every GPU, and a torchrun for every node."""
    write_files(export(MAPS[name], "slurm").files, str(folder))
    program = [sys.executable, *LIGHT] if way == "per_gpu" else LIGHT
    outcome = hosts.run_on_all(
        {"gpu-1": ["sbatch", "--wait", "--output=job.out", f"{way}.sbatch", *program]},
        environment=ENVIRONMENT | slurm,
        timeout=TIMEOUT,
        folder=folder,
    )
    output = folder / "job.out"
    assert outcome["gpu-1"][0] == 0, outcome["gpu-1"][1] + (output.read_text() if output.exists() else "")
    assert_mapped(folder, MAPS[name])


_SLURM_CONF = """\
ClusterName=test
SlurmctldHost=gpu-1
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge}
CredType=cred/munge
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName={hosts} CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE
"""
