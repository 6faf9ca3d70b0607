"""Settings of the trainer."""

from __future__ import annotations

from dataclasses import dataclass

from retina_dist.settings import MISSING, KnownArguments, setting


@dataclass
class TrainerConfig(KnownArguments):
    """Length, rhythm and numerics; durations as 12epochs, 1000steps or 5000images."""

    max_duration: str = setting(
        MISSING,
        "length of the training: 12epochs, 90ksteps, 500images; auto: 12 epochs, more of fewer than 2,000 steps",
    )
    stop_after: str | None = setting(None, "end early with a checkpoint; resume= continues")
    validate_every: str = setting("1epoch", "0steps: never")
    checkpoint_every: str = setting("1epoch", "0steps: only at the end")
    checkpoint_minutes: float | None = setting(None, "also after so many minutes", above=0, at_most=10**6)
    log_every: int = setting(10, "steps", at_least=1)
    accumulate: int | str = setting(
        1,
        "micro-batches of one optimizer step on each process; auto: as few as fit into the GPU's memory",
        at_least=1,
        at_most=10**6,
        words=("auto",),
    )
    precision: str = setting("fp32", "tf32: a GPU rounds matrix inputs", choices=("fp32", "tf32", "bf16", "fp16"))
    gradient_clip: float | None = setting(None, "largest norm or value", above=0, at_most=10**9, null_is_off=True)
    gradient_clip_algorithm: str = setting("global_norm", choices=("global_norm", "tensor_norm", "value"))
    ema_decay: float | None = setting(
        None, "e.g. 0.999; validation and best.pt use the average", above=0, below=1, fraction=True, null_is_off=True
    )
    channels_last: bool = setting(False, "memory format NHWC, which tensor cores prefer")
    compile: bool = setting(False, "torch.compile; the first steps of each canvas take minutes")
    deterministic: bool = setting(False, "only operations that give the same bits each time; slower on GPUs")
    num_threads: int | None = setting(None, "torch threads; null: torch's own choice", at_least=1, at_most=10**4)
    monitor: str | None = setting(None, "the metric of the best checkpoint; null: the task's own")
    monitor_mode: str | None = setting(
        None, "null: min for a loss, error, mae, mse, rmse, nll or perplexity, else max", choices=(None, "max", "min")
    )
    patience: int | None = setting(None, "stop after so many validations without a better monitor", at_least=1)
    max_nonfinite_steps: int = setting(5, "steps in a row with a loss of inf or NaN that are skipped", at_least=0)
    check_replicas_every: str = setting("1epoch", "compare the ranks' weights bit by bit; 0steps: never")
    checkpoint_dir: str | None = setting(None, "a folder, or a URL such as az://container/run; null: checkpoints/")
    keep_last: int = setting(1, "checkpoints kept", at_least=1)
    save_top_k: int = setting(1, "best checkpoints kept", at_least=0)
    profile: str | None = setting(None, "so many steps, e.g. 3steps, traced by torch.profiler into the run's profile/")
    fast_dev_run: bool = setting(False, "two steps, two validation batches: does everything run?")
    overfit_batches: int = setting(0, "train and validate on so many train batches", at_least=0, at_most=10**6)

    @property
    def micro_batches(self) -> int:
        """`accumulate` as a number: 1 while it is auto, which a run replaces before it builds its data."""
        return 1 if isinstance(self.accumulate, str) else self.accumulate
