"""Exports: what a launcher would do with the files is what the map says; what can't be expressed is refused."""

import json
import os
import shutil
import subprocess
import sys
import types

import pytest
import yaml
from launch_maps import CONTIGUOUS, GENERAL, MAPS, RESIDUE, UNEVEN, make_map

from placer import cli
from placer.errors import InvalidInputError, UsageError
from placer.launch.export import FORMATS, export
from placer.launch.export.files import write_files

ASCENDING = make_map({"gpu-2": {4: 0, 5: 1}, "gpu-10": {0: 2, 1: 3}})
PLAIN = make_map({"gpu-2": {0: 0, 1: 1}, "gpu-10": {0: 2}})
ODD_NAMES = {
    "domains": ["gpu-1", "gpu-1.a", "gpu-2.a", "gpu-2.b", "gpu-3.a-b.example"],
    "digits": ["001", "1e5", "10-0-0-1.rack_7", "3.14", "0x1f"],
    "addresses": ["10.0.0.1", "10.0.0.2", "fe80::1:2"],
    "cases": ["GPU-1", "Gpu-2.A", "gPU-2.b"],
    "words": ["esac", "if", "done", "host", "_"],
}
ODD_MAPS = {
    name: make_map({host: {0: k, 1: len(hosts) + k} for k, host in enumerate(hosts)})
    for name, hosts in ODD_NAMES.items()
} | {
    f"{name} contiguous": make_map({host: {0: 2 * k, 1: 2 * k + 1} for k, host in enumerate(hosts)})
    for name, hosts in ODD_NAMES.items()
}
SHOW = '#!/bin/sh\nprintf "%s\\n" "$@" > "$OUT.args"\nenv > "$OUT.env"\n'


@pytest.fixture
def start(tmp_path):
    """Run a script of an export with a stand-in for the launcher: (its arguments, its environment)."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("torchrun", "mpirun", "srun", "deepspeed", "program"):
        (tools / name).write_text(SHOW)
        (tools / name).chmod(0o755)

    def run(script, *arguments, **environment):
        given = {"PATH": f"{tools}:/usr/bin:/bin", "OUT": str(tmp_path / "out"), **environment}
        done = subprocess.run(
            ["bash", str(script), *arguments], env=given, capture_output=True, text=True, check=False, cwd=tmp_path
        )
        if done.returncode:
            return done.returncode, done.stderr
        lines = (tmp_path / "out.env").read_text().splitlines()
        return (tmp_path / "out.args").read_text().splitlines(), dict(line.split("=", 1) for line in lines)

    return run


def write(rank_map, to, folder):
    write_files(export(rank_map, to).files, str(folder))
    return folder


def options(arguments):
    return dict(argument[2:].split("=", 1) for argument in arguments if argument.startswith("--") and "=" in argument)


def content(file):
    return [line for line in file.read_text().splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("name", MAPS)
def test_torchrun(name, start, tmp_path):
    """Every host gets its node rank, its GPUs in the order of LOCAL_RANK, and the shim exactly where it is needed."""
    rank_map = MAPS[name]
    script = write(rank_map, "torchrun", tmp_path) / "torchrun.sh"
    next_rank = 0
    for entry in rank_map.hosts:
        arguments, environment = start(script, "train.py", "--lr", "1", PLACER_HOST=entry.host + ".any.domain")
        given = options(arguments)
        assert given["rdzv-backend"] == "static"
        assert (int(given["nnodes"]), int(given["node-rank"])) == (len(rank_map.hosts), entry.node_rank)
        assert (given["master-addr"], given["master-port"]) == (rank_map.hosts[0].host, "29500")
        gpus = [int(gpu) for gpu in environment["CUDA_VISIBLE_DEVICES"].split(",")]
        assert int(given["nproc-per-node"]) == len(gpus)
        assert arguments[-3:] == ["train.py", "--lr", "1"]
        assert ("placer.run" in arguments) == (name not in ("contiguous", "uneven"))
        if "placer.run" not in arguments:  # then torchrun's own numbers must be the map's
            assert [rank_map.rank_of(entry.host, gpu) for gpu in gpus] == list(range(next_rank, next_rank + len(gpus)))
        next_rank += len(gpus)
    assert (tmp_path / "rank_map.json").exists() == ("placer.run" in arguments)


def test_scripts_find_their_host_as_the_library_does(start, tmp_path):
    """Full names first, then short ones; an ambiguous or unknown name is refused with exit code 3."""
    rank_map = make_map({"gpu-1": {0: 0}, "gpu-1.a": {0: 1}, "gpu-2.a": {0: 2}, "gpu-3.a": {0: 3}, "gpu-3.b": {0: 4}})
    script = write(rank_map, "torchrun", tmp_path) / "torchrun.sh"
    expected = {"gpu-1": "gpu-1", "gpu-1.a": "gpu-1.a", "gpu-1.b": "gpu-1", "GPU-2": "gpu-2.a", "gpu-3.b": "gpu-3.b"}
    for name, host in expected.items():
        assert start(script, "x", PLACER_HOST=name)[1]["PLACER_HOST"] == host
        assert start(script, "x", SLURMD_NODENAME=name)[1]["PLACER_HOST"] == host
    assert start(script, "x", PLACER_HOST="gpu-3") == (3, "placer: host name gpu-3 is ambiguous\n")
    assert start(script, "x", PLACER_HOST="gpu-2.b") == (3, "placer: PLACER_HOST gpu-2.b is no host of the map\n")
    code, text = start(script, "x", SLURMD_NODENAME="gpu-9")
    assert code == 3
    assert "is no host of the map: name it as the map does, with PLACER_HOST" in text


@pytest.mark.parametrize("name", ODD_MAPS)
def test_scripts_find_hosts_of_odd_names(name, start, tmp_path):
    """Also where a name could be taken for a number, an address or a word of the shell."""
    script = write(ODD_MAPS[name], "torchrun", tmp_path) / "torchrun.sh"
    for entry in ODD_MAPS[name].hosts:
        arguments, environment = start(script, "x", PLACER_HOST=entry.host)
        assert environment["PLACER_HOST"] == entry.host
        assert options(arguments)["node-rank"] == str(entry.node_rank)


@pytest.mark.parametrize(("to", "variable"), [("slurm", "SLURM_PROCID"), ("openmpi", "OMPI_COMM_WORLD_RANK")])
@pytest.mark.parametrize("name", MAPS)
def test_workers_of_slurm_and_openmpi(name, to, variable, start, tmp_path):
    """Each rank on its host gets the variables that the library gives for its GPU; on another host it is refused."""
    rank_map = MAPS[name]
    script = write(rank_map, to, tmp_path) / "worker.sh"
    for rank in range(rank_map.world_size):
        host, gpu = rank_map.place_of(rank)
        arguments, environment = start(script, "program", "--lr", PLACER_HOST=host, **{variable: str(rank)})
        assert arguments == ["--lr"]
        wanted = rank_map.environment(host, gpu, master_port=29500)
        assert wanted.items() <= environment.items()
    stranger = next(entry.host for entry in rank_map.hosts if 0 not in entry.ranks)
    code, text = start(script, "program", PLACER_HOST=stranger, **{variable: "0"})
    assert code == 3
    assert f"{variable} 0 isn't on {stranger} in the map" in text


@pytest.mark.parametrize("name", MAPS)
def test_slurm_host_files(name, start, tmp_path):
    """Line k of the host files is the host of rank k, and of node k; the batch scripts ask for exactly these hosts."""
    rank_map = MAPS[name]
    folder = write(rank_map, "slurm", tmp_path)
    by_rank = content(folder / "gpus.hostfile")
    assert by_rank == [rank_map.place_of(rank)[0] for rank in range(rank_map.world_size)]
    assert content(folder / "nodes.hostfile") == [entry.host for entry in rank_map.hosts]
    for script, tasks, host_file in [("per_gpu", len(by_rank), "gpus"), ("per_node", len(rank_map.hosts), "nodes")]:
        arguments, environment = start(folder / f"{script}.sbatch", "x", SLURM_SUBMIT_DIR=str(folder))
        assert arguments[:2] == [f"--ntasks={tasks}", "--distribution=arbitrary"]
        assert environment["SLURM_HOSTFILE"] == str(folder / f"{host_file}.hostfile")


def test_slurm_node_script_notices_another_order(start, tmp_path):
    """A per-node task that Slurm numbered otherwise than the map is refused."""
    script = write(RESIDUE, "slurm", tmp_path) / "torchrun.sh"
    assert options(start(script, "x", PLACER_HOST="gpu-10", SLURM_PROCID="1")[0])["node-rank"] == "1"
    assert "SLURM_PROCID 0 isn't node rank 1 of gpu-10" in start(script, "x", PLACER_HOST="gpu-10", SLURM_PROCID="0")[1]


def test_openmpi_host_and_rank_file(tmp_path):
    """Both name the host of every rank; a rank's slot is its LOCAL_RANK."""
    folder = write(GENERAL, "openmpi", tmp_path)
    assert content(folder / "ranks.hostfile") == ["gpu-2", "gpu-10", "gpu-2", "gpu-1", "gpu-10", "gpu-1"]
    assert content(folder / "rankfile")[:3] == ["rank 0=gpu-2 slot=0", "rank 1=gpu-10 slot=0", "rank 2=gpu-2 slot=1"]


def test_deepspeed(start, tmp_path):
    """Hosts stand in node order, with slots up to the highest GPU in use, and the GPUs in use are included."""
    folder = write(ASCENDING, "deepspeed", tmp_path)
    assert content(folder / "hostfile") == ["gpu-2 slots=6", "gpu-10 slots=2"]
    arguments, _ = start(folder / "deepspeed.sh", "train.py")
    assert arguments[arguments.index("--include") + 1] == "gpu-2:4,5@gpu-10:0,1"


@pytest.mark.parametrize("name", MAPS)
def test_kubernetes(name, start, tmp_path):
    """The ConfigMap's entry script sets torchrun's variables for the node, and carries the map if the shim needs it."""
    rank_map = MAPS[name]
    folder = write(rank_map, "kubernetes", tmp_path)
    document = yaml.safe_load((folder / "configmap.yaml").read_text())
    (folder / "entry.sh").write_text(document["data"]["entry.sh"])
    for entry in rank_map.hosts:
        arguments, environment = start(folder / "entry.sh", "train.py", PLACER_HOST=entry.host, MASTER_ADDR="svc")
        assert environment["PET_NODE_RANK"] == str(entry.node_rank)
        assert environment["PET_NPROC_PER_NODE"] == str(len(entry.gpus))
        assert (environment["PET_MASTER_ADDR"], environment["PET_RDZV_BACKEND"]) == ("svc", "static")
        assert arguments[-1] == "train.py"
    if "placer.run" in arguments:
        assert json.loads(document["data"]["rank_map.json"]) == rank_map.to_dict()
    assert yaml.safe_load((folder / "pod.yaml").read_text())["spec"]["containers"][0]["command"][1].endswith("entry.sh")


def test_torchrun_reads_the_variables_of_kubernetes(start, tmp_path, monkeypatch):
    """torchrun's own parser takes them as its options."""
    torchrun = pytest.importorskip("torch.distributed.run")
    document = yaml.safe_load((write(CONTIGUOUS, "kubernetes", tmp_path) / "configmap.yaml").read_text())
    (tmp_path / "entry.sh").write_text(document["data"]["entry.sh"])
    _, environment = start(tmp_path / "entry.sh", "train.py", PLACER_HOST="gpu-10", MASTER_PORT="1234")
    for name in environment:
        if name.startswith("PET_"):
            monkeypatch.setenv(name, environment[name])
    found = torchrun.parse_args(["train.py"])
    assert (found.nnodes, found.nproc_per_node, int(found.node_rank)) == ("3", "2", 1)
    assert (found.rdzv_backend, found.master_addr, int(found.master_port)) == ("static", "gpu-2", 1234)


@pytest.mark.parametrize("name", MAPS)
def test_jax_module(name, tmp_path, monkeypatch):
    """Flat position r of the mesh is the device that runs rank r, whatever order JAX lists devices in."""
    rank_map = MAPS[name]
    text = (write(rank_map, "jax", tmp_path) / "placer_mesh.py").read_text()
    module = types.ModuleType("placer_mesh")
    exec(text, module.__dict__)
    device_type = types.SimpleNamespace
    devices = []
    for entry in rank_map.hosts:
        assert module.PROCESSES[entry.host] == entry.node_rank
        gpus = [int(gpu) for gpu in module.GPUS[entry.host].split(",")]
        devices += [
            device_type(process_index=entry.node_rank, id=10 * entry.node_rank + k, place=(entry.host, gpu))
            for k, gpu in enumerate(gpus)
        ]
    sharding = types.SimpleNamespace(Mesh=lambda grid, names: (grid, names))
    jax = types.SimpleNamespace(devices=lambda: devices[::-1], sharding=sharding)
    monkeypatch.setitem(sys.modules, "jax", jax)
    grid, names = module.make_mesh()
    assert [device.place for device in grid.ravel()] == [rank_map.place_of(r) for r in range(rank_map.world_size)]
    assert dict(zip(names, grid.shape, strict=True)) == {"pp": 1, "dp": rank_map.world_size, "cp": 1, "tp": 1}
    del devices[0]
    with pytest.raises(ValueError, match="the rank map has"):
        module.make_mesh()


def test_environment_table(tmp_path):
    """One line a GPU, with the variables that the library gives."""
    head, *rows = content(write(GENERAL, "env", tmp_path) / "environment.tsv")
    names = head.split("\t")
    for row in rows:
        found = dict(zip(names, row.split("\t"), strict=True))
        host, gpu = found.pop("host"), int(found.pop("gpu"))
        assert found == GENERAL.environment(host, gpu)
    assert len(rows) == 6


def test_hostfile(tmp_path):
    """Hosts in node order with their slots."""
    assert content(write(PLAIN, "hostfile", tmp_path) / "hostfile") == ["gpu-2 slots=2", "gpu-10 slots=1"]


@pytest.mark.parametrize("to", ["deepspeed", "hostfile"])
@pytest.mark.parametrize(
    ("rank_map", "reason"),
    [(RESIDUE, "residue map: .* host"), (GENERAL, "general map: .* host"), (CONTIGUOUS, "contiguous map: host gpu-2")],
)
def test_layouts_that_a_format_cannot_express(to, rank_map, reason):
    """They are refused by name, with the reason and the formats that can."""
    with pytest.raises(
        UsageError, match=f"{to} can't express this {reason}(?s:.*)can express the map: torchrun, slurm"
    ):
        export(rank_map, to)


def test_deepspeed_takes_the_rank_modulo_the_ranks_of_a_host():
    """Its older versions count instead, so that a map in which both differ is refused."""
    assert export(make_map({"a": {0: 0, 1: 1}, "b": {0: 2}, "c": {0: 3}}), "deepspeed")
    with pytest.raises(UsageError, match="host b runs 2 ranks from rank 1 on"):
        export(make_map({"a": {0: 0}, "b": {0: 1, 1: 2}}), "deepspeed")


def test_unequal_hosts_in_order_need_no_shim():
    """Unequal hosts make the class general, but consecutive ranks are what node order gives."""
    assert UNEVEN.layout_class == "general"
    assert [file.name for file in export(UNEVEN, "torchrun").files] == ["torchrun.sh"]


def test_unknown_format():
    """A misspelt format gets the closest one."""
    with pytest.raises(UsageError, match="did you mean 'torchrun'"):
        export(GENERAL, "torchrum")


@pytest.mark.parametrize("name", ["$(reboot)", "a b", "a;b", "-x", "a#b", "ä"])
@pytest.mark.parametrize("to", FORMATS)
def test_names_that_no_launcher_takes(name, to):
    """Host names are checked before they get into scripts and host files."""
    with pytest.raises(InvalidInputError, match="is no name for a launcher"):
        export(make_map({name: {0: 0}}), to)


SCRIPT_MAPS = MAPS | ODD_MAPS | {"ascending": ASCENDING}
SCRIPTS = [
    (to, name) for to in FORMATS for name, rank_map in SCRIPT_MAPS.items() if FORMATS[to].refuse(rank_map) is None
]


def scripts_of(rank_map, to, folder):
    """The shell scripts of an export, the one in a ConfigMap too."""
    write(rank_map, to, folder)
    if to == "kubernetes":
        text = yaml.safe_load((folder / "configmap.yaml").read_text())["data"]["entry.sh"]
        (folder / "entry.sh").write_text(text)
    return [str(file) for file in sorted(folder.iterdir()) if file.is_file() and file.read_text().startswith("#!")]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck isn't installed: apt-get install shellcheck")
@pytest.mark.parametrize(("to", "name"), SCRIPTS)
def test_scripts_pass_shellcheck(to, name, tmp_path):
    """No warning in any script, whatever the layout and the names of hosts."""
    scripts = scripts_of(SCRIPT_MAPS[name], to, tmp_path)
    assert bool(scripts) == (to not in ("jax", "env", "hostfile"))
    if scripts:
        done = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
        assert done.stdout + done.stderr == ""


# the command


@pytest.fixture
def run(capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    GENERAL.save("general.json")
    CONTIGUOUS.save("contiguous.json")

    def run_command(*arguments):
        return cli.main(["export", *arguments]), *capfd.readouterr()

    return run_command


def test_command_writes_a_folder_and_says_what_breaks(run, tmp_path):
    """Files go to the folder, scripts are executable; the notes on such a layout are printed."""
    code, out, err = run("general.json", "--to", "torchrun", "-o", "job")
    assert (code, out) == (0, "")
    assert os.access(tmp_path / "job" / "torchrun.sh", os.X_OK)
    assert "torchrun expresses: contiguous, residue, general" in err
    assert "note: older Megatron" in err
    assert "DTensor's random state" in err
    assert "note:" not in run("contiguous.json", "--to", "torchrun", "-o", "job")[2]


def test_command_prints_a_single_file(run):
    """Without a folder one file is the result on stdout, several are refused with their names."""
    code, out, _ = run("general.json", "--to", "env", "--quiet")
    assert code == 0
    assert out.splitlines()[1].startswith("host\tgpu\tRANK")
    code, _, err = run("general.json", "--to", "torchrun")
    assert code == 2
    assert "torchrun needs 2 files: torchrun.sh, rank_map.json" in err


def test_command_keeps_files_of_other_kinds(run, tmp_path):
    """A file that isn't an earlier export stays, and then nothing is written at all; --force replaces it."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "worker.sh").write_text("mine\n")
    code, _, err = run("general.json", "--to", "slurm", "-o", "job")
    assert code == 2
    assert "exists and is no file of an earlier export" in err
    assert [file.name for file in folder.iterdir()] == ["worker.sh"]
    assert run("general.json", "--to", "slurm", "-o", "job", "--force")[0] == 0
    assert run("contiguous.json", "--to", "slurm", "-o", "job")[0] == 0


def test_command_refuses(run):
    """A layout that can't be expressed is exit code 2, an invalid map 3."""
    assert run("general.json", "--to", "hostfile")[0] == 2
    assert run("nothing.json", "--to", "env")[0] == 3
