"""Pack the images of a data set into a few large tar files with an index.

    python -m retina_dist.shards data=coco data.root=/data/coco output=/data/coco-shards
    python -m retina_dist.shards data=coco data.root=/data/coco output=az://container/coco
    python -m retina_dist.train data=shards data.root=/data/coco-shards

For training from object storage. Takes the data settings of a training. The output is
self-contained: it has the annotations too.
"""

from retina_dist.config.entry_point import entry_point
from retina_dist.config.run_config import command_of_task, task_class
from retina_dist.task.settings import ShardsConfig


@entry_point("shards", ShardsConfig)
def main(config: ShardsConfig) -> None:
    """Write shards."""
    command_of_task(task_class(config), "write_shards")(config)


if __name__ == "__main__":
    main()
