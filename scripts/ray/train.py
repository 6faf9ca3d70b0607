#!/usr/bin/env python3
"""Train on a Ray cluster, by Ray Train.

  python scripts/ray/train.py --workers 2 -- data.root=/data/coco output_dir=/runs/1
  python scripts/ray/train.py --workers 8 --gpu -- experiment=torchvision_v1 output_dir=/runs/1

What follows -- are settings of retina_dist.train. Ray places the workers, starts all of them again
when one was lost, up to --max-failures times, and the training resumes from its last checkpoint
(resume=auto). Every node must see `output_dir` and the data under the same path, and have
retina_dist. Ray's own notes are kept in `output_dir`/ray.

Exit codes are those of retina_dist.train.
"""

import argparse
import os
import socket
import time
from pathlib import Path

from retina_dist.base.errors import ConfigError, PeerLost, UserError
from retina_dist.config.compose import load_config
from retina_dist.config.entry_point import reported_errors
from retina_dist.strategies.launchers import traces

# Variables of launchers that Ray itself may run under: its workers inherit them, but they describe
# other processes.
FOREIGN = traces(but_of="variables")


def main() -> None:
    """Read the command line and train; a UserError is one line on stderr."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--workers", type=int, required=True, metavar="N", help="processes, over all nodes"
    )
    parser.add_argument("--gpu", action="store_true", help="a GPU for each worker")
    parser.add_argument(
        "--cpus", type=int, default=1, metavar="N", help="CPU cores for each worker (%(default)s)"
    )
    parser.add_argument(
        "--max-failures",
        type=int,
        default=3,
        metavar="N",
        help="restarts, -1 for any number (%(default)s)",
    )
    parser.add_argument(
        "settings", nargs="*", metavar="KEY=VALUE", help="settings of retina_dist.train, after --"
    )
    arguments = parser.parse_args()
    with reported_errors(debug="debug=true" in arguments.settings):
        run(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Train, and return when that is done. Raises UserError as training does."""
    settings = settings_of(arguments)
    config = load_config("train", settings)
    if config.resume != "auto" or not config.output_dir:
        raise ConfigError(
            f"output_dir={config.output_dir or ''} resume={config.resume}: workers that Ray starts "
            "again find their checkpoints by output_dir and resume=auto; give an output_dir that "
            "every node sees, and no other resume."
        )
    try:
        from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
        from ray.train.torch import TorchTrainer
    except ImportError as error:
        raise ConfigError(
            f'Ray Train is not installed ({error}); pip install "retina-dist[ray]".'
        ) from error
    os.environ.setdefault(
        "RAY_TRAIN_ENABLE_PRINT_PATCH", "0"
    )  # Ray's print would not be silenced around pycocotools
    resources = {"CPU": arguments.cpus}
    if arguments.gpu:
        resources["GPU"] = 1
    trainer = TorchTrainer(
        work,
        train_loop_config={"settings": settings, "folder": os.getcwd()},
        torch_config=_own_group(),
        scaling_config=ScalingConfig(
            num_workers=arguments.workers,
            use_gpu=arguments.gpu,
            resources_per_worker=resources,
        ),
        run_config=RunConfig(
            storage_path=str(Path(config.output_dir, "ray").absolute()),
            failure_config=FailureConfig(max_failures=arguments.max_failures),
        ),
    )
    try:
        trainer.fit()
    except WorkerGroupError as error:
        causes = [e for e in error.worker_failures.values() if isinstance(e, UserError)]
        if not causes:
            raise
        raise min(causes, key=lambda cause: isinstance(cause, PeerLost)) from error


def settings_of(arguments: argparse.Namespace) -> list[str]:
    """The settings of the training; the user's own come last and so count."""
    settings = ["resume=auto"]
    if arguments.gpu:
        settings.append("strategy.device=cuda")
    return [*settings, *arguments.settings]


def work(job: dict) -> None:
    """What each worker does: set torchrun's environment variables, and train."""
    import ray.train
    import ray.util
    from ray.train.collective import broadcast_from_rank_zero

    from retina_dist.run.assemble import train

    context = ray.train.get_context()
    rank = context.get_world_rank()
    address, port = broadcast_from_rank_zero(
        (ray.util.get_node_ip_address(), _free_port()) if rank == 0 else None
    )
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        del os.environ[name]
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }
    try:
        # Ray has changed it; relative paths mean what they mean where the command was typed.
        os.chdir(job["folder"])
    except OSError as error:
        raise ConfigError(
            f"{socket.gethostname()} has no folder {job['folder']} ({error}); "
            "start where every node has one, such as /tmp."
        ) from error
    try:
        ray.train.report(train(load_config("train", job["settings"])))
    except PeerLost:
        # Ray polls every two seconds and ends all workers at the first error: let the rank with the
        # cause report first.
        time.sleep(5.0)
        raise


def _own_group():
    """A TorchConfig that leaves the process group to retina_dist, whose DDPStrategy makes
    its own.
    """
    from ray.train.backend import Backend
    from ray.train.torch import TorchConfig

    class Bare(Backend):
        share_cuda_visible_devices = (
            True  # each worker sees its node's GPUs and takes that of its local rank
        )

    class OwnGroup(TorchConfig):
        @property
        def backend_cls(self):
            return Bare

    return OwnGroup()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return free.getsockname()[1]


if __name__ == "__main__":
    main()
