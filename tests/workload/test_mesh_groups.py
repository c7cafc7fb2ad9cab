"""The rank grids against Megatron's documented groups, and the properties that every family of groups has."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.workload.mesh import Mesh
from placer.workload.traffic import FAMILY_AXES

# world 16, tp 2, cp 2, dp 2, pp 2, ep 4 (etp 1, edp 2), order tp-cp-ep-dp-pp
MEGATRON_16 = {
    ("tp",): [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]],
    ("cp",): [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]],
    ("dp_shard",): [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]],
    ("cp", "dp_shard"): [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]],
    ("ep",): [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]],
    ("edp",): [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]],
    ("etp",): [[rank] for rank in range(16)],
    ("dp_replicate",): [[rank] for rank in range(16)],
    ("pp",): [[rank, rank + 8] for rank in range(8)],
}


def sorted_groups(groups):
    return sorted(groups.tolist())


@pytest.mark.parametrize("axes", MEGATRON_16, ids="+".join)
def test_groups_are_megatrons_documented_ones(axes):
    """Every family of the world of 16 has exactly the groups that Megatron builds."""
    mesh = Mesh(tp=2, cp=2, dp=2, pp=2, ep=4)
    assert sorted_groups(mesh.groups(*axes)) == MEGATRON_16[axes]


def test_groups_of_the_order_with_pipeline_before_data():
    """tp-cp-ep-pp-dp puts pipeline stages next to each other and data-parallel ranks far apart."""
    mesh = Mesh(tp=2, dp=2, pp=2, order="tp-cp-ep-pp-dp")
    assert sorted_groups(mesh.groups("pp")) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert sorted_groups(mesh.groups("cp", "dp_shard")) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_expert_tensor_groups_are_neighbours():
    """With etp 2 and ep 2 the expert grid counts etp fastest, then ep, then edp."""
    mesh = Mesh(tp=2, dp=4, ep=2, etp=2)
    assert sorted_groups(mesh.groups("etp")) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert sorted_groups(mesh.groups("ep")) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert sorted_groups(mesh.groups("edp")) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_shard_groups_are_slices_of_the_data_parallel_group():
    """HSDP shards over neighbouring data-parallel ranks and replicates over distant ones."""
    mesh = Mesh(tp=2, dp=4, dp_shard=2)
    assert sorted_groups(mesh.groups("cp", "dp_shard")) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert sorted_groups(mesh.groups("dp_replicate")) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_an_order_without_ep_counts_it_after_etp():
    """tp-dp-pp-cp says nothing of ep: the expert grid puts it next to etp, as torchtitan does."""
    mesh = Mesh(tp=2, dp=4, ep=2, etp=2, order="tp-dp-pp-cp")
    assert list(mesh.axis_sizes("expert")) == ["etp", "ep", "edp", "pp"]
    assert sorted_groups(mesh.groups("ep")) == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_axes_of_different_grids_have_no_groups():
    """A group differs in axes of the dense or of the expert grid, never of both."""
    with pytest.raises(ValueError, match="not of one grid"):
        Mesh(tp=2, dp=2, ep=2).groups("tp", "ep")


@st.composite
def meshes(draw):
    tp, cp, pp = (draw(st.sampled_from([1, 2, 3, 4])) for _ in range(3))
    shard, replicate = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 2]))
    stage = tp * cp * shard * replicate
    etp = draw(st.sampled_from([k for k in (1, 2, 3, 4) if stage % k == 0]))
    ep = draw(st.sampled_from([k for k in (1, 2, 3, 4, 6, 8) if stage // etp % k == 0]))
    order = "-".join(draw(st.sampled_from(list(permutations(("tp", "cp", "ep", "dp", "pp"))))))
    mesh = Mesh(tp=tp, cp=cp, dp=shard * replicate, pp=pp, ep=ep, etp=etp, order=order, dp_shard=shard)
    return mesh if mesh.has_one_pipeline_grid else replace(mesh, pp=1)


@given(mesh=meshes(), family=st.sampled_from(list(FAMILY_AXES)))
def test_groups_partition_the_ranks_and_differ_only_in_their_axes(mesh, family):
    """Groups of a family hold every rank once, ascend, and agree on every other axis of their grid."""
    axes = FAMILY_AXES[family]
    groups = mesh.groups(*axes)
    assert np.array_equal(np.sort(groups.ravel()), np.arange(mesh.world_size))
    assert (np.diff(groups, axis=1) > 0).all()
    for axis in mesh.axis_sizes("expert" if family in ("ep", "etp", "edp") else "dense"):
        coordinates = mesh.coordinates[axis][groups]
        if axis not in axes:
            assert (coordinates == coordinates[:, :1]).all()
