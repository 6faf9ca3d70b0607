"""The images of a data set into a few large tar files with an index, for training from object storage.

    python -m retina_dist.shards data=coco data.root=/data/coco output=/data/coco-shards
    python -m retina_dist.shards data=coco data.root=/data/coco output=az://container/coco shard_mb=512 verify=true
    python -m retina_dist.train data=shards data.root=/data/coco-shards

Takes the data settings of a training. The output is self-contained: annotations are copied too. Run an interrupted command
again to continue it.
"""

from __future__ import annotations

from retina_dist.config.commands import ShardsConfig
from retina_dist.config.entry_point import entry_point
from retina_dist.run.build import task_class


@entry_point("shards")
def main(config: ShardsConfig) -> None:
    """Write shards."""
    task_class(config).write_shards(config)


if __name__ == "__main__":
    main()
