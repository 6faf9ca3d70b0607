"""Digests of short trainings with virtual ranks, to compare over processes and backends."""

from dataclasses import replace

from retina_dist.config.run_config import RunConfig
from retina_dist.engine.checkpoint.store import load_checkpoint
from retina_dist.engine.replicas import digest_of
from retina_dist.run.assemble import fit
from retina_dist.tracking.digest import read_digests, sha256_of

NORMS = ("frozen_bn", "bn")
STATE = ("model", "optimizer", "ema")

Digests = dict[str, str]  # SHA-256 by what was trained


def train_digests(config: RunConfig, steps: int, virtual_ranks: int, place: str) -> Digests:
    """Train in fp32 with each norm, with clipping, averaged weights and a warm-up over half of the
    steps, and validate after each epoch.

    Returns the digests of weights, optimizer and average, and of the metrics' cells of digest.csv.
    Every rank of a job calls it; the runs are written to `place`-NORM. Raises ConfigError for
    settings that virtual ranks exclude.
    """
    trainer = replace(
        config.trainer,
        virtual_ranks=virtual_ranks,
        num_threads=config.trainer.num_threads or 1,
        gradient_clip=config.trainer.gradient_clip or 1.0,
        ema_decay=config.trainer.ema_decay or 0.9,
        max_duration=f"{steps}steps",
        log_every=1,
    )
    schedule = replace(config.schedule, warmup=f"{steps // 2}steps")
    config = replace(config, trainer=trainer, schedule=schedule)
    found: Digests = {}
    norms = [{"norm": norm} for norm in NORMS] if config.model.has_norm() else [{}]
    for changes in norms:
        norm = changes.get("norm", "")
        model = replace(config.model, **changes)
        run = replace(config, model=model, output_dir=f"{place}-{norm}")
        run.check()
        _, folder = fit(run)
        assert folder is not None, "no dry run"
        checkpoint = load_checkpoint(folder / "checkpoints" / "last.pt")
        state = {part: checkpoint[part] for part in STATE}
        metrics = [row.metrics for row in read_digests(folder) if not row.is_start]
        found[f"{norm} weights".strip()] = digest_of(state)
        found[f"{norm} metrics".strip()] = sha256_of(metrics)
    return found
