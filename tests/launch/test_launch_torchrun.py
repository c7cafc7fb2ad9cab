"""Real torchrun on simulated hosts: every rank is where the map says, and the numbers are those of any other order."""

import json
import sys
from pathlib import Path

import pytest
from launch_maps import CONTIGUOUS, GENERAL, MAPS, RESIDUE, UNEVEN, UNEVEN_GENERAL, make_map
from simulated_hosts import SimulatedHosts, why_unavailable

from placer.launch.export import export
from placer.launch.export.files import write_files

pytest.importorskip("torch", reason="torch isn't installed: pip install '.[launch-tests]'")
pytestmark = [
    pytest.mark.launch,
    pytest.mark.skipif(why_unavailable() is not None, reason=why_unavailable() or "hosts can be simulated"),
]

HERE = Path(__file__).parent
PROGRAM = HERE / "launched_program.py"
HOSTS = ["gpu-1", "gpu-2", "gpu-10"]
C10D_ORDER = ["gpu-1", "gpu-10", "gpu-2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
TIMEOUT = 150
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(HERE),
    "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/bin",
}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """The three hosts, for all tests of the module."""
    with SimulatedHosts(HOSTS, tmp_path_factory.mktemp("hosts")) as found:
        yield found


class Job:
    """One job after another in a folder."""

    def __init__(self, hosts, folder):
        self.hosts, self.folder = hosts, folder
        (folder / "results").mkdir()

    def run(self, commands, *, timeout=TIMEOUT, after=None, **environment):
        for file in (self.folder / "results").glob("*.json"):
            file.unlink()
        return self.hosts.run_on_all(
            commands, environment=ENVIRONMENT | environment, timeout=timeout, folder=self.folder, after=after
        )

    def static(self, rank_map, node_order, words, extra=()):
        """Commands of a static rendezvous with nodes in ``node_order``."""
        return {
            host: [
                *TORCHRUN, f"--nnodes={len(node_order)}", f"--nproc-per-node={len(rank_map.host_ranks(host).ranks)}",
                "--rdzv-backend=static", f"--node-rank={node_rank}", f"--master-addr={node_order[0]}",
                "--master-port=29500", *extra, *words,
            ]
            for node_rank, host in enumerate(node_order)
        }  # fmt: skip

    def c10d(self, rank_map, words, *, backend="c10d", extra=(), hosts=HOSTS, nnodes=None):
        """Commands of a dynamic rendezvous."""
        return {
            host: [
                *TORCHRUN, f"--nnodes={nnodes or len(hosts)}",
                f"--nproc-per-node={len(rank_map.host_ranks(host).ranks)}", f"--rdzv-backend={backend}",
                "--rdzv-id=job", f"--rdzv-endpoint={hosts[0]}:29400", *extra, *words,
            ]
            for host in hosts
        }  # fmt: skip

    def shim(self, rank_map, *program):
        """The words of the shim for a map."""
        rank_map.save(self.folder / "map.json", force=True)
        return ["-m", "placer.run", "--rank-map", "map.json", *program]

    def results(self):
        return {int(file.stem): json.loads(file.read_text()) for file in (self.folder / "results").glob("*.json")}


@pytest.fixture
def job(hosts, tmp_path):
    return Job(hosts, tmp_path)


@pytest.fixture(scope="module")
def numbers(hosts, tmp_path_factory):
    """What a run in torchrun's own order computes: weights of the training steps by world size."""
    job = Job(hosts, tmp_path_factory.mktemp("default"))
    outcome = job.run(job.c10d(RESIDUE, [PROGRAM, "results"]))
    assert_success(outcome)
    return {kind: {found[kind] for found in job.results().values()} for kind in ("ddp", "fsdp")}


def assert_success(outcome):
    for host, (code, output) in outcome.items():
        assert code == 0, f"{host} ended with {code}:\n{output[-4000:]}"


def assert_refused(outcome, text, exit_code=1):
    """No host is left waiting, and all of them say why."""
    for host, (code, output) in outcome.items():
        assert code == exit_code, f"{host} ended with {code}:\n{output[-4000:]}"
        assert text in output, output[-4000:]


def assert_mapped(results, rank_map, numbers=None):
    """Every rank ran on the map's host and GPU, and knew it; sums over groups are right."""
    size = rank_map.world_size
    assert sorted(results) == list(range(size))
    for rank, found in results.items():
        assert found["identities"] == [[r, *rank_map.place_of(r)] for r in range(size)]
        assert found["group_rank"] == rank_map.host_ranks(rank_map.place_of(rank)[0]).node_rank
        assert found["stride_sum"] == found["dp_sum"] == sum(range(rank % 2, size, 2))
        assert found["tp_sum"] == 2 * (rank - rank % 2) + 1
        if rank_map.layout_class != "general":
            assert found["local_rank"] == rank % len(rank_map.hosts[0].ranks)
        if numbers is not None:
            assert {kind: {found[kind]} for kind in numbers} == numbers


@pytest.mark.parametrize("name", MAPS)
def test_shim_under_c10d(job, name, numbers):
    """Every layout, uneven hosts too, under c10d with the agent's store: placed, and the same numbers as by default."""
    rank_map = MAPS[name]
    devices = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(3)))}
    outcome = job.run(job.c10d(rank_map, job.shim(rank_map, PROGRAM, "results")), **devices)
    assert_success(outcome)
    assert_mapped(job.results(), rank_map, numbers)
    assert "launcher's rank → rank of the map: 0→" in outcome["gpu-1"][1]


LIGHT = [PROGRAM, "results", "light"]


def test_script_under_static(job):
    """Static rendezvous with nodes in an order that isn't the map's: the shim alone sets every rank right."""
    assert_success(job.run(job.static(GENERAL, HOSTS, job.shim(GENERAL, *LIGHT))))
    assert_mapped(job.results(), GENERAL)


def test_module_under_static(job):
    """The same for a module."""
    assert_success(job.run(job.static(RESIDUE, HOSTS, job.shim(RESIDUE, "-m", "launched_program", "results", "light"))))
    assert_mapped(job.results(), RESIDUE)


def test_any_program_under_c10d(job):
    """The same for a program that isn't Python, by the shim's own command."""
    GENERAL.save(job.folder / "map.json")
    shim = ["--no-python", "placer-run", "--rank-map", "map.json", "--exec", "sh", "-c"]
    words = [*shim, f"exec {sys.executable} {PROGRAM} results light"]
    assert_success(job.run(job.c10d(GENERAL, words)))
    assert_mapped(job.results(), GENERAL)


def test_store_that_rank_0_serves(job):
    """Without a shared store the master moves to the map's rank 0, which is on another host than the launcher's."""
    outcome = job.run(job.c10d(GENERAL, job.shim(GENERAL, *LIGHT)), TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    assert_success(outcome)
    assert_mapped(job.results(), GENERAL)


def test_virtual_local_rank(job):
    """With one GPU visible to each process, the shim takes the GPU from there."""
    assert_success(job.run(job.c10d(RESIDUE, job.shim(RESIDUE, *LIGHT), extra=["--virtual-local-rank"])))
    results = job.results()
    assert sorted(results) == list(range(6))
    assert all(found["identities"] == [[r, *RESIDUE.place_of(r)] for r in range(6)] for found in results.values())


@pytest.mark.parametrize("name", ["contiguous", "uneven"])
def test_exported_script_without_a_shim(job, name):
    """Where ranks count up host by host the exported script needs node order and visible GPUs alone."""
    rank_map = {"contiguous": CONTIGUOUS, "uneven": UNEVEN}[name]
    write_files(export(rank_map, "torchrun").files, str(job.folder / "job"))
    assert_success(job.run({host: ["bash", "job/torchrun.sh", *LIGHT] for host in HOSTS}))
    assert_mapped(job.results(), rank_map)


def test_exported_script_with_the_shim(job):
    """Any other map is realised by the exported script too."""
    write_files(export(UNEVEN_GENERAL, "torchrun").files, str(job.folder / "job"))
    assert_success(job.run({host: ["bash", "job/torchrun.sh", *LIGHT] for host in HOSTS}))
    assert_mapped(job.results(), UNEVEN_GENERAL)


def test_checkpoint_moves_between_maps(job, numbers):
    """A checkpoint saved under one map loads under another, with the weights that were saved."""
    assert_success(job.run(job.c10d(RESIDUE, job.shim(RESIDUE, PROGRAM, "results", "save=checkpoint"))))
    assert_success(job.run(job.c10d(GENERAL, job.shim(GENERAL, PROGRAM, "results", "load=checkpoint"))))
    assert_mapped(job.results(), GENERAL, numbers)
    assert {found["loaded"] for found in job.results().values()} == numbers["fsdp"]


def test_restart_keeps_every_rank(job):
    """After a killed worker all processes start again, each with the rank it had."""
    words = job.shim(GENERAL, PROGRAM, "results", "light", "fail=2")
    commands = job.c10d(GENERAL, words, extra=["--max-restarts=2"])
    assert_success(job.run(commands, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"))
    assert (job.folder / "results" / "failed").read_text() == "gpu-2"
    assert_mapped(job.results(), GENERAL)


def test_elastic_shrink_is_refused_by_all(job):
    """When a host is lost the smaller job doesn't go on under a map of more hosts, nor does it hang."""
    words = job.shim(GENERAL, PROGRAM, "results", "light", "lose=1")  # rank 1 is on gpu-10
    extra = ["--max-restarts=1", "--rdzv-conf=last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"]
    outcome = job.run(job.c10d(GENERAL, words, extra=extra, nnodes="2:3"))
    del outcome["gpu-10"]
    assert_refused(outcome, "the job has 4 processes, the map 6 ranks")
    assert job.results() == {}


def test_map_of_other_hosts_is_refused_by_all(job):
    """No host is in the map: all stop at once, with the hosts that would be."""
    other = make_map({f"node{index}": {0: 2 * index, 1: 2 * index + 1} for index in range(3)})
    outcome = job.run(
        {host: [*command] for host, command in job.c10d(GENERAL, job.shim(other, *LIGHT)).items()}, timeout=60
    )
    assert_refused(outcome, "is no host of the map")


@pytest.mark.parametrize("shared", [True, False])
def test_one_other_host_stops_all(job, shared):
    """One of the hosts isn't in the map: the others, which are, stop with its reason instead of waiting for it."""
    other = make_map({"gpu-1": {0: 0, 1: 1}, "gpu-2": {0: 2, 1: 3}, "gpu-11": {0: 4, 1: 5}})
    commands = job.c10d(GENERAL, job.shim(other, *LIGHT))
    environment = {} if shared else {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    outcome = job.run(commands, timeout=60, **environment)
    assert_refused(outcome, "this machine (gpu-10, 10.9.0.3) is no host of the map")


def test_wrong_number_of_processes_on_one_host_stops_all(job):
    """The world has the right size, but the hosts' shares are swapped."""
    swapped = make_map({"gpu-2": {0: 0}, "gpu-10": {0: 1, 1: 2, 2: 3}, "gpu-1": {0: 4, 1: 5}})
    outcome = job.run(job.static(UNEVEN, HOSTS, job.shim(swapped, *LIGHT)), timeout=60)
    assert_refused(outcome, "processes, the map gives it")


def test_verify_passes_and_says_so(job):
    """--verify checks the job behind init_process_group; the program itself and its name stay as they were."""
    words = ["-m", "placer.run", "--verify", "--rank-map", "map.json", PROGRAM, "results", "light", "verify=map.json"]
    GENERAL.save(job.folder / "map.json")
    outcome = job.run(job.c10d(GENERAL, words))
    assert_success(outcome)
    assert_mapped(job.results(), GENERAL)
    assert {found["name"] for found in job.results().values()} == {"__main__"}
    assert sum(output.count("placer: verified") for _, output in outcome.values()) == 1


def test_verify_finds_ranks_that_are_elsewhere(job):
    """Two hosts claim each other's names: every rank stops with the list, for a module too."""
    GENERAL.save(job.folder / "map.json")
    words = ["-m", "placer.run", "--verify", "--rank-map", "map.json", "-m", "launched_program", "results", "light"]
    lies = {"gpu-1": "gpu-2", "gpu-2": "gpu-1", "gpu-10": "gpu-10"}
    devices = {"CUDA_VISIBLE_DEVICES": "0,1"}
    commands = job.c10d(GENERAL, words)
    commands = {host: ["env", f"PLACER_HOST={lies[host]}", *command] for host, command in commands.items()}
    outcome = job.run(commands, **devices)
    assert_refused(outcome, "rank 0 runs on gpu-1 GPU 0, the map says gpu-2 GPU 0")
    assert job.results() == {}


def plug_in(job, rank_map, words, *, conf="", **options):
    """Commands with the rendezvous plug-in, every host's GPUs in the map's order."""
    rank_map.save(job.folder / "map.json", force=True)
    extra = [f"--rdzv-conf=rank_map=map.json{conf}", *options.pop("extra", [])]
    commands = job.c10d(rank_map, words, backend="placer", extra=extra, **options)
    devices = {host: ",".join(map(str, rank_map.local_gpus(host))) for host in commands}
    return {host: ["env", f"CUDA_VISIBLE_DEVICES={devices[host]}", *command] for host, command in commands.items()}


@pytest.mark.parametrize("shared", [True, False])
def test_plug_in(job, shared):
    """Node order comes from the map, without a shim: agents and workers have the map's numbers; torchrun logs them."""
    environment = {} if shared else {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    rank_map = CONTIGUOUS if shared else UNEVEN
    outcome = job.run(plug_in(job, rank_map, LIGHT), **environment, TORCHELASTIC_LOG_LEVEL="INFO", LOGLEVEL="INFO")
    assert_success(outcome)
    assert_mapped(job.results(), rank_map)
    for host, (_, output) in outcome.items():
        assert f"group_rank={rank_map.host_ranks(host).node_rank}" in output


def test_plug_in_restarts_in_place(job):
    """After a killed worker the nodes are numbered as before."""
    words = [PROGRAM, "results", "light", "fail=4"]
    commands = plug_in(job, CONTIGUOUS, words, extra=["--max-restarts=2"])
    assert_success(job.run(commands, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"))
    assert (job.folder / "results" / "failed").read_text() == "gpu-1"
    assert_mapped(job.results(), CONTIGUOUS)


def test_plug_in_refuses_fewer_hosts(job):
    """Two of three hosts are no job of the map: all agents end, with the host that is missing."""
    commands = plug_in(job, CONTIGUOUS, LIGHT, conf=",last_call_timeout=1", nnodes="2:3", hosts=["gpu-1", "gpu-2"])
    assert_refused(job.run(commands, timeout=60), "the job has 2 nodes, the map 3 hosts, without gpu-10", exit_code=3)


def test_groups_and_mesh_of_the_library(job):
    """With the map's ranks groups and mesh are plain; in torchrun's own order a permuted mesh is refused by all."""
    mesh = {"tp": 2, "cp": 1, "dp": 3, "pp": 1, "ep": 1, "etp": 2}
    rank_map = make_map(
        {entry.host: dict(zip(entry.gpus, entry.ranks, strict=True)) for entry in GENERAL.hosts}, **mesh
    )
    words = [*LIGHT, "mesh=map.json"]
    assert_success(job.run(job.c10d(rank_map, job.shim(rank_map, *words))))
    for rank, found in job.results().items():
        along_dp = sum(range(rank % 2, 6, 2))
        assert found["mesh"] == [2 * (rank - rank % 2) + 1, along_dp, along_dp]
    assert_success(job.run(job.c10d(rank_map, words)))
    refusals = {found["mesh"] for found in job.results().values()}
    assert len(refusals) == 1
    assert "a DeviceMesh of these ranks descends along" in refusals.pop()
