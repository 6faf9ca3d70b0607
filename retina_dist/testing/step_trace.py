"""What one optimizer step computes, as digests in the order in which it happens."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from retina_dist.base.errors import CollectiveError
from retina_dist.base.text import escape
from retina_dist.engine.phase_timer import PhaseTimer
from retina_dist.engine.replicas import checksum, leaves_of
from retina_dist.engine.train_step import TrainStep
from retina_dist.tracking.callbacks import Callback, TrainingStart

# The stages of a step, and where to look when one differs while all before it are equal.
STAGES = {
    "start": "The state before the step differs: compare seed, model.weights and the checkpoint.",
    "data order": (
        "The step has other images, or deals them out in another way: compare seed, the "
        "list of images, data.batch_size, data.shuffle and the layout, which "
        "trainer.virtual_ranks makes irrelevant."
    ),
    "pixels": (
        "The same images have other pixels: compare the files, the augmentation, and the "
        "versions of Pillow and torchvision."
    ),
    "targets": (
        "The same images have other labels or weights: compare the annotations and the "
        "augmentation."
    ),
    "forward": (
        "Equal weights and inputs give this module another output: compare its code and "
        "settings, torch's version and the number of threads."
    ),
    "loss": (
        "Equal outputs of the layers give another loss: compare the code and the settings "
        "of the loss."
    ),
    "gradient": (
        "The backward pass differs from this parameter on: compare the code behind it and "
        "torch's version, or give trainer.deterministic=true."
    ),
    "reduction": (
        "Equal gradients have another sum over micro-batches and ranks: compare launcher, "
        "backend, layout and the settings of strategy."
    ),
    "clipping": (
        "Equal gradients are scaled or clipped in another way: compare "
        "trainer.gradient_clip and gradient_clip_algorithm."
    ),
    "optimizer": (
        "Equal gradients change the weights in another way: compare optimizer, schedule "
        "and torch's version."
    ),
    "buffers": "What the forward pass leaves behind differs: compare model.norm and the layout.",
    "average": "Equal weights give another average: compare trainer.ema_decay.",
}
OF_BATCH = {"image_ids": "data order", "images": "pixels"}  # else targets

Digests = dict[str, str]  # by name, in the order in which they were made
Stages = dict[str, dict[str, Digests]]  # by stage and by place: a micro-batch, or a rank


class Traced(CollectiveError):
    """The step is traced, and the training ends with it."""


class StepTracer(Callback):
    """Digests of what step `step` computes on all ranks, and of the state after each step before.

    It raises `Traced` after the step, on every rank. Modules are in the order in which their
    forward passes end, parameters in that of the backward pass. With `trainer.compile` modules have
    no digests, since hooks in them would change what is compiled.
    """

    def __init__(self, step: int) -> None:
        self.step = step  # counted from 1
        self.began_at = 0
        self.states: Digests = {}  # by step
        self.stages: Stages = {stage: {} for stage in STAGES}
        self._micro_batch = -1

    def on_start(self, start: TrainingStart) -> None:
        assert isinstance(start.train_step, TrainStep), "a training of this package"
        self._train_step = start.train_step
        self._state = start.train_step.state
        self._rank = f"rank {start.rank}"
        self.began_at = start.step
        self._listen()

    def on_step(self, step: int, values: object) -> None:
        kept = self._kept()
        if step == self.step:
            self._record("buffers", self._rank, dict(self._state.model.named_buffers()))
            self._record("average", self._rank, kept.get("ema"))
            for stages in self._train_step.strategy.gather_objects(self.stages):
                for stage, places in stages.items():
                    self.stages[stage] |= places
            raise Traced(f"step {step} is traced.")
        digests = [fingerprint_of(value) for _, value in leaves_of(kept)]
        self.states[str(step)] = hashlib.sha256("\n".join(digests).encode()).hexdigest()

    def _kept(self) -> dict[str, object]:
        parts = self._state.replicated()
        return {name: parts[name] for name in ("model", "optimizer", "ema") if name in parts}

    def _listen(self) -> None:
        """Be called in every step: which step a resume begins at, only the main rank knows yet."""
        train_step = self._train_step
        model = self._state.model
        train_step.timer = _Marks(partial(self._on_gradients, "reduction"), train_step.timer)
        train_step.net.register_forward_pre_hook(self._on_batch)
        if not train_step.settings.compile:
            for name, module in model.named_modules():
                if name:
                    module.register_forward_hook(partial(self._on_output, "forward", name))
        train_step.net.register_forward_hook(partial(self._on_output, "loss", ""))
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.register_hook(partial(self._on_gradient, name))
        self._state.optimizer.register_step_pre_hook(partial(self._on_gradients, "clipping"))
        self._state.optimizer.register_step_post_hook(self._on_updated)

    def _on_batch(self, net: nn.Module, inputs: tuple[object, ...]) -> None:
        if self._state.step < self.step - 1:
            return
        if self._micro_batch < 0:
            self._record("start", self._rank, self._kept())
        self._micro_batch += 1
        for name, value in leaves_of(inputs[0]):
            self._record(OF_BATCH.get(name, "targets"), self._place, value, name)

    def _on_output(
        self, stage: str, name: str, module: nn.Module, inputs: object, output: object
    ) -> None:
        self._record(stage, self._place, output, name)

    def _on_gradient(self, name: str, gradient: Tensor) -> None:
        self._record("gradient", self._place, gradient, name)

    def _on_updated(self, *_: object) -> None:
        parts = self._state.replicated()
        changed = {name: parts[name] for name in ("groups", "optimizer")}
        changed["weights"] = dict(self._state.model.named_parameters())
        self._record("optimizer", self._rank, changed)

    def _on_gradients(self, stage: str, *_: object) -> None:
        """In the order of the backward pass, about the reverse of the model's."""
        for name, parameter in reversed(list(self._state.model.named_parameters())):
            if parameter.grad is not None:
                self._record(stage, self._rank, parameter.grad, name)

    @property
    def _place(self) -> str:
        """The micro-batch, by a name that does not depend on the layout where it can."""
        if self._train_step.plan.virtual_ranks:
            rank = self._train_step.strategy.rank
            return f"virtual rank {rank * self._train_step.shards + self._micro_batch}"
        return f"{self._rank}, micro-batch {self._micro_batch}"

    def _record(self, stage: str, place: str, tree: object, name: str = "") -> None:
        if self._state.step < self.step - 1:
            return
        digests = self.stages[stage].setdefault(place, {})
        for leaf, value in leaves_of(tree, name):
            key = leaf
            calls = 1
            while key in digests:
                calls += 1
                key = f"{leaf}, call {calls}"
            digests[key] = fingerprint_of(value)


class _Marks(PhaseTimer):
    """A running timer that calls a function where the gradients are reduced and not yet clipped."""

    def __init__(self, on_reduced: Callable[[], None], timer: PhaseTimer) -> None:
        super().__init__(timer.device)
        self.on_reduced = on_reduced
        self.start()

    def mark(self, part: str) -> None:
        super().mark(part)
        if part == "communication":
            self.on_reduced()


def fingerprint_of(value: object) -> str:
    """Type, shape and 64 bits of a tensor's bits; the text of another value."""
    if not isinstance(value, Tensor):
        return repr(value)
    bits = int(checksum(value)) & 0xFFFFFFFFFFFFFFFF
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} {bits:016x}"


@dataclass(frozen=True)
class Difference:
    """The first digest of a step that differs between two runs; "" where one has none."""

    stage: str
    place: str
    name: str
    a: str
    b: str

    def __str__(self) -> str:
        stages = list(STAGES)
        equal = stages[: stages.index(self.stage)]
        before = "it begins with another state"
        if equal:
            before = f"equal in {', '.join(equal)}"
        return (
            f"{before}\n"
            f"differs in {self.stage}: {escape(self.name)} of {self.place}\n"
            f"  a  {escape(self.a, 100)}\n"
            f"  b  {escape(self.b, 100)}\n"
            f"{STAGES[self.stage]}"
        )


def first_difference(a: Stages, b: Stages) -> Difference | None:
    """What differs first; None where all digests are equal.

    Places that only one run has, of another layout, are left out, unless it has the whole stage.
    """
    for stage in STAGES:
        found: list[tuple[int, int, str, str]] = []
        for order, place in enumerate(a[stage] | b[stage]):
            if a[stage] and b[stage] and not (place in a[stage] and place in b[stage]):
                continue
            mine = a[stage].get(place, {})
            theirs = b[stage].get(place, {})
            for number, name in enumerate(mine | theirs):
                if mine.get(name) != theirs.get(name):
                    found.append((number, order, place, name))
                    break
        if found:
            _, _, place, name = min(found)
            digests = [side[stage].get(place, {}).get(name, "") for side in (a, b)]
            return Difference(stage, place, name, *digests)
    return None
