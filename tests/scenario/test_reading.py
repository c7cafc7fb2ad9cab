"""From YAML to a Scenario: the whole format, every mistake at once in our words, and what stays usable of the rest."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from placer.errors import InvalidInputError, Issue, PlacerError
from placer.formulate import work_out_draft
from placer.scenario import parse_scenario, read_draft, read_scenario
from placer.scenario.reading import Draft, draft_scenario
from placer.scenario.source import parse_document

FULL = """\
version: 1
name: fragmented-h100
cluster:
  preset: h100
  gpu: {memory: 80 GiB, flops: 989 TFLOP/s}
  tiers:
    - {name: nvlink, bandwidth: 450 GB/s, latency: 3.4 us}
    - {name: leaf, bandwidth: 400 Gbps, latency: 14 us}
    - {name: core, bandwidth: 7.1 GB/s, latency: 22 us, weight: 63}
  hosts:
    - {hosts: "gpu[0001-0016]", gpus: 8, leaf: l1}
    - {hosts: 1101, gpus: 8, down: [3], leaf: no}
    - {hosts: "tray[01-18]", gpus: 4, nvlink: rack7, leaf: 2024-01-01}
    - {hosts: old1, gpus: 4, nvlink: [[0, 1], [2, 3]], leaf: l1}
  exclude: ["gpu0003", "gpu0005:2"]
model:
  preset: deepseek-v3
  gated_mlp: true
  moe: {experts: 256, top_k: 8, shared_experts: 0}
parallelism: {tp: 8, pp: 16, dp: 128, ep: 4, framework: torchtitan, zero: 3, dp_shard: 64, sequence_parallel: false}
training: {sequence_length: 8192, global_batch: 2048, dtype: {dispatch: 1.03125}}
traffic: {bytes: {dp: 12.4 GB}, exposure: {dp: 0.3, tp: 100%}}
constraints:
  ranks_per_host: 4
  pin: [{rank: 0, host: gpu0001}]
  tolerance: 2%
  together: {ep: nvlink}
"""
SMALL = "version: 1\ncluster: {preset: h100, shape: {leaf: 2, host: 2, gpu: 8}}\nparallelism: {tp: 8}\n"


def refuse(text: str) -> list[str]:
    with pytest.raises(InvalidInputError) as caught:
        parse_scenario(text)
    assert "pydantic" not in str(caught.value)
    assert all(issue.location for issue in caught.value.issues)
    return [issue.message for issue in caught.value.issues]


def draft(text: str) -> Draft:
    return draft_scenario(parse_document(text.encode(), file="s.yaml"))


def test_the_whole_format_is_read() -> None:
    """Quantities become SI floats, names stay text, defaults are those of the format."""
    scenario = parse_scenario(FULL)
    cluster, parallelism = scenario.cluster, scenario.parallelism
    assert cluster.gpu is not None
    assert cluster.gpu.memory_bytes == 80 * 2**30
    assert cluster.tiers is not None
    assert [(t.name, t.bandwidth_Bps, t.latency_s, t.weight) for t in cluster.tiers] == [
        ("nvlink", 450e9, 3.4e-6, None),
        ("leaf", 50e9, 14e-6, None),
        ("core", 7.1e9, 22e-6, 63.0),
    ]
    assert cluster.hosts is not None
    assert [(row.hosts, row.gpus, row.down) for row in cluster.hosts][1] == ("1101", 8, (3,))
    assert [row.domains for row in cluster.hosts] == [
        {"leaf": "l1"},
        {"leaf": "no"},
        {"nvlink": "rack7", "leaf": "2024-01-01"},
        {"nvlink": ((0, 1), (2, 3)), "leaf": "l1"},
    ]
    assert (parallelism.tp, parallelism.cp, parallelism.dp_shard, parallelism.zero) == (8, 1, 64, 3)
    assert (parallelism.sequence_parallel, parallelism.cp_method) == (False, "all_gather")
    assert scenario.training is not None
    assert (scenario.training.micro_batch, scenario.training.dtype.dispatch) == (1, 1.03125)
    assert scenario.traffic.bytes_per_gpu == {"dp": 12.4e9}
    assert scenario.traffic.exposure == {"dp": 0.3, "tp": 1.0}
    assert (scenario.constraints.ranks_per_host, scenario.constraints.tolerance) == (4, 0.02)
    assert scenario.constraints.rank_layout == "prefer_contiguous"


def test_shape_keeps_the_order_of_its_keys() -> None:
    """The order of a shape's keys is the order of the tree."""
    shape = parse_scenario(SMALL).cluster.shape
    assert list((shape or {}).items()) == [("leaf", 2), ("host", 2), ("gpu", 8)]


def test_a_scenario_knows_its_file(tmp_path: Path) -> None:
    """Name, directory, digest and positions come from the file that it was read from."""
    path = tmp_path / "my-job.yaml"
    path.write_text(SMALL)
    scenario = read_scenario(path)
    assert scenario.name == "my-job"
    assert scenario.directory == tmp_path.resolve()
    assert len(scenario.sha256) == 64
    location = scenario.locate(("parallelism", "tp"))
    assert location is not None
    assert str(location) == f"{path}:3:19"


def test_empty_optional_sections_are_defaults() -> None:
    """A section all of whose lines are comments is as good as none."""
    scenario = parse_scenario(SMALL + "traffic:\nconstraints:\nmodel:\ntraining:\n")
    assert scenario.constraints.ranks_per_host == "uniform"
    assert scenario.model is None


@pytest.mark.parametrize("version", ["2", "1.0", "one", "[1]", "", "{}"])
def test_an_unknown_version_is_the_only_error(version: str) -> None:
    """Nothing else can be judged under another version."""
    messages = refuse(f"version: {version}\nfoo: bar\n")
    assert len(messages) == 1
    assert "version" in messages[0]


def test_a_missing_version_is_the_only_error() -> None:
    """Nor without one."""
    assert refuse("foo: bar\n") == ["the scenario has no `version`"]


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("tp: 8", "tp: 8.0", "parallelism.tp is 8.0: a whole number is wanted", "write `8`"),
        ("tp: 8", 'tp: "8"', "parallelism.tp is '8': a whole number is wanted, without quotes", "write `8`"),
        ("tp: 8", "tp: true", "parallelism.tp is true: a whole number is wanted", "`8`"),
        ("tp: 8", "tp: 1:30", "parallelism.tp is 1:30: a whole number is wanted", "90"),
        ("tp: 8", "tp: 1_000", "parallelism.tp is 1_000: a whole number is wanted", "write `1000`"),
        ("tp: 8", "tp: 010", "parallelism.tp is 010: a whole number is wanted", "write `10`"),
        ("tp: 8", "tp: 0x10", "parallelism.tp is 0x10: a whole number is wanted", "`8`"),
        ("tp: 8", "tp: ~", "parallelism.tp is empty: a whole number is wanted", "`8`"),
        ("tp: 8", "tp: .nan", "parallelism.tp is .nan: a whole number is wanted", "`8`"),
        ("tp: 8", "tp: 0", "parallelism.tp is 0: it must lie between 1 and 10,000,000", ""),
        ("tp: 8", "tp: 99999999999", "parallelism.tp is 99999999999: it must lie between 1 and 10,000,000", ""),
        ("zero: 3", "zero: 4", "parallelism.zero is 4: it must lie between 0 and 3", ""),
        (
            "450 GB/s",
            "450",
            "cluster.tiers[0].bandwidth is 450: a bare number has no unit",
            "`450 Gbps` (= 56.25 GB/s)",
        ),
        ("450 GB/s", ".inf", "cluster.tiers[0].bandwidth is .inf: a bandwidth is", "50 GB/s"),
        ("weight: 63", "weight: .nan", "cluster.tiers[2].weight is .nan: a finite number", ""),
        ("weight: 63", "weight: -1", "cluster.tiers[2].weight is -1: it must be at least 0", ""),
        ("80 GiB", "0 GiB", "cluster.gpu.memory is '0 GiB': a size must be above 0", ""),
        ("torchtitan", "megatrn", "parallelism.framework is 'megatrn': it must be one of", "did you mean 'megatron'?"),
        ("gated_mlp: true", "gated_mlp: yes", "model.gated_mlp is yes: `true` or `false` is wanted", "write `true`"),
        ("gated_mlp: true", 'gated_mlp: "true"', "model.gated_mlp is 'true'", "write `true`"),
        ("tolerance: 2%", "tolerance: 1", "constraints.tolerance is 1: a bare 1 could mean", "`1%`"),
        ("dp: 0.3", "dp: 1.3", "traffic.exposure.dp is 1.3: a share lies between", ""),
        ("bytes: {dp:", "bytes: {dpp:", "unknown key 'dpp' in traffic.bytes", "did you mean"),
        ("ranks_per_host: 4", "ranks_per_host: unifrm", "constraints.ranks_per_host is 'unifrm'", "'uniform'"),
        ("down: [3]", "down: 3", "cluster.hosts[1].down is 3: a list is wanted", "down: ["),
        ("leaf: no", "leaf: [l1]", "cluster.hosts[1].leaf is a list: domains within a host", "[[0"),
        ("leaf: no", "leaf: null", "cluster.hosts[1].leaf is empty", ""),
        ("gpu[0001-0016]", "gpu[0-999999999]", "cluster.hosts[0].hosts is 'gpu[0-999999999]': it names", ""),
        ("dispatch: 1.03125", "dispatch: 0", "training.dtype.dispatch is 0: it must be above 0", ""),
        ("global_batch: 2048, ", "", "training has no `global_batch`", "add `global_batch: 2048`"),
        ("preset: deepseek-v3", "hf_config: a\n  preset: b", "model has both `preset` and `hf_config`", "keep one"),
        ("training: {", "training: [], x: {", "not valid YAML", ""),
        ("name: fragmented-h100", 'name: "a\\nb"', "name is 'a\\nb': a name can't hold line breaks", ""),
        ("  preset: h100", "  preset: h100\n  zzz: 1", "unknown key 'zzz' in cluster", "known: preset"),
        ("weight: 63", "wieght: 63", "unknown key 'wieght' in cluster.tiers[2]", "did you mean 'weight'?"),
    ],
)
def test_one_mistake_is_one_error_in_our_words(old: str, new: str, message: str, hint: str) -> None:
    """The message names the key, the value and the rule; the hint says what to write."""
    assert old in FULL
    with pytest.raises(InvalidInputError) as caught:
        parse_scenario(FULL.replace(old, new, 1))
    assert len(caught.value.issues) == 1
    issue = caught.value.issues[0]
    assert message in issue.message
    assert hint in issue.hint
    assert issue.location is not None


def test_a_misspelt_required_key_is_one_mistake() -> None:
    """The key that is unknown and the key that is missing are the same mistake."""
    assert refuse(FULL.replace("host: gpu0001}", "hots: gpu0001}")) == ["unknown key 'hots' in constraints.pin[0]"]
    assert refuse(SMALL.replace("parallelism:", "paralelism:")) == ["unknown key 'paralelism' in the scenario"]


def test_all_independent_mistakes_are_reported_in_the_order_of_the_file() -> None:
    """An unknown key hides nothing that follows it."""
    text = FULL.replace("tp: 8,", "tp: eight, tpp: 1,").replace("450 GB/s", "450").replace("name: frag", "nme: frag")
    messages = refuse(text)
    assert [message.split(":")[0].split(" in ")[0] for message in messages] == [
        "unknown key 'nme'",
        "cluster.tiers[0].bandwidth is 450",
        "parallelism.tp is 'eight'",
        "unknown key 'tpp'",
    ]


def test_sound_sections_survive_the_mistakes_of_others() -> None:
    """Later checks run on what is sound; a harmless unknown key leaves its section sound, a misspelt one doesn't."""
    found = draft(
        FULL.replace("tp: 8,", "tp: eight,").replace("  moe:", "  zzz: 1\n  moe:").replace("  tolerance", "  tolerence")
    )
    assert found.scenario is None
    assert found.faulty == {"parallelism", "constraints"}
    assert found.parallelism is None
    assert found.constraints is not None
    assert found.constraints.tolerance == 0.01
    assert found.model is not None
    assert found.training is not None
    assert found.cluster is not None
    assert found.traffic is not None


def test_a_faulty_cluster_leaves_a_remnant_with_the_same_rows() -> None:
    """What is wrong is replaced, so that the other rows can be checked under their own indices."""
    found = draft(FULL.replace("450 GB/s", "450").replace("{hosts: 1101, gpus: 8", "{hosts: 1101, gpus: x"))
    assert found.faulty == {"cluster"}
    assert not found.knows_pool
    remnant = found.cluster
    assert remnant is not None
    assert remnant.hosts is not None
    assert [row.hosts for row in remnant.hosts] == ["gpu[0001-0016]", "1101", "tray[01-18]", "old1"]
    assert [row.gpus for row in remnant.hosts] == [8, 1, 4, 4]
    assert remnant.exclude == ()
    assert draft(FULL.replace("450 GB/s", "450")).knows_pool
    assert draft(FULL.replace("{name: leaf,", "{name: [],")).cluster is None


def test_lists_keep_what_stands_before_their_first_mistake() -> None:
    """Further mistakes there keep their indices; a setting whose neighbour is wrong is still known."""
    pins = "pin: [{rank: 0, host: a}, {rank: -1, host: b}, {rank: 2, host: c}]"
    text = FULL.replace("pin: [{rank: 0, host: gpu0001}]", pins).replace("{ep: nvlink}", "{ep: [], tp: leaf}")
    found = draft(text.replace('["gpu0003", "gpu0005:2"]', '["gpu0003", "gpu0005:x"]').replace("zero: 3", "zero: 9"))
    assert found.faulty == {"cluster", "parallelism", "constraints"}
    assert found.cluster is not None
    assert found.cluster.exclude == ("gpu0003",)
    assert found.constraints is not None
    assert [pin.host for pin in found.constraints.pin] == ["a"]
    assert found.constraints.together == {"tp": "leaf"}
    assert found.parallelism is not None
    assert found.parallelism.dp == 128


def test_finish_merges_later_issues(tmp_path: Path) -> None:
    """Issues of later checks get their places and stand in the order of the file; none at all gives the scenario."""
    path = tmp_path / "s.yaml"
    path.write_text(SMALL)
    found = read_draft(path)
    assert found.finish() is found.scenario
    with pytest.raises(InvalidInputError) as caught:
        found.finish([Issue("late", path=("parallelism", "tp")), Issue("early", path=("cluster", "preset"))])
    assert [str(issue.location) for issue in caught.value.issues] == [f"{path}:2:19", f"{path}:3:19"]


@pytest.mark.parametrize(
    "text",
    [
        SMALL + "".join(f"key{k}: 1\n" for k in range(5000)),
        SMALL.replace("{leaf: 2, host: 2, gpu: 8}", "{" + "".join(f"x{k}: y, " for k in range(5000)) + "}"),
        SMALL + "constraints: {pin: [" + "{rank: x, host: a}, " * 5000 + "]}\n",
        SMALL + "model: {" + "".join(f"layers{k}: 1, " for k in range(5000)) + "}\n",
    ],
    ids=["unknown keys", "values", "rows", "keys that resemble one"],
)
def test_mistakes_without_end_are_counted(text: str) -> None:
    """A file that is no scenario at all is answered at once: the first mistakes, and how many more there are."""
    with pytest.raises(InvalidInputError) as caught:
        draft(text).finish()
    assert len(caught.value.issues) == 100
    assert caught.value.num_left_out == 4900
    assert all(issue.location for issue in caught.value.issues)


JUNK = st.sampled_from(
    ["", "x", "[]", "{}", "[[1]]", "{a: 1}", "-1", "1e999", ".nan", "true", "null", "'8'", "99999999999999"]
)


def places_of(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values of nested data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [found for key, value in items for found in [(*path, key), *places_of(value, (*path, key))]]


RAW = yaml.load(FULL, yaml.BaseLoader)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(places_of(RAW)), JUNK), min_size=1, max_size=4, unique_by=lambda c: c[0]))
def test_no_value_anywhere_breaks_the_reading(changes: list[tuple[tuple[Any, ...], str]]) -> None:
    """Junk in place of any value gives a job or mistakes, each with a place and a hint, and each once."""
    data = copy.deepcopy(RAW)
    for path, junk in sorted(changes, key=lambda change: -len(change[0])):
        owner = data
        for key in path[:-1]:
            owner = owner[key]
        owner[path[-1]] = yaml.safe_load(junk) if junk else None
    # BaseLoader gave text for everything: unquoted again, it reads as it was written
    text = re.sub(r"'([0-9a-z]+)'", r"\1", yaml.safe_dump(data, sort_keys=False))
    found = draft(text)
    assert (found.scenario is None) == bool(found.issues)
    issues: tuple[Issue, ...] = ()
    try:
        work_out_draft(found)
    except PlacerError as error:
        issues = error.issues
    assert bool(issues) >= bool(found.issues)
    assert all(issue.location for issue in issues)
    assert all(issue.hint for issue in issues), issues
    assert len({(issue.message, issue.location) for issue in issues}) == len(issues)
