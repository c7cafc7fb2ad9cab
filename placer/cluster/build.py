"""From a scenario's ``cluster`` section to a `Topology`: whatever way the pool is described.

Hidden here: which source of hosts is used, what is excluded, and how domains are numbered.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from placer.cluster.pool import IdArray, Pool
from placer.cluster.rows import read_rows
from placer.cluster.shape import read_shape
from placer.cluster.tiers import find_preset, name_tiers, resolve_tiers
from placer.cluster.topology import IntArray, Tier, Topology
from placer.errors import InvalidInputError, Issue, KeyName, did_you_mean
from placer.scenario.hostlist import parse_exclusion
from placer.scenario.schema import ClusterSpec

MAX_EXCLUDED = 1_000_000


def build_topology(cluster: ClusterSpec) -> Topology:
    """The usable GPUs of a cluster and their domains.

    Hosts keep the order in which they are listed (a shape's: the order of the tree). Raises `InvalidInputError` with
    every mistake; paths start at ``("cluster",)``.
    """
    topology, issues = survey_topology(cluster)
    if topology is None or issues:
        raise InvalidInputError(issues)
    return topology


def survey_topology(cluster: ClusterSpec) -> tuple[Topology | None, list[Issue]]:
    """What `build_topology` gives, with every mistake.

    A mistake in bandwidths or weights leaves a topology whose tiers have stand-ins for both: hosts and domains in it
    are right, and can be checked against the rest of a scenario.
    """
    tiers, issues = resolve_tiers(cluster)
    names = name_tiers(cluster)
    pool_issues = _check_source(cluster)
    pool: Pool | None = None
    if names and not pool_issues:
        if cluster.shape is not None:
            pool, pool_issues = read_shape(cluster.shape, names)
        else:
            preset = find_preset(cluster)
            preset_domain = preset.nvlink_domain if preset else 0
            pool, pool_issues = read_rows(cluster.hosts or (), names, preset_domain=preset_domain)
    if pool is None:
        return None, issues + pool_issues
    is_usable, exclusion_issues = _exclude(cluster.exclude, pool)
    pool_issues += exclusion_issues
    if not is_usable.any() and not exclusion_issues:
        message = "no usable GPU is left in the cluster: all are down or excluded"
        pool_issues.append(Issue(message, "remove hosts from `exclude` or `down`", ("cluster", "exclude")))
    if pool_issues:
        return None, issues + pool_issues
    tiers = tiers or tuple(
        Tier(name, bandwidth_Bps=1e9, latency_s=0.0, weight=float(t > 0)) for t, name in enumerate(names)
    )
    return _number_slots(cluster, tiers, pool, is_usable), issues


def _check_source(cluster: ClusterSpec) -> list[Issue]:
    given = [key for key in ("shape", "hosts", "topology") if getattr(cluster, key) is not None]
    if len(given) > 1:
        message = f"cluster has {' and '.join(f'`{key}`' for key in given)}: only one of them can list the hosts"
        return [Issue(message, "remove all but one", ("cluster", KeyName(given[1])))]
    if not given:
        hint = (
            'add `shape: {leaf: 4, host: 16, gpu: 8}`, say, or rows such as `hosts: [{hosts: "gpu[01-16]", gpus: 8}]`'
        )
        return [Issue("cluster has neither `shape` nor `hosts`", hint, ("cluster",))]
    if given == ["topology"]:
        message = "topology imports are not available in this version"
        return [Issue(message, "list the hosts under `hosts:`", ("cluster", KeyName("topology")))]
    return []


def _exclude(exclude: tuple[str, ...], pool: Pool) -> tuple[npt.NDArray[np.bool_], list[Issue]]:
    """Which slots stay usable."""
    is_usable = pool.is_usable.copy()
    issues: list[Issue] = []
    if not exclude:
        return is_usable, issues
    host2index = {name: h for h, name in enumerate(pool.hosts)}
    total = 0
    for k, text in enumerate(exclude):
        path = ("cluster", "exclude", k)
        unknown: list[str] = []
        for hostlist, gpu in parse_exclusion(text):
            total += hostlist.count
            if total > MAX_EXCLUDED:
                message = f"cluster.exclude names more than {MAX_EXCLUDED:,} hosts"
                return is_usable, [*issues, Issue(message, "check the ranges", path)]
            for name in hostlist.expand():
                h = host2index.get(name)
                if h is None:
                    unknown.append(name)
                elif gpu is None:
                    is_usable[pool.offsets[h] : pool.offsets[h + 1]] = False
                elif gpu < pool.offsets[h + 1] - pool.offsets[h]:
                    is_usable[pool.offsets[h] + gpu] = False
                else:
                    count = int(pool.offsets[h + 1] - pool.offsets[h])
                    message = f"GPU {gpu} is excluded, but host '{name}' has {count}: 0 to {count - 1}"
                    issues.append(Issue(message, "indices count physical GPUs from 0", path))
                    break
        if unknown:
            more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
            message = f"excluded host '{unknown[0]}'{more} isn't in the cluster"
            issues.append(Issue(message, did_you_mean(unknown[0], _similar(unknown[0], pool.hosts)), path))
    return is_usable, issues


def _similar(name: str, hosts: tuple[str, ...]) -> list[str]:
    """At most a few hundred hosts worth comparing with ``name``: a pool has thousands."""
    close = [host for host in hosts if host[:2] == name[:2] and abs(len(host) - len(name)) <= 2]
    ends = [host for host in close if host[-2:] == name[-2:]]
    return [*ends[:300], *close[:300]] or list(hosts[:300])


def _number_slots(
    cluster: ClusterSpec, tiers: tuple[Tier, ...], pool: Pool, is_usable: npt.NDArray[np.bool_]
) -> Topology:
    num_hosts = len(pool.hosts)
    slots = np.flatnonzero(is_usable)
    slot2host = np.repeat(np.arange(num_hosts, dtype=np.int64), np.diff(pool.offsets))[slots]
    slot2domain = np.zeros((len(tiers), len(slots)), np.int32)
    domain_names: list[tuple[str, ...]] = []
    for t, ids in enumerate(pool.domain_ids):
        slot2domain[t], distinct = _number_by_appearance(ids[slots])
        domain_names.append(pool.name_domains(t, distinct))
    domain_names.append((tiers[-1].name,))
    notes = list(pool.notes)
    preset = find_preset(cluster)
    largest = int(np.bincount(slot2domain[0]).max())
    if preset is not None and len(tiers) > 1 and largest > preset.nvlink_domain:
        notes.append(
            f"the largest {tiers[0].name} domain has {largest} GPUs; preset {preset.name} has {preset.nvlink_domain}"
        )
    return Topology(
        tiers=tiers,
        hosts=pool.hosts,
        domain_names=tuple(domain_names),
        slot2host=_freeze(slot2host.astype(np.int32)),
        slot2gpu=_freeze((slots - pool.offsets[slot2host]).astype(np.int32)),
        slot2domain=_freeze(slot2domain),
        notes=tuple(notes),
    )


def _number_by_appearance(ids: IdArray) -> tuple[IdArray, IdArray]:
    """``[7, 7, 2, 7]`` → ``[0, 0, 1, 0]`` and the ids in that order, ``[7, 2]``."""
    starts = np.flatnonzero(np.diff(ids, prepend=ids[0] - 1))
    runs = ids[starts]
    distinct, first, inverse = np.unique(runs, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return np.repeat(number[inverse], np.diff(starts, append=len(ids))), distinct[order]


def _freeze(array: IntArray) -> IntArray:
    array.setflags(write=False)
    return array
