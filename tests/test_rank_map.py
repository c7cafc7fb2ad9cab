"""Rank maps: what is written is read again, and a reader refuses everything that breaks the format."""

import copy
import json
import os
import stat
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.errors import InvalidInputError, UsageError
from placer.rank_map import HostRanks, MapMesh, Provenance, RankMap

MAP = {
    "schema": "placer.rank_map/1",
    "world_size": 4,
    "mesh": {"framework": "megatron", "order": "tp-cp-ep-dp-pp", "tp": 2, "cp": 1, "dp": 2, "pp": 1, "ep": 1, "etp": 1},
    "layout_class": "contiguous",
    "hosts": [
        {"host": "gpu1", "node_rank": 0, "gpus": [0, 1], "ranks": [0, 1]},
        {"host": "gpu2", "node_rank": 1, "gpus": [3, 2], "ranks": [2, 3]},
    ],
    "master": {"host": "gpu1"},
    "spares": ["gpu3"],
    "provenance": {
        "placer": "0.1.0",
        "scenario": "s",
        "scenario_sha256": "ab",
        "seed": 0,
        "objective": 2.0,
        "lower_bound": 1.5,
    },
}


@st.composite
def rank_maps(draw):
    """Valid maps: any split of a permutation of the ranks over hosts."""
    tp, dp, pp = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    world_size = tp * dp * pp
    ranks = draw(st.permutations(range(world_size)))
    cuts = sorted(draw(st.sets(st.integers(1, world_size - 1), max_size=4))) if world_size > 1 else []
    parts = [ranks[a:b] for a, b in zip([0, *cuts], [*cuts, world_size], strict=True)]
    hosts = tuple(
        HostRanks(f"gpu{index}", index, tuple(draw(st.permutations(range(len(part))))), tuple(part))
        for index, part in enumerate(parts)
    )
    from placer.rank_layout import layout_class

    return RankMap(
        world_size=world_size,
        mesh=MapMesh("custom", "pp-tp-dp-cp", tp, 1, dp, pp, 1, 1),
        layout_class=layout_class(parts),
        hosts=hosts,
        master=next(entry.host for entry in hosts if 0 in entry.ranks),
        spares=("spare-ü",),
        provenance=Provenance(
            "0.1.0",
            draw(st.text(max_size=5).filter(lambda text: text.isprintable())),
            "",
            draw(st.none() | st.integers(0, 2**31)),
            draw(st.none() | st.floats(0, 1e30)),
            draw(st.none() | st.floats(0, 1e30)),
        ),
    )


@given(rank_maps())
def test_round_trip(tmp_path_factory, rank_map):
    """Reading a saved map yields an equal map, and writing that one the same bytes."""
    path = tmp_path_factory.mktemp("maps") / "map.json"
    rank_map.save(path)
    found = RankMap.load(path)
    assert found == rank_map
    assert found.to_json().encode() == path.read_bytes()
    assert json.loads(path.read_text("utf-8")) == rank_map.to_dict()


def load(tmp_path, data):
    path = tmp_path / "map.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data, indent=1), encoding="utf-8")
    return RankMap.load(path)


def refuse(tmp_path, data):
    with pytest.raises(InvalidInputError) as caught:
        load(tmp_path, data)
    return caught.value


def changed(*changes):
    data = copy.deepcopy(MAP)
    for *path, key, value in changes:
        owner = data
        for step in path:
            owner = owner[step]
        if value is ...:
            del owner[key]
        else:
            owner[key] = value
    return data


def test_text_has_one_line_per_host(tmp_path):
    """Two maps can be compared with diff: every host has its line, the file ends with a newline."""
    text = load(tmp_path, MAP).to_json()
    assert '    {"host": "gpu2", "node_rank": 1, "gpus": [3, 2], "ranks": [2, 3]}\n' in text
    assert text.endswith("}\n")
    assert "\r" not in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("schema", ...), "no rank map"),
        (("schema", "placer.rank_map/2"), "version '2'"),
        (("schema", 1), "no rank map"),
        (("worldsize", 4), "unknown key 'worldsize'"),
        (("mesh", "ring", 1), "unknown key 'ring'"),
        (("provenance", "by", "me"), "unknown key 'by'"),
        (("spares", ...), "has no 'spares'"),
        (("hosts", 0, "gpus", ...), "hosts[0] has no 'gpus'"),
        (("world_size", True), "world_size is true"),
        (("world_size", 4.0), "world_size is 4.0"),
        (("world_size", "4"), "world_size is '4'"),
        (("world_size", 8), "tp × cp × dp × pp = 4, but world_size is 8"),
        (("mesh", "tp", 0), "tp is 0"),
        (("mesh", "ep", 3), "etp × ep = 3 doesn't divide"),
        (("mesh", "order", "tp-dp"), "order 'tp-dp'"),
        (("mesh", "framework", "megatrom"), "framework is 'megatrom'"),
        (("mesh", []), "mesh is a list"),
        (("layout_class", "residue"), "layout_class is 'residue', but the ranks are contiguous"),
        (("layout_class", "neat"), "layout_class is 'neat'"),
        (("hosts", {}), "hosts is an object"),
        (("hosts", []), "hosts is empty"),
        (("hosts", 0, 7), "a host is an object"),
        (("hosts", 0, "host", ""), "hosts[0].host is ''"),
        (("hosts", 0, "host", "a\x1b[31m"), "'a\\x1b[31m'"),
        (("hosts", 1, "host", "gpu1"), "listed twice"),
        (("hosts", 1, "node_rank", 0), "node_rank is 0, but the host is number 1"),
        (("hosts", 0, "gpus", [0]), "1 gpus and 2 ranks"),
        (("hosts", 0, "gpus", [0, 0]), "GPU 0 of host 'gpu1' is listed twice"),
        (("hosts", 0, "gpus", [0, -1]), "gpus[1] is -1"),
        (("hosts", 0, "gpus", [0, True]), "gpus[1] is true"),
        (("hosts", 0, "ranks", [0, 4]), "rank 4 doesn't exist"),
        (("hosts", 0, "ranks", [0, 2]), "rank 2 is placed twice"),
        (("hosts", 0, "ranks", [0, 2]), "1 of 4 ranks run nowhere: 1"),
        (("master", "host", "gpu2"), "rank 0 runs on 'gpu1'"),
        (("master", "gpu1"), "master is 'gpu1': an object"),
        (("spares", ["gpu1"]), "spare host 'gpu1' runs ranks"),
        (("spares", ["x", "x"]), "spare host 'x' is listed twice"),
        (("provenance", "objective", float("nan")), "objective is nan"),
        (("provenance", "lower_bound", float("inf")), "lower_bound is inf"),
        (("provenance", "seed", 1.5), "seed is 1.5"),
        (("provenance", "scenario", None), "scenario is null"),
    ],
)
def test_reader_refuses(tmp_path, change, message):
    """Each broken rule is named, with the value, at its place in the file."""
    error = refuse(tmp_path, changed(change))
    assert any(message in issue.message for issue in error.issues), str(error)
    assert all(issue.location is not None for issue in error.issues)


def test_all_mistakes_are_reported_at_once(tmp_path):
    """Three mistakes give three issues, each at its own line and with a caret."""
    data = changed(("mesh", "tp", "2"), ("hosts", 0, "host", 5), ("provenance", "seed", "x"))
    error = refuse(tmp_path, data)
    assert [issue.path[0] for issue in error.issues] == ["mesh", "hosts", "provenance"]
    lines = (tmp_path / "map.json").read_text().splitlines()
    for issue, text in zip(error.issues, ('"tp": "2"', '"host": 5', '"seed": "x"'), strict=True):
        assert text in lines[issue.location.line - 1]
        assert lines[issue.location.line - 1][issue.location.column - 1 :].startswith(text.split(": ")[1])
        assert "^" in issue.render()


def test_duplicate_key_is_an_error_at_its_second_place(tmp_path):
    """A duplicate key is never ignored; the place is that of the later one."""
    text = json.dumps(MAP, indent=1).replace('"cp": 1,', '"cp": 1,\n  "cp": 1,')
    issue = refuse(tmp_path, text).issues[0]
    assert "duplicate key 'cp'" in issue.message
    assert text.splitlines()[issue.location.line - 2].strip() == '"cp": 1,'
    assert issue.location.text.strip() == '"cp": 1,'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\xff\xfe", "UTF-8"),
        (b"[1]", "a rank map is a JSON object"),
        (b'{"schema": ', "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"schema": ' + b"9" * 5000 + b"}", "a number can't be read"),
    ],
)
def test_files_that_are_no_json_map(tmp_path, content, message):
    """Whatever the file holds, the answer is an error that says what is wrong."""
    path = tmp_path / "map.json"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=message):
        RankMap.load(path)


def test_places_that_are_no_file(tmp_path):
    """A folder, a missing file, a pipe and a huge file are refused without being read."""
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "huge", "wb") as stream:
        stream.truncate(65 * 2**20)
    for name, message in ((".", "directory"), ("none", "can't read"), ("pipe", "no regular"), ("huge", "at most")):
        with pytest.raises(InvalidInputError, match=message):
            RankMap.load(tmp_path / name)


def test_false_world_size_costs_no_memory(tmp_path):
    """A world_size of a billion with four ranks is refused at once."""
    error = refuse(tmp_path, changed(("world_size", 10**9)))
    assert "999999996 of 1000000000 ranks run nowhere: 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, …" in str(error)


def test_many_mistakes_are_counted(tmp_path):
    """At most a hundred mistakes are shown, the rest is counted."""
    hosts = [{"host": f"g{k}", "node_rank": k, "gpus": [0], "ranks": [99]} for k in range(500)]
    error = refuse(tmp_path, changed(("hosts", hosts)))
    assert len(error.issues) == 101
    assert "more mistakes" in error.issues[-1].message


paths = st.sampled_from(
    [
        ("mesh",),
        ("mesh", "tp"),
        ("mesh", "order"),
        ("hosts",),
        ("hosts", 0),
        ("hosts", 1, "gpus"),
        ("hosts", 1, "ranks", 0),
        ("hosts", 0, "host"),
        ("master",),
        ("spares",),
        ("provenance", "seed"),
        ("provenance", "objective"),
        ("world_size",),
        ("layout_class",),
        ("schema",),
    ]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200)
@given(paths, values)
def test_hostile_values_are_refused_or_read(tmp_path_factory, path, value):
    """Any value anywhere gives a map or an `InvalidInputError`, never another exception."""
    try:
        found = load(tmp_path_factory.mktemp("maps"), changed((*path, value)))
    except InvalidInputError as error:
        str(error)  # it can be shown
    else:
        assert sorted(rank for entry in found.hosts for rank in entry.ranks) == list(range(found.world_size))


def test_contiguous_needs_the_node_order(tmp_path):
    """Blocks of consecutive ranks on hosts in another order aren't contiguous: node order alone can't realise them."""
    swapped = changed(("hosts", 0, "ranks", [2, 3]), ("hosts", 1, "ranks", [0, 1]), ("master", "host", "gpu2"))
    assert "but the ranks are residue" in str(refuse(tmp_path, swapped))
    swapped["layout_class"] = "residue"
    assert load(tmp_path, swapped).layout_class == "residue"


def test_rank_of(tmp_path):
    """A launcher finds its rank by host and physical GPU; a wrong name is explained."""
    rank_map = load(tmp_path, MAP)
    assert [rank_map.rank_of("gpu2", gpu) for gpu in (2, 3)] == [3, 2]
    with pytest.raises(InvalidInputError, match="did you mean 'gpu2'"):
        rank_map.rank_of("gpu2x", 0)
    with pytest.raises(InvalidInputError, match="GPUs in use: 2, 3"):
        rank_map.rank_of("gpu2", 0)


def test_loading_needs_no_heavy_library():
    """Launch processes load a map without numpy, pydantic, yaml, click or ortools."""
    heavy = "{'numpy', 'pydantic', 'yaml', 'click', 'ortools', 'rich'}"
    code = (
        f"import sys, placer.rank_map; placer = __import__('placer'); placer.RankMap; print({heavy} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# writing


@pytest.fixture
def rank_map(tmp_path):
    return load(tmp_path, MAP)


def test_save_replaces_an_earlier_map_and_keeps_its_mode(tmp_path, rank_map):
    """An earlier map, even one of another version, is replaced; its permissions stay."""
    path = tmp_path / "out.json"
    path.write_text('{"schema": "placer.rank_map/9"}')
    path.chmod(0o640)
    rank_map.save(path)
    assert RankMap.load(path) == rank_map
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_new_file_heeds_the_umask(tmp_path, rank_map):
    """A new map is as readable as any file that the user creates."""
    before = os.umask(0o027)
    try:
        rank_map.save(tmp_path / "new.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.json").stat().st_mode) == 0o640


@pytest.mark.parametrize("content", ["", "{}", "[1]", "text", '{"schema": "placer.result/1"}'])
def test_save_never_replaces_another_kind_of_file(tmp_path, rank_map, content):
    """Another file stays as it is unless --force is given."""
    path = tmp_path / "other"
    path.write_text(content)
    with pytest.raises(UsageError, match="no rank map"):
        rank_map.save(path)
    assert path.read_text() == content
    rank_map.save(path, force=True)
    assert RankMap.load(path) == rank_map


def test_save_refuses_what_is_no_file(tmp_path, rank_map):
    """Folders and pipes are never replaced, links only with force, and a missing folder is named."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder", "none/map.json", "folder/"):
        for force in (False, True):
            with pytest.raises(UsageError):
                rank_map.save(f"{tmp_path}/{name}", force=force)
    (tmp_path / "link").symlink_to(tmp_path / "map.json")
    with pytest.raises(UsageError, match="symbolic link"):
        rank_map.save(tmp_path / "link")
    rank_map.save(tmp_path / "link", force=True)
    assert not (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_impossible_names(tmp_path, rank_map, name):
    """A name that no file can have is a usage error, not a crash."""
    with pytest.raises(UsageError, match="can't write"):
        rank_map.save(f"{tmp_path}/{name}")


def test_failure_leaves_the_earlier_map_alone(tmp_path, rank_map, monkeypatch):
    """When the last step fails, the earlier map is untouched and no temporary file stays."""
    path = tmp_path / "out.json"
    rank_map.save(path)
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UsageError, match="No space left"):
        rank_map.save(path)
    assert path.read_bytes() == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["map.json", "out.json"]
