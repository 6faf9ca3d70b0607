"""The plan of a run, made before anything is built: total batch, length, learning rate, and the
actions at each step.

The plan does not depend on the backend; any number of processes can share any batch.
"""

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from retina_dist.base.arguments import KnownArguments
from retina_dist.base.errors import ConfigError
from retina_dist.base.settings import MISSING, setting
from retina_dist.base.text import pluralize
from retina_dist.optim.learning_rate import Schedule, base_lr, build_schedule
from retina_dist.optim.settings import OptimizerSettings, ScheduleSettings

_FORM = re.compile(
    r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([kM]?)\s*(step|epoch|ep|image|img)s?\s*", re.ASCII
)
_MULTIPLE = {"": 1, "k": 1_000, "M": 1_000_000}


@dataclass
class TrainerConfig(KnownArguments):
    """Length, rhythm and numerics; durations as 12epochs, 1000steps or 5000images."""

    max_duration: str = setting(
        MISSING,
        "12epochs, 90ksteps, 500images; auto: 12 epochs, or more up to 2,000 steps",
        remedy="write a duration, such as 12epochs",
    )
    stop_after: str | None = setting(None, "end early with a checkpoint; resume= continues")
    validate_every: str = setting(
        "1epoch", "0steps: only at the end", remedy="write a duration, such as 1epoch"
    )
    checkpoint_every: str = setting(
        "1epoch", "0steps: only at the end", remedy="write a duration, such as 1epoch"
    )
    checkpoint_minutes: float | None = setting(
        None, "also after so many minutes", above=0, at_most=10**6, null_is_off=True
    )
    log_every: int = setting(10, "steps", at_least=1)
    accumulate: int | str = setting(
        1,
        "micro-batches a step; auto: as few as fit the GPU",
        at_least=1,
        words=("auto",),
        remedy="write a whole number or auto",
    )
    virtual_ranks: int | None = setting(
        None,
        "shards of a step, a power of two: equal bits on any number of processes that divides it",
        at_least=1,
        at_most=2**16,
        null_is_off=True,
    )
    precision: str = setting(
        "fp32",
        "tf32: a GPU rounds matrix inputs; auto: bf16 or fp16 where the hardware has it",
        choices=("fp32", "tf32", "bf16", "fp16", "auto"),
    )
    gradient_clip: float | None = setting(
        None, "largest norm or value", above=0, at_most=10**9, null_is_off=True
    )
    gradient_clip_algorithm: str = setting(
        "global_norm", choices=("global_norm", "tensor_norm", "value")
    )
    ema_decay: float | None = setting(
        None,
        "validation and best.pt use averages",
        above=0,
        below=1,
        null_is_off=True,
        remedy="write a number such as 0.9998",
    )
    channels_last: bool | None = setting(
        False, "memory format NHWC; null: on GPUs, and CPUs other than AVX2"
    )
    compile: bool = setting(False, "torch.compile; the first steps of each canvas take minutes")
    deterministic: bool = setting(
        False, "only operations that give the same bits each time; slower on GPUs"
    )
    num_threads: int | None = setting(
        None, "torch threads; null: torch's own choice", at_least=1, at_most=10**4
    )
    monitor: str | None = setting(None, "the metric of the best checkpoint; null: the task's own")
    monitor_mode: str | None = setting(
        None, "null: min for losses and errors, else max", choices=(None, "max", "min")
    )
    patience: int | None = setting(
        None,
        "stop after so many validations without a better monitor",
        at_least=1,
        null_is_off=True,
    )
    max_nonfinite_steps: int = setting(
        5, "steps in a row with a loss of inf or NaN that are skipped", at_least=0
    )
    check_replicas_every: str = setting(
        "1epoch", "compare the ranks' weights bit by bit; 0steps: never"
    )
    checkpoint_dir: str | None = setting(
        None, "a folder, or a URL such as az://container/run; null: checkpoints/"
    )
    keep_last: int = setting(1, "checkpoints kept", at_least=1)
    save_top_k: int = setting(1, "best checkpoints kept", at_least=0)
    profile: str | None = setting(
        None,
        "so many steps, e.g. 3steps, traced by torch.profiler into the run's profile/",
        remedy="write a duration, such as 3steps",
    )
    fast_dev_run: bool = setting(False, "two steps, two validation batches: does everything run?")
    overfit_batches: int = setting(
        0, "train and validate on so many train batches", at_least=0, at_most=10**6
    )

    @property
    def micro_batches(self) -> int:
        """`accumulate` as a number: 1 while it is auto, which a run replaces before it builds its
        data.
        """
        return 1 if isinstance(self.accumulate, str) else self.accumulate

    @property
    def same_bits(self) -> bool:
        """Whether only operations that give the same bits each time are used."""
        return self.deterministic or self.virtual_ranks is not None


def to_steps(duration: str, *, key: str, num_images: int, batch_size: int) -> int:
    """Optimizer steps in `duration`, rounded up to whole steps; an epoch is ceil(num_images /
    batch_size) steps.

    The arithmetic is exact: 1.1 epochs of 100 steps are 110 steps. A max_duration of "auto" is 12
    epochs, or as many as 2,000 steps take, up to 100. A ConfigError for another form names the
    setting `key`.

    >>> to_steps("1.5k images", key="trainer.max_duration", num_images=100, batch_size=16)
    94
    """
    epoch = math.ceil(Fraction(num_images, batch_size))
    if duration == "auto" and key.endswith("max_duration"):
        return epoch * min(100, max(12, math.ceil(2000 / epoch)))
    form = _FORM.fullmatch(str(duration))
    if form is None:
        remedy = "write it as 12epochs, 90ksteps or 500images"
        if str(duration).isdecimal():
            remedy = f"write it as {duration}epochs, {duration}steps or {duration}images"
        if key.endswith(("warmup", "max_duration")):
            remedy += ", or auto"
            if re.search(r"\d *h|min|:", str(duration)):
                remedy += "; to stop after 2 hours with a checkpoint, "
                remedy += "write timeout 2h before the command"
        elif key.endswith("every"):
            remedy += ", or 0steps for never"
        raise ConfigError(f"{key}={duration} is not a duration; {remedy}.")
    amount = Fraction(form[1]) * _MULTIPLE[form[2]]
    unit = form[3]
    if unit in ("epoch", "ep"):
        amount *= epoch
    elif unit != "step":
        amount /= batch_size
    return math.ceil(amount)


class Due(NamedTuple):
    """What to do after a step, in this order; `last` ends the run."""

    check: bool
    log: bool
    validate: bool
    save: bool
    last: bool


@dataclass(frozen=True)
class Plan:
    """Everything in optimizer steps and images; `str(plan)` is the table that a run
    prints first.
    """

    num_images: int
    batch_size: int
    world_size: int
    # micro-batches of a process; with virtual ranks one for each of its own
    accumulate: int
    virtual_ranks: int | None
    steps_per_epoch: int
    total_steps: int
    stop_step: int
    lr: float
    weight_decay: float
    schedule: Schedule
    validate_every: int
    checkpoint_every: int
    log_every: int
    check_every: int
    profile_steps: int

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """Images of one process's micro-batch in a full step: one number, or two if they cannot all
        be equal.
        """
        fewest, more = divmod(self.batch_size, self.world_size * self.accumulate)
        if more:
            return (fewest, fewest + 1)
        return (fewest,)

    def lr_at(self, step: int) -> float:
        """The learning rate of optimizer step `step` (0 is the first), before any group's own
        scale.
        """
        return self.lr * self.schedule(step)

    def epoch_at(self, step: int) -> float:
        """Epochs done after `step` optimizer steps."""
        return step / self.steps_per_epoch

    def validates_at(self, step: int) -> bool:
        """Whether the plan has a validation after `step` optimizer steps; there is one at the very
        end.
        """
        return step == self.total_steps or _every(self.validate_every, step)

    def due(self, step: int, *, stopping: bool = False, timed: bool = False) -> Due:
        """What to do after `step` optimizer steps; `timed`: the clock asks to save.

        A `stopping` run logs as an uninterrupted one but does not validate; its resume validates
        first.
        """
        last = step == self.stop_step
        validates = self.validates_at(step)
        saves = validates or _every(self.checkpoint_every, step)
        return Due(
            check=_every(self.check_every, step),
            # not where the run merely stops: the row would cover fewer steps, and a resume adds the
            # row of the uninterrupted run
            log=saves or _every(self.log_every, step),
            validate=validates and not stopping,
            save=saves or last or stopping or timed,
            last=last,
        )

    def __str__(self) -> str:
        schedule = self.schedule
        shape = schedule.decay.describe(self.lr)
        if schedule.warmup:
            start = self.lr * schedule.warmup_factor
            shape += f", warm-up over {pluralize(schedule.warmup, 'step')} from {start:g}"
        images = pluralize(self.batch_size, "image")
        factors = [pluralize(self.world_size, "process")]
        if self.virtual_ranks:
            factors.append(pluralize(self.accumulate, "virtual rank"))
        elif self.accumulate > 1:
            factors.append(f"{self.accumulate} accumulated")
        factors.append(" or ".join(map(str, self.micro_batches)))
        if 0 in self.micro_batches:
            factors[-1] += "; a process has no image: raise data.batch_size"
        elif self.world_size > 1:
            factors[-1] += "; data.batch_size counts the images of all processes"
        epoch = (
            f"{pluralize(self.num_images, 'image')} in {pluralize(self.steps_per_epoch, 'step')}"
        )
        if self.num_images < self.batch_size:
            epoch += "; data.batch_size is larger than the data: lower it"
        epochs = pluralize(f"{self.epoch_at(self.total_steps):.4g}", "epoch")
        rows = {
            "batch": f"{images} a step = {' x '.join(factors)}",
            "epoch": epoch,
            "length": f"{pluralize(self.total_steps, 'step')} = {epochs}",
            "lr": f"{self.lr:g}, {shape}",
        }
        largest = max(1, self.batch_size / 256)  # ten times that of Goyal et al. 2017
        if self.lr >= largest:
            rows["lr"] += "; nearly every network diverges with it: lower optimizer.lr"
        if self.lr <= 1e-7:
            rows["lr"] += "; hardly any network learns with it: raise optimizer.lr"
        if self.lr * self.weight_decay >= 1e-3 * largest:  # ten times that of the default job
            rows["lr"] += "; optimizer.weight_decay shrinks the weights to 0: lower it"
        if self.stop_step < self.total_steps:
            rows["stop"] = f"after step {self.stop_step}, to be resumed"
        return "\n".join(f"  {name:<9}{value}" for name, value in rows.items())


def _every(interval: int, step: int) -> bool:
    return interval > 0 and step % interval == 0


def resolve_plan(
    *,
    num_images: int,
    batch_size: int,
    trainer: TrainerConfig,
    optimizer: OptimizerSettings,
    schedule: ScheduleSettings,
    world_size: int = 1,
) -> Plan:
    """The plan of `batch_size` images a step over all processes and micro-batches. Raises
    ConfigError for an impossible one.
    """

    def steps(key: str, duration: str) -> int:
        return to_steps(duration, key=key, num_images=num_images, batch_size=batch_size)

    if num_images < 1:
        raise ConfigError(
            "the training set has no image; "
            "check data.root, or data.keep_empty_images if all are empty."
        )
    if trainer.micro_batches > batch_size:
        raise ConfigError(
            f"trainer.accumulate={trainer.accumulate} exceeds data.batch_size={batch_size}, the "
            "images of a whole step; lower it or raise that."
        )
    accumulate = trainer.micro_batches
    if trainer.virtual_ranks:
        accumulate = _virtual_ranks_of_process(trainer.virtual_ranks, batch_size, world_size)
    total = steps("trainer.max_duration", trainer.max_duration)
    stop = total
    if trainer.stop_after is not None:
        stop = min(total, steps("trainer.stop_after", trainer.stop_after))
    for key, number in {"max_duration": total, "stop_after": stop}.items():
        if number < 1:
            raise ConfigError(
                f"trainer.{key}={getattr(trainer, key)} is less than one step; use at least 1step."
            )
    return Plan(
        num_images=num_images,
        batch_size=batch_size,
        world_size=world_size,
        accumulate=accumulate,
        virtual_ranks=trainer.virtual_ranks,
        steps_per_epoch=steps("an epoch", "1epoch"),
        total_steps=total,
        stop_step=stop,
        lr=base_lr(optimizer, batch_size),
        weight_decay=optimizer.weight_decay,
        schedule=build_schedule(schedule, total, steps),
        validate_every=steps("trainer.validate_every", trainer.validate_every),
        checkpoint_every=steps("trainer.checkpoint_every", trainer.checkpoint_every),
        log_every=trainer.log_every,
        check_every=steps("trainer.check_replicas_every", trainer.check_replicas_every),
        profile_steps=steps("trainer.profile", trainer.profile or "0steps"),
    )


def _virtual_ranks_of_process(virtual_ranks: int, batch_size: int, world_size: int) -> int:
    """How many of the virtual ranks each process has.

    Raises ConfigError unless their number is a power of two, at most `batch_size`, and a multiple
    of `world_size`.
    """
    given = f"trainer.virtual_ranks={virtual_ranks}"
    if virtual_ranks & (virtual_ranks - 1):
        power = 1 << virtual_ranks.bit_length()
        raise ConfigError(f"{given} is not a power of two; use {power // 2} or {power}.")
    if virtual_ranks > batch_size:
        raise ConfigError(f"{given} exceeds data.batch_size={batch_size}; lower it or raise that.")
    if virtual_ranks % world_size:
        raise ConfigError(
            f"{given} cannot be shared out to {world_size} processes; "
            f"start a power of two, at most {virtual_ranks}."
        )
    return virtual_ranks // world_size
