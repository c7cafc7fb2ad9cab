"""Checks that the degrees of a job fit each other, its framework, its model and its batch, and builds the mesh.

Every check yields an `Issue` with the numbers, the rule and values that work; all mistakes are found at once.
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

from placer.errors import Issue
from placer.workload.mesh import Mesh

if TYPE_CHECKING:
    from placer.scenario.schema import ParallelismSpec, TrainingSpec
    from placer.workload.model import Model

_ALL_ORDERS = tuple("-".join(axes) for axes in permutations(("tp", "cp", "ep", "dp", "pp")))
_ALL_ORDERS_WITHOUT_EP = tuple("-".join(axes) for axes in permutations(("tp", "cp", "dp", "pp")))

LEGAL_ORDERS: dict[str, tuple[str, ...]] = {
    # megatron/training/initialize.py: the default, and --use-tp-pp-dp-mapping
    "megatron": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
    # torchtitan/distributed/parallel_dims.py: pp, dp_replicate, dp_shard, cp, tp from slowest to fastest
    "torchtitan": ("tp-cp-ep-dp-pp",),
    # deepspeed/runtime/pipe/topology.py PipeModelDataParallelTopology: pipe, data, model from slowest to fastest
    "deepspeed": ("tp-cp-ep-dp-pp",),
    "jax": _ALL_ORDERS + _ALL_ORDERS_WITHOUT_EP,
    "custom": _ALL_ORDERS + _ALL_ORDERS_WITHOUT_EP,
}
"""Legal axis orders of every framework, fastest axis first; the first is the default."""

_DEGREES = ("tp", "cp", "pp", "dp", "ep", "etp", "vpp")


def mesh_from(parallelism: ParallelismSpec) -> Mesh:
    """The rank grids of a job whose degrees passed `check_parallelism`."""
    return Mesh(
        tp=parallelism.tp,
        cp=parallelism.cp,
        dp=parallelism.dp,
        pp=parallelism.pp,
        ep=parallelism.ep,
        etp=parallelism.etp,
        order=parallelism.order,
        framework=parallelism.framework,
        dp_shard=parallelism.dp_shard,
    )


def check_parallelism(parallelism: ParallelismSpec) -> list[Issue]:
    """What is wrong with the degrees, their order and the framework's rules; empty when they fit.

    Sources of the rules: megatron/core/parallel_state.py and model_parallel_config.py, torchtitan ParallelDims (ep and
    etp lie inside one shard group of dp_shard·cp·tp ranks, etp is 1 or tp), DeepSpeed utils/groups.py (an expert group
    is a slice of a data-parallel group) and PipelineEngine (no ZeRO 2 or 3 with a pipeline).
    """
    issues = [
        _issue(f"{name} is {value}: degrees are whole numbers from 1", "write 1 to leave an axis out", name)
        for name in _DEGREES
        if (value := getattr(parallelism, name)) < 1
    ]
    shard = parallelism.dp_shard
    if shard is not None and shard < 1:
        issues.append(_issue(f"dp_shard is {shard}: degrees are whole numbers from 1", "leave it out", "dp_shard"))
    if issues:
        return issues  # the other rules divide by these numbers
    expert_issues = _check_expert_grid(parallelism)
    order_issues = _check_order(parallelism)
    issues = expert_issues + order_issues + _check_shards(parallelism) + _check_pipeline(parallelism)
    if not expert_issues and not order_issues and (parallelism.ep > 1 or parallelism.etp > 1):
        issues += _check_grids_agree(parallelism)
    return issues


def check_fit(parallelism: ParallelismSpec, model: Model | None, training: TrainingSpec | None) -> list[Issue]:
    """What of the model or the batch can't be split by these degrees; empty when it fits.

    Layers need not divide by pp: frameworks allow uneven stages. A stage without any layer is refused, bar two (a
    stage may hold the embedding or the head alone).
    """
    issues: list[Issue] = []
    tp, cp, pp, ep = parallelism.tp, parallelism.cp, parallelism.pp, parallelism.ep
    if model is not None:
        if model.heads % tp:
            hint = f"tp must divide the heads: {_nearest_divisors(model.heads, tp)}"
            issues.append(_issue(f"tp {tp} does not divide {model.heads} attention heads", hint, "tp"))
        elif cp > 1 and parallelism.cp_method == "ulysses" and (model.heads // tp) % cp:
            hint = (
                f"Ulysses gives every rank whole heads: {_nearest_divisors(model.heads // tp, cp)}; or cp_method: ring"
            )
            message = f"cp {cp} does not divide the {model.heads // tp} attention heads of a tp rank"
            issues.append(_issue(message, hint, "cp"))
        num_chunks = pp * parallelism.vpp
        if num_chunks > model.layers + 2:
            product = f"pp {pp}" + (f" × vpp {parallelism.vpp}" if parallelism.vpp > 1 else "")
            message = f"{product} = {num_chunks} stages, but the model has {model.layers} layers"
            issues.append(_issue(message, "a stage needs a layer, the embedding or the head", "pp"))
        issues += _check_experts(model, ep, parallelism.etp)
        if model.moe is not None and ep == 1 and parallelism.etp == 1:
            issues += _check_grids_agree(parallelism)
    if training is not None:
        at_once = training.micro_batch * parallelism.dp
        if training.global_batch % at_once:
            message = (
                f"global_batch {training.global_batch} is not a multiple of micro_batch × dp = "
                f"{training.micro_batch} × {parallelism.dp} = {at_once}"
            )
            below = training.global_batch // at_once * at_once
            near = f"{below} or {below + at_once}" if below else str(at_once)
            issues.append(Issue(message, f"write {near}", ("training", "global_batch")))
        if training.sequence_length % cp:
            message = f"cp {cp} does not divide the sequence length {training.sequence_length}"
            issues.append(_issue(message, _nearest_divisors(training.sequence_length, cp), "cp"))
    return issues


def _check_experts(model: Model, ep: int, etp: int) -> list[Issue]:
    if model.moe is None:
        hint = "write 1, or describe the experts under model.moe"
        return [
            _issue(f"{name} is {degree}, but the model has no experts", hint, name)
            for name, degree in (("ep", ep), ("etp", etp))
            if degree > 1
        ]
    if model.moe.experts % ep:
        hint = f"ep must divide the experts: {_nearest_divisors(model.moe.experts, ep)}"
        return [_issue(f"ep {ep} does not divide {model.moe.experts} experts", hint, "ep")]
    return []


def _check_expert_grid(parallelism: ParallelismSpec) -> list[Issue]:
    tp, cp, dp, ep, etp = (getattr(parallelism, name) for name in ("tp", "cp", "dp", "ep", "etp"))
    num_stage_ranks = tp * cp * dp
    issues: list[Issue] = []
    if num_stage_ranks % (etp * ep):
        message = (
            f"etp × ep = {etp} × {ep} = {etp * ep} does not divide "
            f"tp × cp × dp = {tp} × {cp} × {dp} = {num_stage_ranks}"
        )
        if num_stage_ranks % etp == 0:
            hint = f"with etp {etp}, ep may be {_nearest_divisors(num_stage_ranks // etp, ep)}"
        else:
            hint = f"etp must divide {num_stage_ranks}: {_nearest_divisors(num_stage_ranks, etp)}"
        issues.append(_issue(message, hint, "ep" if num_stage_ranks % etp == 0 else "etp"))
    if ep == 1 and etp == 1:
        return issues
    if parallelism.framework == "deepspeed" and etp != tp:
        message = f"etp is {etp} and tp {tp}: DeepSpeed's expert groups are slices of a data-parallel group"
        issues.append(_issue(message, f"write etp: {tp}", "etp"))
    if parallelism.framework == "torchtitan":
        if etp not in (1, tp):
            message = f"etp is {etp}: torchtitan splits an expert over all tp ranks or over none"
            issues.append(_issue(message, f"write etp: 1{f' or {tp}' if tp > 1 else ''}", "etp"))
        shard = parallelism.dp_shard or dp
        inner = shard * cp * tp
        if not issues and inner % (etp * ep):
            message = f"etp × ep = {etp * ep} does not divide dp_shard × cp × tp = {shard} × {cp} × {tp} = {inner}"
            hint = f"torchtitan keeps experts inside one shard group: ep may be {_nearest_divisors(inner // etp, ep)}"
            issues.append(_issue(message, hint, "ep"))
    return issues


def _check_order(parallelism: ParallelismSpec) -> list[Issue]:
    framework, order = parallelism.framework, parallelism.order
    legal = LEGAL_ORDERS[framework]
    if order in legal:
        return []
    if len(legal) <= 2:
        hint = "write " + " or ".join(legal)
    else:
        hint = "write tp, cp, dp, pp and, if wanted, ep, each once, joined by '-': " + legal[0] + ", for example"
    return [_issue(f"order {order!r} is not one that {framework} can have", hint, "order")]


def _check_shards(parallelism: ParallelismSpec) -> list[Issue]:
    shard, dp = parallelism.dp_shard, parallelism.dp
    if shard is None:
        return []
    if dp % shard:
        hint = f"dp = dp_shard × dp_replicate: {_nearest_divisors(dp, shard)}"
        return [_issue(f"dp_shard {shard} does not divide dp {dp}", hint, "dp_shard")]
    if shard < dp and parallelism.zero == 0:
        message = f"dp_shard is {shard}, but zero: 0 shards nothing"
        return [_issue(message, "write zero: 1, 2 or 3, or leave dp_shard out", "dp_shard")]
    return []


def _check_pipeline(parallelism: ParallelismSpec) -> list[Issue]:
    issues: list[Issue] = []
    if parallelism.vpp > 1 and parallelism.pp == 1:
        message = f"vpp is {parallelism.vpp}, but there is no pipeline (pp 1)"
        issues.append(_issue(message, "write vpp: 1, or a pp of at least 2", "vpp"))
    if parallelism.framework == "deepspeed" and parallelism.pp > 1 and parallelism.zero > 1:
        message = f"zero is {parallelism.zero} and pp {parallelism.pp}: DeepSpeed's pipeline allows zero 0 or 1"
        issues.append(_issue(message, "write zero: 1", "zero"))
    return issues


def _check_grids_agree(parallelism: ParallelismSpec) -> list[Issue]:
    mesh = mesh_from(parallelism)
    if mesh.has_one_pipeline_grid:
        return []
    if parallelism.order == "tp-cp-ep-pp-dp":
        need = f"edp = dp, here edp = tp × cp × dp / (etp × ep) = {mesh.edp} and dp = {mesh.dp}"
    else:
        need = "as many expert as dense ranks before pp in the order"
    message = f"order {parallelism.order!r} puts a rank into two pipeline stages, one per grid: it needs {need}"
    return [_issue(message, "write an order that ends in pp, such as tp-cp-ep-dp-pp", "order")]


def _nearest_divisors(number: int, near: int) -> str:
    """The divisors of ``number`` on both sides of ``near``, for a hint: ``4 or 8``."""
    divisors = [k for k in range(1, min(number, 1 << 20) + 1) if number % k == 0]
    below = max((k for k in divisors if k <= near), default=None)
    above = min((k for k in divisors if k > near), default=None)
    return " or ".join(str(k) for k in (below, above) if k is not None)


def _issue(message: str, hint: str, name: str) -> Issue:
    return Issue(message, hint, ("parallelism", name))
