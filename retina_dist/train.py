"""Train a detector or a classifier.

python -m retina_dist.train                                  the drawn shapes, the small model
python -m retina_dist.train data.root=/data/mine             your own data, in the format it has
python -m retina_dist.train experiment=torchvision_v1 data.root=/data/coco

torchrun --nproc-per-node 8 -m retina_dist.train …           8 GPUs, torch DDP
horovodrun -np 8 python -m retina_dist.train …               8 GPUs, Horovod (or by mpirun)
python -m retina_dist.train -m optimizer.lr=1e-3,1e-2 …      a sweep
"""

from retina_dist.config.entry_point import entry_point
from retina_dist.config.run_config import RunConfig
from retina_dist.run.assemble import train
from retina_dist.run.sweep import run_sweep_job


@entry_point("train", RunConfig, attempt=run_sweep_job)
def main(config: RunConfig) -> None:
    """Train."""
    train(config)


if __name__ == "__main__":
    main()
