"""Keeps the ranks' copies of a training equal, and checks that they are."""

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from retina_dist.base.errors import CollectiveError, ConfigError
from retina_dist.base.text import format_ranks
from retina_dist.strategies.base import DistributedStrategy, in_memory_order

LANES = 4096  # 64-bit integers of a block; each position has another key
BLOCKS = 16  # summed at a time, so that they stay in a core's cache
TOLERANCE = 1e-6  # relative, of weights and metrics
SHOWN = 5  # differing tensors named


class ReplicaMismatch(CollectiveError):
    """The ranks no longer train the same model."""


def average_statistics(
    model: nn.Module, strategy: DistributedStrategy, weight: float = 1.0
) -> None:
    """Replace the running statistics of batch norms by their mean over ranks.

    It takes one collective, none if there are no such norms. Norms that train on all ranks' images
    together, or not at all, are equal as they are. `weight` is this rank's share of the step's
    images; where no rank has any, nothing changes.
    """
    if strategy.world_size == 1:
        return
    statistics: list[Tensor] = []
    for norm in live_norms(model):
        if not adds_over_ranks(norm):
            statistics += filter(torch.is_floating_point, norm.buffers(recurse=False))
    if not statistics:
        return

    own = torch.cat(list(map(torch.flatten, statistics)))
    sums = strategy.all_reduce(torch.cat((own * weight, own.new_full((1,), weight))), "mean")
    means = torch.where(sums[-1] > 0, sums[:-1] / sums[-1], own)
    sizes = list(map(torch.numel, statistics))
    for statistic, mean in zip(statistics, means.split(sizes), strict=True):
        statistic.copy_(mean.view_as(statistic))


def adds_over_ranks(module: nn.Module) -> bool:
    """Whether a norm takes its statistics from all ranks, as `model.sync_batch_norm` does."""
    return getattr(module, "sum_over_ranks", None) is not None


def live_norms(model: nn.Module) -> list[_BatchNorm]:
    """The batch norms whose running statistics a forward pass changes."""
    norms = [norm for norm in model.modules() if isinstance(norm, _BatchNorm)]
    return [norm for norm in norms if norm.training and norm.running_mean is not None]


def live_statistics(model: nn.Module) -> list[Tensor]:
    """Their buffers."""
    statistics: list[Tensor] = []
    for norm in live_norms(model):
        statistics += norm.buffers(recurse=False)
    return statistics


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Those that have a gradient."""
    return [p for p in model.parameters() if p.requires_grad]


def copy_each(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """Copy tensors in place, by one operator for each dtype."""
    if to:
        groups = _group_tensors_by_device_and_dtype([list(to), list(source)])
        for (targets, values), _ in groups.values():
            torch._foreach_copy_(targets, values)  # type: ignore[arg-type]


def check_shares(
    weights: Sequence[float], strategy: DistributedStrategy, step: int, skips: bool
) -> None:
    """Raise ReplicaMismatch, on every rank, unless all ranks have as many micro-batches.

    Each has at least one. The sums of their `weights` have the mean 1 over ranks, or less where a
    run `skips` images.
    """
    rows = [[sum(weights), len(weights)]]
    if strategy.world_size > 1:  # one process waits for no device, and has fake tensors in a plan
        own = torch.tensor(rows, dtype=torch.float64, device=strategy.device)
        rows = strategy.all_gather(own).tolist()
    sums, counts = zip(*rows, strict=True)
    mean = sum(sums) / len(sums)
    if len(set(counts)) > 1 or not counts[0]:
        raise ReplicaMismatch(
            f"step {step} has {_by_rank(counts)} micro-batches; give each as many, at least one."
        )
    if abs(mean - 1) > TOLERANCE and not (skips and 0 <= mean < 1):
        raise ReplicaMismatch(
            f"the weights of step {step} add up to {_by_rank(sums)}, with the mean {mean:.6g} over "
            "ranks, not 1: a rank dropped examples, or a weight is not world_size x its examples / "
            "the examples of the step."
        )


def check_same(own: dict[str, object], strategy: DistributedStrategy) -> None:
    """Raise ConfigError, on every rank, unless all ranks have what rank 0 has."""

    main = strategy.broadcast_object(own)

    def check() -> None:
        for name, value in own.items():
            if value != main[name]:
                raise ConfigError(
                    f"{name} is {value} on rank {strategy.rank} and {main[name]} on rank 0; "
                    "start all processes with the same settings and the same data."
                )

    strategy.run_collectively(check)


def check_metrics(metrics: dict[str, float], strategy: DistributedStrategy) -> None:
    """Raise ReplicaMismatch, on every rank, if the ranks' metrics differ by more than rounding."""
    ranks = strategy.gather_objects(metrics)
    for name in sorted(set().union(*ranks)):
        values = [rank.get(name, math.nan) for rank in ranks]
        if not np.allclose(values, values[0], rtol=TOLERANCE, atol=1e-12, equal_nan=True):
            raise ReplicaMismatch(
                f"the metric {name} is {_by_rank(values)}: the evaluator must give every rank the "
                "metrics of all images, by strategy.all_reduce or strategy.all_gather."
            )


def _by_rank(values: Sequence[float]) -> str:
    """ "1 on rank 0 and 0.5 on rank 2": the first value, and the first that differs from it."""
    first = values[0]
    for rank, value in enumerate(values):
        if rank and value != first:
            return f"{first:.6g} on rank 0 and {value:.6g} on rank {rank}"
    return f"{first:.6g} on each rank"


def settings_of(model: nn.Module) -> dict[str, object]:
    """The public attributes of the model's modules, by name.

    They define the model together with its state_dict.
    """
    below = {name: _public(module) for name, module in model.named_modules() if name}
    return {**_public(model), **below}


def _public(thing: object) -> dict[str, object]:
    return {name: value for name, value in vars(thing).items() if not name.startswith("_")}


def check_replicas(
    parts: dict[str, object],
    strategy: DistributedStrategy,
    step: int,
    resume_with: str = "resume=RUN",
) -> None:
    """Raise ReplicaMismatch, on every rank, if `parts` differ between ranks in one bit.

    `parts` are nested dicts, lists and plain objects of tensors, numbers and texts; other values,
    and modules, are not compared. Each rank computes a checksum of 64 bits for each; two
    collectives compare them, whatever their number.
    """
    if strategy.world_size == 1:
        return
    named = dict(leaves_of(parts))
    counts = strategy.all_gather(torch.tensor([len(named)], device=strategy.device)).tolist()
    if len(set(counts)) > 1:
        raise ReplicaMismatch(
            f"after step {step} the ranks hold different numbers of tensors and settings: {counts}."
        )
    names = list(named)
    own = torch.empty(len(named), dtype=torch.int64, device=strategy.device)
    for i, (name, value) in enumerate(named.items()):
        if isinstance(value, Tensor):
            own[i] = checksum(value)
        else:
            digest = hashlib.sha256(f"{name}={value!r}".encode()).digest()
            own[i] = int.from_bytes(digest[:8], "little", signed=True)
    everyone = strategy.all_gather(own[None])  # [world_size, T]
    different = (everyone != everyone[0]).any(0).nonzero().flatten().tolist()
    if not different:
        return
    shown = [f"{names[i]} ({_sides(everyone[:, i].tolist())})" for i in different[:SHOWN]]
    what = ", ".join(shown)
    if len(different) > SHOWN:
        what += f" and {len(different) - SHOWN} more"
    raise ReplicaMismatch(
        f"after step {step} the replicas differ in {what}; "
        f"check the devices, then continue with {resume_with}."
    )


def _sides(values: list[int]) -> str:
    """The ranks whose value differs from most, against the others."""
    usual, _ = Counter(values).most_common(1)[0]  # of equal counts the first, rank 0's
    odd = [rank for rank, value in enumerate(values) if value != usual]
    like = [str(rank) for rank, value in enumerate(values) if value == usual]
    return f"{format_ranks(odd)} against {', '.join(like)}"


def checksum(tensor: Tensor) -> Tensor:
    """A 64-bit scalar of a tensor's bits in the order of its elements."""
    return keyed_sum([tensor.contiguous()])


def keyed_sum(tensors: Iterable[Tensor]) -> Tensor:
    """A scalar int64 of all bits of dense tensors of one device, in memory order.

    It is a sum modulo 2**64 of 64-bit lanes, each times an odd key of its place: the same in any
    order of summation, and another one if a lane of finite numbers changes.
    """
    sums: list[Tensor] = []
    rests: list[Tensor] = []
    for tensor in tensors:
        content = in_memory_order(tensor.detach()).view(torch.uint8)
        if content.storage_offset() % 8:
            content = content.clone()  # which starts where a lane may
        whole = len(content) // (8 * LANES) * (8 * LANES)
        sums += _block_sums(content[:whole].view(torch.int64))
        rests.append(content[whole:])
    rest = torch.cat(rests)
    sums += _block_sums(nn.functional.pad(rest, (0, -len(rest) % (8 * LANES))).view(torch.int64))
    total = torch.cat(sums)
    while len(total) > 1:
        total = torch.cat(_block_sums(nn.functional.pad(total, (0, -len(total) % LANES))))
    return total.sum()  # of one, or of nothing


def _block_sums(lanes: Tensor) -> list[Tensor]:
    """[n * LANES] -> the sums of n blocks, in parts"""
    keys = _keys(lanes.device)
    memory = torch.empty(BLOCKS, LANES, dtype=torch.int64, device=lanes.device)
    sums: list[Tensor] = []
    for rows in lanes.view(-1, LANES).split(BLOCKS):
        # Else two changes of the highest bit, such as signs, would cancel each other; if shifted by
        # 32, the signs of both fp32 numbers of two lanes. No lanes without a NaN become equal.
        folded = torch.bitwise_right_shift(rows, 31, out=memory[: len(rows)])
        folded.add_(rows)
        if lanes.is_cuda:  # which has no product of integer matrices
            sums.append(folded.mul_(keys).sum(1))
        else:
            sums.append(folded @ keys)
    return sums


@cache
def _keys(device: torch.device) -> Tensor:
    """[LANES] odd numbers."""
    draws = torch.Generator().manual_seed(0)
    keys = torch.randint(-(2**62), 2**62, (LANES,), generator=draws) * 2 + 1
    return keys.to(device)


def digest_of(tree: object) -> str:
    """The SHA-256 of the names and bits of all tensors and numbers below `tree`."""
    digest = hashlib.sha256()
    for name, value in leaves_of(tree):
        if isinstance(value, Tensor):
            flat = value.detach().cpu().contiguous().flatten()
            content = flat.view(torch.uint8).numpy().tobytes()
        else:
            content = repr(value).encode()
        digest.update(name.encode() + content)
    return digest.hexdigest()


def leaves_of(
    tree: object, name: str = "", above: tuple[int, ...] = ()
) -> Iterator[tuple[str, object]]:
    """(dotted name, value) of every tensor, array, number and text below `tree`, in order."""
    if isinstance(tree, Tensor | bool | int | float | str | None):
        yield name, tree
    elif isinstance(tree, np.ndarray) and tree.dtype.kind in "biuf":
        yield name, torch.tensor(tree)
    elif id(tree) in above or isinstance(tree, logging.Logger):
        return
    elif isinstance(tree, dict | list | tuple):
        items: Iterable[tuple[object, object]] = enumerate(tree)
        if isinstance(tree, dict):
            items = tree.items()
        for key, value in items:
            yield from leaves_of(value, f"{name}.{key}" if name else str(key), (*above, id(tree)))
    elif hasattr(tree, "__dict__") and not isinstance(tree, nn.Module | type):  # such as a matcher
        yield from leaves_of(_public(tree), name, (*above, id(tree)))
