"""Is the data set sound and, for detection, do the anchors fit it?

    python -m retina_dist.doctor data.root=/data/mine
    python -m retina_dist.doctor experiment=bccd data.root=/data/bccd output=report.json
    python -m retina_dist.doctor data.root=/data/mine sheets=sheets      images with boxes drawn
    python -m retina_dist.doctor checkpoint=runs/bccd output_dir=suspicious
    torchrun --nnodes 2 --nproc-per-node 8 ... -m retina_dist.doctor cluster=true \\
        experiment=bccd data.root=/data/bccd

Takes every argument of `retina_dist.train`, so that it examines what will be trained on. With
`checkpoint` it ranks the labels that this detector doubts. With cluster=true, under the launcher of
the training, it checks machines and network and that all hosts read the same data; it decodes no
image. Exit code 1 if there are errors, 2 if the settings or the annotation files cannot be used.
"""

import sys

from retina_dist.config.entry_point import entry_point
from retina_dist.config.run_config import command_of_task, task_class
from retina_dist.task.settings import DoctorConfig
from retina_dist.testing.preflight import check_cluster


@entry_point("doctor", DoctorConfig)
def main(config: DoctorConfig) -> None:
    """Print and write the report; exit with 1 if it has errors."""
    if config.cluster:
        errors = check_cluster(config, config.expect_gb_s, config.output)
    else:
        command = "examine_labels" if config.checkpoint else "examine"
        report = command_of_task(task_class(config), command)(config)
        report.show(config.output)
        errors = report.count("error")
    if errors:
        sys.exit(1)


if __name__ == "__main__":
    main()
