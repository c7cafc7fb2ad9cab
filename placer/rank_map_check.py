"""The rules that a rank map file must keep, and what is said about one that breaks them: every mistake at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from placer.errors import Issue, KeyName, Path, did_you_mean
from placer.json_document import JsonObject
from placer.rank_layout import layout_class

SCHEMA = "placer.rank_map/1"
SCHEMA_PREFIX = "placer.rank_map/"
MAX_ISSUES = 100
MAX_NUMBER = 10**9
MAX_NAME_LENGTH = 253  # of a DNS name
FRAMEWORKS = ("megatron", "torchtitan", "deepspeed", "jax", "custom")
AXES = ("tp", "cp", "ep", "dp", "pp")
DEGREES = ("tp", "cp", "dp", "pp", "ep", "etp")

_KEYS = ("schema", "world_size", "mesh", "layout_class", "hosts", "master", "spares", "provenance")
_MESH_KEYS = ("framework", "order", *DEGREES)
_HOST_KEYS = ("host", "node_rank", "gpus", "ranks")
_PROVENANCE_KEYS = ("placer", "scenario", "scenario_sha256", "seed", "objective", "lower_bound")


def check_rank_map(data: Any) -> list[Issue]:
    """What is wrong with a parsed rank map file, at most `MAX_ISSUES` mistakes; empty when every rule is kept."""
    if not isinstance(data, JsonObject):
        return [Issue("a rank map is a JSON object", f'it begins {{"schema": "{SCHEMA}"')]
    issue = _check_schema(data)
    if issue is not None:
        return [issue]
    reader = _Reader()
    reader.check(data)
    issues = reader.issues[:MAX_ISSUES]
    left_out = len(reader.issues) - len(issues)
    return [*issues, Issue(f"{left_out} more mistakes")] if left_out else issues


def _check_schema(data: JsonObject) -> Issue | None:
    schema = data.get("schema")
    if schema == SCHEMA:
        return None
    if isinstance(schema, str) and schema.startswith(SCHEMA_PREFIX):
        message = f"version {schema.removeprefix(SCHEMA_PREFIX)!r} of the format isn't known"
        return Issue(message, f"this program reads {SCHEMA}", ("schema",))
    return Issue("this is no rank map", f'a rank map holds "schema": "{SCHEMA}"', ("schema",))


class _Host(NamedTuple):
    host: str
    node_rank: int
    gpus: list[int]
    ranks: list[int]


class _Reader:
    """Reads values and collects what is wrong with them. A value with a mistake is read as None."""

    def __init__(self) -> None:
        self.issues: list[Issue] = []

    def check(self, data: JsonObject) -> None:
        self._check_keys((), data, _KEYS)
        world_size = self._integer(data, (), "world_size", low=1)
        self._check_mesh(data, world_size)
        layout = self._choice(data, (), "layout_class", ("contiguous", "residue", "general"))
        hosts = self._read_hosts(data)
        master_object = self._object(data, (), "master", ("host",))
        master = None if master_object is None else self._name(master_object, ("master",), "host")
        spares = self._read_spares(data)
        self._check_provenance(data)
        if hosts is None:
            return
        self._check_hosts(hosts)
        if world_size is not None:
            self._check_ranks(hosts, world_size)
        self._check_spares(spares, {entry.host for entry in hosts})
        if master is not None:
            self._check_master(master, hosts)
        found = layout_class([entry.ranks for entry in hosts]) if not self.issues else layout
        if layout != found:
            self._report(
                f"layout_class is {layout!r}, but the ranks are {found}", ("layout_class",), f'write "{found}"'
            )

    def _check_mesh(self, data: JsonObject, world_size: int | None) -> None:
        mesh = self._object(data, (), "mesh", _MESH_KEYS)
        if mesh is None:
            return
        self._choice(mesh, ("mesh",), "framework", FRAMEWORKS)
        order = self._name(mesh, ("mesh",), "order")
        axes = (order or "").split("-")
        if order is not None and sorted(axes) not in (sorted(AXES), sorted(set(AXES) - {"ep"})):
            hint = "write the axes once each, fastest first, e.g. tp-cp-ep-dp-pp"
            self._report(f"order {order!r} doesn't name the axes {', '.join(AXES)} once each", ("mesh", "order"), hint)
        degrees = {name: self._integer(mesh, ("mesh",), name, low=1) for name in DEGREES}
        tp, cp, dp, pp, ep, etp = (degrees[name] for name in DEGREES)
        if tp is None or cp is None or dp is None or pp is None:
            return
        if world_size is not None and tp * cp * dp * pp != world_size:
            self._report(f"tp × cp × dp × pp = {tp * cp * dp * pp}, but world_size is {world_size}", ("mesh",))
        if ep is not None and etp is not None and tp * cp * dp % (ep * etp):
            self._report(f"etp × ep = {etp * ep} doesn't divide tp × cp × dp = {tp * cp * dp}", ("mesh", "ep"))

    def _read_hosts(self, data: JsonObject) -> list[_Host] | None:
        rows = self._list(data, (), "hosts")
        if rows is None:
            return None
        if not rows:
            self._report("hosts is empty", ("hosts",), "a rank map has at least one host")
        hosts: list[_Host] = []
        for index, row in enumerate(rows):
            path: Path = ("hosts", index)
            if len(self.issues) > MAX_ISSUES:
                break
            if not isinstance(row, JsonObject):
                self._report(
                    "a host is an object", path, 'write {"host": "gpu1", "node_rank": 0, "gpus": [0], "ranks": [0]}'
                )
                continue
            self._check_keys(path, row, _HOST_KEYS)
            host = self._name(row, path, "host")
            node_rank = self._integer(row, path, "node_rank")
            gpus, ranks = self._indices(row, path, "gpus"), self._indices(row, path, "ranks")
            if host is not None and node_rank is not None and gpus is not None and ranks is not None:
                hosts.append(_Host(host, node_rank, gpus, ranks))
        return hosts if len(hosts) == len(rows) else None

    def _read_spares(self, data: JsonObject) -> list[str | None]:
        spares = self._list(data, (), "spares") or []
        return [self._check_name(name, ("spares", index)) for index, name in enumerate(spares)]

    def _check_provenance(self, data: JsonObject) -> None:
        path = ("provenance",)
        source = self._object(data, (), "provenance", _PROVENANCE_KEYS)
        if source is None:
            return
        for name in ("placer", "scenario", "scenario_sha256"):
            if name in source and not isinstance(source[name], str):
                self._report(f"{name} is {_show(source[name])}: text is wanted", (*path, name))
        if source.get("seed") is not None:
            self._integer(source, path, "seed", low=-(2**63), high=2**63)
        for name in ("objective", "lower_bound"):
            self._check_figure(source, path, name)

    def _check_hosts(self, hosts: list[_Host]) -> None:
        first: dict[str, int] = {}
        for index, entry in enumerate(hosts):
            if entry.host in first:
                message = f"host {entry.host!r} is listed twice, first as hosts[{first[entry.host]}]"
                self._report(message, ("hosts", index, "host"), "put all its GPUs into one entry")
            first.setdefault(entry.host, index)
            if entry.node_rank != index:
                message = f"node_rank is {entry.node_rank}, but the host is number {index} in the list"
                self._report(message, ("hosts", index, "node_rank"), "list the hosts in node order, numbered from 0")
            if len(entry.gpus) != len(entry.ranks):
                message = f"host {entry.host!r} has {len(entry.gpus)} gpus and {len(entry.ranks)} ranks"
                self._report(message, ("hosts", index, "ranks"), "gpus[k] runs ranks[k]: give as many of both")
            if not entry.ranks:
                message = f"host {entry.host!r} runs no rank"
                self._report(message, ("hosts", index, "ranks"), "leave the host out, or list it under spares")
            for gpu in _repeated(entry.gpus) if len(set(entry.gpus)) < len(entry.gpus) else ():
                self._report(f"GPU {gpu} of host {entry.host!r} is listed twice", ("hosts", index, "gpus"))

    def _check_ranks(self, hosts: list[_Host], world_size: int) -> None:
        flat = [rank for entry in hosts for rank in entry.ranks]
        if len(flat) == len(set(flat)) == world_size == max(flat) + 1:
            return  # the usual case, fast: launch processes wait for it
        rank2host: dict[int, str] = {}
        for index, entry in enumerate(hosts):
            for k, rank in enumerate(entry.ranks):
                path = ("hosts", index, "ranks", k)
                if rank >= world_size:
                    self._report(f"rank {rank} doesn't exist: world_size is {world_size}", path)
                elif rank in rank2host:
                    self._report(f"rank {rank} is placed twice, first on host {rank2host[rank]!r}", path)
                else:
                    rank2host[rank] = entry.host
        num_missing = world_size - len(rank2host)
        if num_missing > 0:
            # a false world_size must cost no memory: look only as far as the ranks could reach
            missing = (rank for rank in range(len(rank2host) + 10) if rank not in rank2host and rank < world_size)
            shown = ", ".join(str(rank) for rank, _ in zip(missing, range(10), strict=False))
            message = f"{num_missing} of {world_size} ranks run nowhere: {shown}{', …' if num_missing > 10 else ''}"
            self._report(message, ("hosts",), "every rank from 0 to world_size − 1 stands once in the map")

    def _check_spares(self, spares: list[str | None], used: set[str]) -> None:
        for name in _repeated(name for name in spares if name is not None):
            self._report(f"spare host {name!r} is listed twice", ("spares",))
        for index, name in enumerate(spares):
            if name in used:
                self._report(f"spare host {name!r} runs ranks", ("spares", index), "a spare host runs none")

    def _check_master(self, master: str, hosts: list[_Host]) -> None:
        owner = next((entry.host for entry in hosts if 0 in entry.ranks), None)
        if owner is not None and owner != master:
            message = f"master is {master!r}, but rank 0 runs on {owner!r}"
            self._report(message, ("master", "host"), f'write "{owner}"')

    def _report(self, message: str, path: Path, hint: str = "") -> None:
        self.issues.append(Issue(message, hint, path))

    def _check_keys(self, path: Path, data: JsonObject, known: tuple[str, ...]) -> None:
        for key in data.duplicates:
            self._report(f"duplicate key {_show(key)}", (*path, KeyName(key)), "remove one of the two")
        for key in data:
            if key not in known:
                self._report(f"unknown key {_show(key)}", (*path, KeyName(key)), did_you_mean(key, known))
        for key in known:
            if key not in data:
                self._report(f"{_name_path(path)} has no {key!r}", path, f"add {key!r}")

    def _object(self, data: JsonObject, path: Path, key: str, known: tuple[str, ...]) -> JsonObject | None:
        if key not in data:
            return None  # reported as missing
        value = data[key]
        if not isinstance(value, JsonObject):
            self._report(f"{key} is {_show(value)}: an object is wanted", (*path, key))
            return None
        self._check_keys((*path, key), value, known)
        return value

    def _list(self, data: JsonObject, path: Path, key: str) -> list[Any] | None:
        value = data.get(key)
        if key in data and not isinstance(value, list):
            self._report(f"{key} is {_show(value)}: a list is wanted", (*path, key))
        return value if isinstance(value, list) else None

    def _integer(self, data: JsonObject, path: Path, key: str, *, low: int = 0, high: int = MAX_NUMBER) -> int | None:
        value: Any = data.get(key)
        if _is_integer(value) and low <= value <= high:
            return int(value)
        if key in data:
            self._report(f"{key} is {_show(value)}: a whole number from {low} to {high} is wanted", (*path, key))
        return None

    def _indices(self, data: JsonObject, path: Path, key: str) -> list[int] | None:
        values = self._list(data, path, key)
        if values is None:
            return None
        if not values or (set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= MAX_NUMBER):
            return values  # the usual case, fast: launch processes wait for it
        for k, value in enumerate(values):
            if not (_is_integer(value) and 0 <= value <= MAX_NUMBER):
                message = f"{key}[{k}] is {_show(value)}: a whole number from 0 to {MAX_NUMBER} is wanted"
                self._report(message, (*path, key, k))
                return None
        return values

    def _check_figure(self, data: JsonObject, path: Path, key: str) -> None:
        value = data.get(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (is_number and 0 <= value < 1e300):
            self._report(f"{key} is {_show(value)}: a finite number from 0, or null, is wanted", (*path, key))

    def _name(self, data: JsonObject, path: Path, key: str) -> str | None:
        return self._check_name(data[key], (*path, key)) if key in data else None

    def _check_name(self, value: object, path: Path) -> str | None:
        if isinstance(value, str) and value.strip() and value.isprintable() and len(value) <= MAX_NAME_LENGTH:
            return value
        rule = f"a name of at most {MAX_NAME_LENGTH} printable characters is wanted"
        self._report(f"{_name_path(path)} is {_show(value)}: {rule}", path)
        return None

    def _choice(self, data: JsonObject, path: Path, key: str, known: tuple[str, ...]) -> Any:
        value = data.get(key)
        if isinstance(value, str) and value in known:
            return value
        if key in data:
            hint = did_you_mean(str(value), known)
            self._report(f"{key} is {_show(value)}: one of {', '.join(known)} is wanted", (*path, key), hint)
        return None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _repeated(values: Iterable[Any]) -> Iterator[Any]:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            yield value
        seen.add(value)


def _name_path(path: Path) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or "the rank map"


def _show(value: object) -> str:
    if isinstance(value, JsonObject):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
