"""Hooks into a training: what a user's own code, the progress line and the metric loggers hear."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isfunction, signature
from pathlib import Path

from torch import Tensor, nn

from retina_dist.base.errors import ConfigError, UserError, describe_error


@dataclass(frozen=True)
class TrainingStart:
    """What a callback is given before the first step.

    Args:
        model: The model in training, on the device of this rank.
        folder: The run folder; write into it on rank 0 only.
        step: The optimizer steps done so far, more than 0 in a resumed run.
        stop_step: The step after which the run ends.
        rank: This process, 0 to `world_size` - 1.
        world_size: How many processes train together.
        train_step: What takes the steps, for callbacks of this package.
    """

    model: nn.Module
    folder: Path
    step: int
    stop_step: int
    rank: int = 0
    world_size: int = 1
    train_step: object = None


class Callback:
    """Hears of a training on every rank. Override the methods that you need; they do nothing.

    A method may read and write what it likes, but not call a collective on some ranks only. The
    next step waits for it, and an error of it ends the run as a `CallbackError` that names it.
    """

    def __init_subclass__(cls, **arguments: object) -> None:
        """Raise ConfigError for a hook of another library, which nothing would call."""
        super().__init_subclass__(**arguments)
        for name in vars(cls):
            if name.startswith("on_") and name not in dir(Callback):
                raise ConfigError(
                    f"{cls.__name__}.{name} is never called; "
                    "a Callback has on_start, on_step, on_log, on_end and on_validation, which "
                    "comes by default after each epoch."
                )
            if name.startswith("on_") and isfunction(vars(cls)[name]):
                _check_arguments(cls, name)

    def on_start(self, start: TrainingStart) -> None:
        """Before the first step, and again after each restart of an elastic job."""

    def on_step(self, step: int, values: Mapping[str, Tensor]) -> None:
        """After optimizer step `step`, counted from 1.

        `values` are scalars of this rank, on its device: "train/loss", its parts as
        "train/loss_NAME", and "train/grad_norm"; {} for a step that was skipped. Reading one on a
        GPU waits for the step.
        """

    def on_log(self, metrics: Mapping[str, float], step: int) -> None:
        """After every `trainer.log_every` steps: means over these steps and all ranks."""

    def on_validation(self, metrics: Mapping[str, float], step: int) -> None:
        """After a validation, with its metrics, equal on all ranks."""

    def on_end(self) -> None:
        """At the end, also of a run that fails or is interrupted."""


def _check_arguments(cls: type, name: str) -> None:
    """Raise ConfigError for a hook that does not take what it is called with."""
    expected = list(signature(vars(Callback)[name]).parameters)
    try:
        signature(vars(cls)[name]).bind(*expected)
    except TypeError:
        raise ConfigError(
            f"{cls.__name__}.{name} is called as {name}({', '.join(expected[1:])}); "
            "give it these arguments."
        ) from None


class CallbackError(RuntimeError):
    """A callback has failed; the message names it, the cause is its own error."""


class CallbackList(Callback):
    """Calls several callbacks in their order; the first error ends the run.

    `on_end` reaches each of them even if one fails.
    """

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        self.callbacks = list(callbacks)

    def on_start(self, start: TrainingStart) -> None:
        for callback in self.callbacks:
            _call(callback.on_start, start)

    def on_step(self, step: int, values: Mapping[str, Tensor]) -> None:
        for callback in self.callbacks:
            _call(callback.on_step, step, values)

    def on_log(self, metrics: Mapping[str, float], step: int) -> None:
        for callback in self.callbacks:
            _call(callback.on_log, metrics, step)

    def on_validation(self, metrics: Mapping[str, float], step: int) -> None:
        for callback in self.callbacks:
            _call(callback.on_validation, metrics, step)

    def on_end(self) -> None:
        first: Exception | None = None
        for callback in self.callbacks:
            try:
                _call(callback.on_end)
            except Exception as error:
                first = first or error
        if first:
            raise first


def _call(method: Callable[..., None], *arguments: object) -> None:
    try:
        method(*arguments)
    except UserError:
        raise
    except Exception as error:
        name = method.__qualname__
        reason = describe_error(error)
        for values in arguments:
            if isinstance(error, KeyError) and isinstance(values, Mapping):
                reason += f"; there are {', '.join(values)}"
        raise CallbackError(f"the callback {name} failed: {reason}.") from error
