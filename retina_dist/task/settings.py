"""The settings of the commands on a checkpoint, a data set or results, for every task."""

from dataclasses import dataclass
from pathlib import Path

from retina_dist.base.errors import ConfigError
from retina_dist.base.settings import MISSING, setting
from retina_dist.base.text import as_override
from retina_dist.config.run_config import OfCheckpoint, RunConfig
from retina_dist.data.settings import MAX_PIXELS
from retina_dist.strategies.launch_environment import detect_launch


@dataclass
class DetectionLimits(OfCheckpoint):
    """Which of its candidates a detector gives; null is what the checkpoint says."""

    score_threshold: float | None = setting(
        None, "objects score more; null: the checkpoint's, as in the next two", at_least=0, below=1
    )
    nms_threshold: float | None = setting(
        None, "IoU with a better object of the class, at most", fraction=True
    )
    detections_per_image: int | None = setting(None, "at most", at_least=1, at_most=10**5)

    def limits(self) -> tuple[float | None, float | None, int | None]:
        """The arguments of `Detector.set_limits`."""
        return self.score_threshold, self.nms_threshold, self.detections_per_image


@dataclass
class PredictorConfig(DetectionLimits):
    """The settings of every command that runs a checkpoint's model on images."""

    tile: int | None = setting(
        None, "px: detect in windows of this size too, for small objects", at_least=32
    )
    tile_overlap: float | None = setting(
        None, "share of a window that its neighbour repeats; null: 0.2", at_least=0, below=0.9
    )
    device: str = "auto"
    precision: str = setting("fp32", choices=("fp32", "tf32", "bf16", "fp16"))
    debug: bool = False

    def check(self) -> None:
        """Raise ConfigError for an overlap of windows without windows."""
        if self.tile_overlap is not None and self.tile is None:
            raise ConfigError(
                f"tile_overlap={self.tile_overlap} has no effect without tile; give tile=640."
            )


@dataclass
class EvaluateConfig(PredictorConfig):
    """`python -m retina_dist.evaluate`."""

    checkpoint: str | None = setting(
        None, "a run folder, whose best.pt is taken, or a .pt file ..."
    )
    results: str | None = setting(None, "... or a COCO results json")
    annotations: str | None = setting(None, "null: the checkpoint's validation set")
    images: str | None = None
    root: str | None = setting(None, "data.root, if the checkpoint's was moved or is behind a URL")
    split: str | None = setting(
        None, "null: what the checkpoint was validated on", choices=(None, "val", "test")
    )
    box_format: str | None = setting(
        None, "data.box_format of `annotations`", choices=(None, "xywh", "xyxy")
    )
    output_dir: str | None = setting(
        None, "a folder for metrics and their report; null: none", writes="folder"
    )
    max_detections: int | None = setting(
        None,
        "of a class on an image, in the tables and in AP@N beside COCO's numbers; null: COCO's 100",
        at_least=1,
    )
    calibrate: bool = setting(
        False, "fit a temperature of the scores to these images, and write it into the checkpoint"
    )
    batch_size: int = setting(8, at_least=1)
    num_workers: int = setting(2, at_least=0)
    certify: list[str] | None = setting(
        None,
        "exported files: compare them, the server and tiles with the checkpoint, and write "
        "certificate.json into output_dir, or beside the first file",
        remedy="write certify=[model.onnx,model.pt2]",
    )
    num_images: int | None = setting(None, "of a certificate, the first; null: all", at_least=1)

    def check(self) -> None:
        """Raise ConfigError where settings exclude each other."""
        super().check()
        if self.certify and detect_launch().world_size > 1:
            raise ConfigError("certify is for one process; leave out the launcher.")
        if self.certify and (self.results or self.calibrate or self.max_detections):
            raise ConfigError(
                "certify compares a checkpoint with files that were exported from it; leave out "
                "results, calibrate and max_detections."
            )
        if self.num_images and not self.certify:
            raise ConfigError(
                f"num_images={self.num_images} has no effect without certify: "
                "evaluate takes all images; leave it out."
            )


@dataclass
class PredictConfig(PredictorConfig):
    """`python -m retina_dist.predict`."""

    checkpoint: str = setting(MISSING, "a run folder, whose best.pt is taken, or a .pt file")
    input: str = setting(
        MISSING, "file, folder or glob", remedy='give one file, a folder, or "photos/*.jpg"'
    )
    output_dir: str | None = setting(
        None, "a folder; null: predictions, predictions-2, ...", writes="folder"
    )
    format: str = setting(
        "coco", "for a tool too (detectors)", choices=("coco", "fiftyone", "label_studio", "cvat")
    )
    max_pixels: int = setting(MAX_PIXELS, "a file whose header claims more is left out", at_least=1)


@dataclass
class ExportConfig(DetectionLimits):
    """`python -m retina_dist.export`."""

    checkpoint: str = setting(MISSING, "a run folder, whose best.pt is taken, or a .pt file")
    output: str = setting(
        MISSING, "FILE.onnx, FILE.pt2 (torch.export), or FILE.pt (a state_dict)", writes="file"
    )
    size: list[int] | None = setting(
        None,
        "height and width in px of the only input taken; null: any",
        remedy="write size=[640,640] for 640 px a side, or size=[HEIGHT,WIDTH]",
    )
    images: str | None = setting(
        None, "a file, folder or glob of images to compare on; null: drawn shapes"
    )
    num_images: int = setting(3, "images to compare on", at_least=1, at_most=1000)
    box_tolerance: float = setting(
        0.1, "px; a larger difference to PyTorch is an error", at_least=0
    )
    score_tolerance: float = setting(1e-3, at_least=0)
    intended_use: str | None = setting(None, "for the model card; null: a general sentence")
    debug: bool = False


@dataclass
class DoctorConfig(RunConfig):
    """`python -m retina_dist.doctor`: takes the settings of a training.

    It looks at `data` and `model`, or at the machines.
    """

    images: str = setting(
        "decode", "header: not decoded; none: not opened", choices=("decode", "header", "none")
    )
    cluster: bool = setting(
        False, "instead check machines, network and equal data, under the training's launcher"
    )
    expect_gb_s: float | None = setting(
        None, "cluster: least bus bandwidth of 64 MB; less is an error", above=0
    )
    checkpoint: str | None = setting(
        None, "instead rank the labels that this detector doubts, into output_dir"
    )
    root: str | None = setting(
        None, "data.root, if that of `checkpoint` was moved or is behind a URL"
    )
    output: str | None = setting(None, "a JSON file", writes="file")
    sheets: str | None = setting(
        None, "detection: a folder for train.jpg and val.jpg with boxes", writes="folder"
    )

    def check(self) -> None:
        """Raise ConfigError for settings that would be ignored, with `checkpoint` or without."""
        super().check()
        if self.root and not self.checkpoint:
            raise ConfigError(
                f"root={self.root} is read with checkpoint only; "
                f"write {as_override('data.root', self.root)}."
            )
        if self.checkpoint and (self.cluster or self.sheets or self.images != "decode"):
            raise ConfigError(
                f"checkpoint={self.checkpoint} ranks labels alone; "
                "leave cluster, images and sheets out."
            )
        root = self.data.root
        is_drawn = vars(self.data).get("shapes") is not None
        if self.checkpoint and root and not is_drawn:
            raise ConfigError(
                f"data.root={root} is not read with checkpoint={self.checkpoint}; "
                f"write {as_override('root', root)}."
            )


@dataclass
class ShardsConfig(RunConfig):
    """`python -m retina_dist.shards`: the settings of a training, and where `data` is written."""

    output: str = setting(MISSING, "a folder or a URL", writes="folder or URL")
    shard_mb: int = setting(256, "MiB of a tar file, made in memory", at_least=1, at_most=1024)

    def check(self) -> None:
        """Raise ConfigError for a dry run, which there is none of."""
        super().check()
        if self.dry_run:
            raise ConfigError("shards are written at once; leave dry_run=true out.")


@dataclass
class ReportConfig:
    """`python -m retina_dist.report`."""

    run: str = setting(
        MISSING,
        "the folder of a run, an evaluation or a sweep",
        remedy="give one, and another by the key other",
    )
    other: str | None = setting(
        None, "another run, beside it; each may also be a COCO results json"
    )
    annotations: str | None = setting(None, "the ground truth of COCO results, a json")
    output: str | None = setting(
        None, "null: report.html in `run`, compared_OTHER.html with `other`", writes="file"
    )
    debug: bool = False

    def check(self) -> None:
        """Raise ConfigError for another file than HTML, and for annotations without results."""
        if self.output and not self.output.endswith(".html"):
            raise ConfigError(f"output={self.output} is not HTML, as a report is; give FILE.html.")
        if self.annotations and not self.other:
            raise ConfigError(
                f"annotations={self.annotations} is read where two results are compared; "
                "leave it out."
            )
        run = Path(self.run)
        other = Path(self.other or "")
        if self.annotations and run.is_dir() and other.is_dir():
            raise ConfigError(
                f"annotations={self.annotations} is for a COCO results json, not for two folders; "
                "leave it out."
            )
