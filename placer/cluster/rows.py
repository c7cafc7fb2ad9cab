"""A pool listed row by row: hostlists, and the name of their domain at each tier.

Hidden here: how domains that a row doesn't name are found, how domains narrower than a host are written, and every way
in which rows can contradict each other.

A tier may be missing on a row. Tier 0: every host is an NVLink domain of its own. Further out: another row that names
the parent of the same inner domain decides; else that inner domain (or the host) stands alone at the tier, as far from
everything else as the next tier out: hosts without topology data must neither vanish nor count as near. A tier called
``host`` is the host itself. A tier narrower than a host is a list of its GPUs' domains,
``nvlink: [[0, 1, 2, 3], [4, 5, 6, 7]]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from placer.cluster.pool import MAX_GPUS, IdArray, Pool
from placer.errors import Issue, KeyName, Path, did_you_mean
from placer.scenario.hostlist import Hostlist, compress_hostlist, parse_hostlist
from placer.scenario.schema import HostRow

PATH: Path = ("cluster", "hosts")


def read_rows(
    rows: Sequence[HostRow], tier_names: tuple[str, ...], *, preset_domain: int = 0
) -> tuple[Pool | None, list[Issue]]:
    """The pool of the host rows, or the mistakes in them.

    ``preset_domain``: GPUs of one tier-0 domain of the cluster's preset, 0 without a preset.
    """
    if not rows:
        return None, [Issue("cluster.hosts has no rows", 'add e.g. `- {hosts: "gpu[01-16]", gpus: 8}`', PATH)]
    hostlists = [parse_hostlist(row.hosts) for row in rows]
    too_many = _check_total(rows, hostlists)
    if too_many:
        return None, too_many
    issues = _check_keys(rows, tier_names)
    for r, row in enumerate(rows):
        if row.down:
            issues += _check_down(r, row)
        if not all(isinstance(domain, str) for domain in row.domains.values()):
            issues += _check_splits(r, row, tier_names)
    reading = _Reading(rows, hostlists, tier_names, preset_domain)
    issues += reading.check_duplicates()
    issues += reading.find_domains()
    return (None, issues) if issues else (reading.build(), [])


def _check_total(rows: Sequence[HostRow], hostlists: Sequence[Hostlist]) -> list[Issue]:
    total = 0
    for r, (row, hostlist) in enumerate(zip(rows, hostlists, strict=True)):
        total += row.gpus * hostlist.count
        if total > MAX_GPUS:
            message = f"cluster.hosts has {total:,} GPUs or more; at most {MAX_GPUS:,} are possible"
            return [Issue(message, "check the ranges of the hostlist and `gpus`", (*PATH, r, "hosts"))]
    return []


def _check_keys(rows: Sequence[HostRow], tier_names: tuple[str, ...]) -> list[Issue]:
    """Keys that are no tier: each once, however many rows repeat it."""
    allowed = set(tier_names) - {"host"}
    unknown: dict[str, list[int]] = {}
    for r, row in enumerate(rows):
        if not row.domains.keys() <= allowed:
            for key in row.domains.keys() - allowed:
                unknown.setdefault(key, []).append(r)
    issues: list[Issue] = []
    for key, places in sorted(unknown.items(), key=lambda item: item[1][0]):
        more = f" (and in {len(places) - 1} more rows)" if len(places) > 1 else ""
        if key == "host":
            hint = "drop it: the tier `host` is the host itself"
        else:
            hint = did_you_mean(key, [*sorted(allowed), "hosts", "gpus", "down"])
        message = f"unknown key '{key}' in cluster.hosts[{places[0]}]: no tier has that name{more}"
        issues.append(Issue(message, hint, (*PATH, places[0], KeyName(key))))
    return issues


def _check_down(r: int, row: HostRow) -> list[Issue]:
    return [
        Issue(
            f"GPU {gpu} is down, but the host has {row.gpus}: 0 to {row.gpus - 1}",
            "indices count physical GPUs from 0",
            (*PATH, r, "down", k),
        )
        for k, gpu in enumerate(row.down)
        if gpu >= row.gpus
    ]


def _check_splits(r: int, row: HostRow, tier_names: tuple[str, ...]) -> list[Issue]:
    """Lists of GPUs must part the host's GPUs, and no tier may be narrower than one inside it."""
    inner: tuple[tuple[int, ...], ...] | None = tuple((gpu,) for gpu in range(row.gpus))
    for name in tier_names[:-1]:
        parts = row.domains.get(name)
        if parts is None or isinstance(parts, str):
            inner = None
            continue
        path = (*PATH, r, name)
        example = "write e.g. [[0, 1, 2, 3], [4, 5, 6, 7]]"
        listed = sorted(gpu for part in parts for gpu in part)
        if listed != list(range(row.gpus)):
            return [Issue(f"the lists of '{name}' must hold each GPU from 0 to {row.gpus - 1} once", example, path)]
        gpu2part = {gpu: p for p, part in enumerate(parts) for gpu in part}
        if inner is None or any(len({gpu2part[gpu] for gpu in part}) > 1 for part in inner):
            message = f"a domain of '{name}' is narrower than the domain of the tier inside it"
            return [Issue(message, "list GPUs at the inner tier too, each list within one of this tier's", path)]
        inner = parts
    if not isinstance(row.domains.get(tier_names[-1], ""), str):
        message = f"'{tier_names[-1]}' is the whole cluster and can't be parted"
        return [Issue(message, "list GPUs at an inner tier", (*PATH, r, tier_names[-1]))]
    return []


@dataclass
class _Reading:
    """Rows on their way to a pool: one id per host and tier, then one per slot.

    Ids at a tier with K names: below K a named domain, K + i the domain that inner domain i has for itself (at tier 0:
    that host i has).
    """

    rows: Sequence[HostRow]
    hostlists: Sequence[Hostlist]
    tier_names: tuple[str, ...]
    preset_domain: int
    hosts: tuple[str, ...] = ()
    host2row: IdArray = field(default_factory=lambda: np.zeros(0, np.int64))
    names: list[list[str]] = field(default_factory=list)
    host_ids: list[IdArray] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.hosts = tuple(name for hostlist in self.hostlists for name in hostlist.expand())
        counts = [hostlist.count for hostlist in self.hostlists]
        self.host2row = np.repeat(np.arange(len(self.rows), dtype=np.int64), counts)

    def check_duplicates(self) -> list[Issue]:
        """Hosts that are listed twice: one issue for each pair of rows."""
        if len(set(self.hosts)) == len(self.hosts):
            return []
        first: dict[str, int] = {}
        clashes: dict[tuple[int, int], list[str]] = {}
        for name, r in zip(self.hosts, self.host2row.tolist(), strict=True):
            earlier = first.setdefault(name, r)
            if earlier != r:
                clashes.setdefault((earlier, r), []).append(name)
        for r, hostlist in enumerate(self.hostlists):
            own = hostlist.expand()
            if len(set(own)) != len(own):
                clashes[r, r] = sorted({name for name in own if own.count(name) > 1}) if len(own) < 1000 else [own[0]]
        issues: list[Issue] = []
        for (earlier, r), names in clashes.items():
            shown = _shorten(names)
            place = (
                "in this row"
                if earlier == r
                else f"here and in cluster.hosts[{earlier}] ('{self.rows[earlier].hosts}')"
            )
            issues.append(Issue(f"{shown} is listed twice: {place}", "list every host once", (*PATH, r, "hosts")))
        return issues

    def find_domains(self) -> list[Issue]:
        """Fill ``host_ids`` tier by tier, the root left out."""
        issues = self._check_root()
        for t, tier in enumerate(self.tier_names[:-1]):
            index: dict[str, int] = {}
            given = [row.domains.get(tier) for row in self.rows]
            row_ids = np.array(
                [index.setdefault(name, len(index)) if isinstance(name, str) else -1 for name in given], np.int64
            )
            ids = row_ids[self.host2row]
            self.names.append(list(index))
            num_names = len(index)
            if t == 0:
                self._note_own_domains(tier)
                ids = np.where(ids >= 0, ids, num_names + np.arange(len(ids)))
                self.host_ids.append(ids)
                continue
            inner = self.host_ids[-1]
            parent = np.full(int(inner.max()) + 1, -1, np.int64)
            named = np.flatnonzero(ids >= 0)
            parent[inner[named][::-1]] = ids[named][::-1]  # the first row that names it wins
            clashes = named[parent[inner[named]] != ids[named]]
            if len(clashes):
                issues += self._report_two_parents(t, clashes, ids)
            unnamed = np.flatnonzero(ids < 0)
            found = parent[inner[unnamed]]
            ids[unnamed] = np.where(found >= 0, found, num_names + inner[unnamed])
            alone = unnamed[found < 0]
            # where every host lacks it and the tier is the host itself or lists of GPUs, nothing is missing
            alone = alone[[given[r] is None for r in self.host2row[alone].tolist()]]
            if len(alone) and tier != "host":
                who = _shorten([self.hosts[h] for h in alone.tolist()])
                self.notes.append(
                    f"no {tier} is given for {who} ({len(alone)} of {len(self.hosts)} hosts): "
                    f"each {self.tier_names[t - 1]} domain there counts as alone in its {tier}"
                )
            self.host_ids.append(ids)
        return issues

    def _note_own_domains(self, tier: str) -> None:
        """Say which hosts count as a tier-0 domain of their own although others, or the preset's, span hosts."""
        given = [tier in row.domains for row in self.rows]
        own = [h for h, r in enumerate(self.host2row.tolist()) if not given[r]]
        largest = max((row.gpus for row in self.rows), default=0)
        if tier != "host" and own and (any(given) or self.preset_domain > largest):
            who = f"{_shorten([self.hosts[h] for h in own])} ({len(own)} of {len(self.hosts)} hosts)"
            self.notes.append(f"no {tier} is given for {who}: each counts as a {tier} domain of its own")

    def build(self) -> Pool:
        """The pool of sound rows."""
        row_gpus = np.array([row.gpus for row in self.rows], np.int64)
        host_gpus = row_gpus[self.host2row]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(host_gpus)])
        slot2host = np.repeat(np.arange(len(self.hosts)), host_gpus)
        row_starts = np.searchsorted(self.host2row, np.arange(len(self.rows) + 1))
        is_usable = np.ones(int(offsets[-1]), np.bool_)
        slot2part = [np.zeros(len(slot2host), np.int64) for _ in self.host_ids]
        for r, row in enumerate(self.rows):
            if not row.down and all(isinstance(domain, str) for domain in row.domains.values()):
                continue
            first_slots = offsets[row_starts[r] : row_starts[r + 1]]
            for gpu in row.down:
                is_usable[first_slots + gpu] = False
            for t, tier in enumerate(self.tier_names[:-1]):
                parts = row.domains.get(tier, "")
                if not isinstance(parts, str):
                    for p, part in enumerate(parts):
                        slot2part[t][first_slots[:, None] + np.array(part)] = p + 1
        return self._assemble(offsets, is_usable, slot2host, slot2part)

    def _assemble(
        self, offsets: IdArray, is_usable: npt.NDArray[np.bool_], slot2host: IdArray, slot2part: list[IdArray]
    ) -> Pool:
        # part 0: the whole host; an id of a slot is its host's id and its part
        strides = [int(parts.max()) + 1 for parts in slot2part]
        domain_ids = tuple(
            ids[slot2host] * stride + parts
            for ids, stride, parts in zip(self.host_ids, strides, slot2part, strict=True)
        )

        def name_domains(tier: int, ids: IdArray) -> tuple[str, ...]:
            used = set(self.names[tier])
            names: list[str] = []
            for number in ids.tolist():
                host_id, part = divmod(number, strides[tier])
                name = self._name(tier, host_id) + (f"/{self.tier_names[tier]}{part - 1}" if part else "")
                if host_id >= len(self.names[tier]):
                    while name in used:
                        name += " (alone)"
                    used.add(name)
                names.append(name)
            return tuple(names)

        return Pool(self.hosts, offsets, is_usable, domain_ids, name_domains, tuple(self.notes))

    def _name(self, tier: int, number: int) -> str:
        while tier >= 0:
            if number < len(self.names[tier]):
                return self.names[tier][number]
            number -= len(self.names[tier])
            tier -= 1
        return self.hosts[number]

    def _check_root(self) -> list[Issue]:
        root = self.tier_names[-1]
        first: tuple[int, str] | None = None
        for r, row in enumerate(self.rows):
            name = row.domains.get(root)
            if not isinstance(name, str):
                continue
            if first is None:
                first = (r, name)
            elif name != first[1]:
                message = (
                    f"'{root}' is the whole cluster, but it is called '{first[1]}' in cluster.hosts[{first[0]}] "
                    f"and '{name}' here"
                )
                return [Issue(message, "add an outer tier to `tiers`, or drop the key", (*PATH, r, root))]
        return []

    def _report_two_parents(self, t: int, clashes: IdArray, ids: IdArray) -> list[Issue]:
        inner_tier, tier = self.tier_names[t - 1], self.tier_names[t]
        inner = self.host_ids[t - 1]
        issues: list[Issue] = []
        for h in clashes[np.unique(inner[clashes], return_index=True)[1]].tolist():
            first = int(np.flatnonzero((inner == inner[h]) & (ids >= 0))[0])
            name, r = self._name(t - 1, int(inner[h])), int(self.host2row[h])
            one, other = self.names[t][int(ids[first])], self.names[t][int(ids[h])]
            message = (
                f"{inner_tier} '{name}' lies in {tier} '{one}' (cluster.hosts[{self.host2row[first]}]) "
                f"and in {tier} '{other}'"
            )
            hint = f"domain names are unique within a tier: call one of the two e.g. '{other}-{name}'"
            issues.append(Issue(message, hint, (*PATH, r, tier)))
        return issues


def _shorten(names: Sequence[str]) -> str:
    text = compress_hostlist(names[:1000])
    return text if len(text) <= 60 and len(names) <= 1000 else f"{names[0]} and {len(names) - 1} more"
