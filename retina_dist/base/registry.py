"""What can be chosen: a table for each family of parts, the package's own and others alike.

An entry is the dotted name of a class, which is imported when it is first looked up. The class has
its dataclass of settings as `settings` and is made from an instance of it. A class from outside is
added by `register`, which a command line's `_target_`, a plugin or a script calls; what a file of a
run names is only looked up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from retina_dist.base.arguments import KnownArguments
from retina_dist.base.errors import ConfigError
from retina_dist.base.settings import Content, Limits

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Family:
    """One kind of part.

    Args:
        section: the section of the settings that chooses, such as "optimizer".
        contract: the base of the classes.
        settings: the base of their settings; "" for a task, whose settings are sections themselves.
        key: the setting that names an entry; "" where the type of the settings tells.
        entries: the package's own classes by name.
    """

    section: str
    contract: str
    settings: str
    key: str = "name"
    entries: Mapping[str, str] = field(default_factory=dict)


FAMILIES = {
    "task": Family(
        section="task",
        contract="retina_dist.engine.task.Task",
        settings="",
        entries={
            "detection": "retina_dist.detection.task.DetectionTask",
            "classification": "retina_dist.classification.task.ClassificationTask",
        },
    ),
    "reader": Family(
        section="data",
        contract="retina_dist.detection.readers.formats.AnnotationReader",
        settings="retina_dist.detection.settings.DetectionData",
        key="format",
        entries={  # in the order of recognition
            "auto": "retina_dist.detection.readers.formats.AutoReader",
            "shards": "retina_dist.detection.readers.shards.ShardReader",
            "coco": "retina_dist.detection.readers.coco.CocoReader",
            "yolo": "retina_dist.detection.readers.yolo.YoloReader",
            "voc": "retina_dist.detection.readers.voc.VocReader",
            "cvat": "retina_dist.detection.readers.cvat.CvatReader",
            "labelme": "retina_dist.detection.readers.labelme.LabelMeReader",
            "openimages": "retina_dist.detection.readers.openimages.OpenImagesReader",
            "csv": "retina_dist.detection.readers.csv_tables.CsvReader",
            "automl": "retina_dist.detection.readers.json_tables.AutoMlReader",
            "sagemaker": "retina_dist.detection.readers.json_tables.SageMakerReader",
            "huggingface": "retina_dist.detection.readers.json_tables.HuggingFaceReader",
            "createml": "retina_dist.detection.readers.json_tables.CreateMlReader",
            "via": "retina_dist.detection.readers.json_tables.ViaReader",
            "label_studio": "retina_dist.detection.readers.json_tables.LabelStudioReader",
        },
    ),
    "detector": Family(
        section="model",
        contract="retina_dist.detection.model.build.DetectionModel",
        settings="retina_dist.detection.settings.DetectorSettings",
        key="",
        entries={"retinanet": "retina_dist.detection.model.retinanet.RetinaNet"},
    ),
    "optimizer": Family(
        section="optimizer",
        contract="torch.optim.Optimizer",
        settings="retina_dist.optim.settings.OptimizerSettings",
        entries={
            "sgd": "retina_dist.optim.optimizer.SGD",
            "adamw": "retina_dist.optim.optimizer.AdamW",
            "adam": "retina_dist.optim.optimizer.Adam",
        },
    ),
    "schedule": Family(
        section="schedule",
        contract="retina_dist.optim.learning_rate.Decay",
        settings="retina_dist.optim.settings.ScheduleSettings",
        entries={
            "multistep": "retina_dist.optim.learning_rate.MultiStep",
            "cosine": "retina_dist.optim.learning_rate.Cosine",
            "constant": "retina_dist.optim.learning_rate.Constant",
        },
    ),
    "augmentation": Family(
        section="augmentation",
        contract="collections.abc.Callable",
        settings="retina_dist.config.run_config.AugmentationConfig",
        entries={
            "none": "retina_dist.config.run_config.NoAugmentation",
            "function": "retina_dist.data.augmentation.FunctionAugmentation",
        },
    ),
    "strategy": Family(
        section="strategy",
        contract="retina_dist.strategies.base.DistributedStrategy",
        settings="retina_dist.strategies.settings.StrategySettings",
        entries={
            "auto": "retina_dist.strategies.select.AutoStrategy",
            "single": "retina_dist.strategies.single_device.SingleDeviceStrategy",
            "ddp": "retina_dist.strategies.ddp.DDPStrategy",
            "horovod": "retina_dist.strategies.horovod.HorovodStrategy",
        },
    ),
    "logger": Family(
        section="logging",
        contract="retina_dist.tracking.loggers.MetricLogger",
        settings="retina_dist.tracking.settings.LoggingConfig",
        key="",
        entries={
            "csv": "retina_dist.tracking.loggers.CsvLogger",
            "tensorboard": "retina_dist.tracking.loggers.TensorBoardLogger",
            "mlflow": "retina_dist.tracking.mlflow.MlflowRun",
        },
    ),
}

_named: dict[str, dict[str, type | str]] = {name: {**f.entries} for name, f in FAMILIES.items()}
_from_outside: dict[type, type] = {}  # by the type of their settings; tasks by themselves


def names(family: str) -> tuple[str, ...]:
    """The names of a family's entries: the package's own, then registered ones."""
    return tuple(_named[family])


def lookup(family: str, name: object) -> type[Any]:
    """The class of an entry, imported when it is first looked up.

    Raises ConfigError for an unknown name.
    """
    entry = _named[family].get(str(name))
    if entry is None:
        kind = FAMILIES[family]
        known = Limits(choices=names(family))
        raise ConfigError(known.problem(f"{kind.section}.{kind.key}", name))
    if isinstance(entry, str):
        return _loaded(entry)
    return entry


def register(family: str, target: type | str, name: str = "") -> type[Any]:
    """Add a class from outside the package to a family, and return it.

    Args:
        family: a key of `FAMILIES`, such as "schedule".
        target: the class, or its dotted name.
        name: the value of the family's key that chooses it: "triangle" for schedule=triangle.

    Raises ConfigError unless the class keeps the family's contract and has settings of its own.
    """
    kind = FAMILIES[family]
    dotted = target if isinstance(target, str) else _dotted(target)
    label = f"{kind.section}._target_={dotted}"
    if name in kind.entries and kind.key == "name":
        raise ConfigError(f"{label} is named {name}, as one of the package; give it another name.")

    found = target
    if isinstance(target, str):
        try:
            found = _loaded(target)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"{label} cannot be imported ({error}); put its folder on PYTHONPATH."
            ) from error
    contract = _loaded(kind.contract)
    if not (isinstance(found, type) and issubclass(found, contract)):
        raise ConfigError(
            f"{label} is not a class of the kind {contract.__name__}; name one, or leave it out "
            f"and give {kind.section}=NAME of {', '.join(kind.entries)}."
        )

    _check_settings(kind, found, label)
    _from_outside[vars(found)["settings"] if kind.settings else found] = found
    if name and kind.key == "name":
        _named[family][name] = found
    return found


def _check_settings(kind: Family, found: type, label: str) -> None:
    if not kind.settings:
        if not is_dataclass(getattr(found, "settings", None)):
            raise ConfigError(f"{label} has no settings; give it a dataclass as `settings`.")
        return

    base = _loaded(kind.settings)
    settings = vars(found).get("settings")
    is_below = isinstance(settings, type) and issubclass(settings, base)
    if not is_below or settings.__module__.startswith("retina_dist."):
        raise ConfigError(
            f"{label} has no settings of its own; give it a dataclass below {base.__name__} "
            f"as `settings`, or leave it out and give {kind.section}=NAME of "
            f"{', '.join(kind.entries)}."
        )


def class_of(settings: KnownArguments) -> type[Any]:
    """The class that an object of settings is for: by its type, else by the entry that it names."""
    if type(settings) in _from_outside:
        return _from_outside[type(settings)]
    kind = FAMILIES[settings.family]
    if kind.key:
        return lookup(settings.family, getattr(settings, kind.key))
    for name in names(settings.family):
        kind_of_entry = lookup(settings.family, name)
        if kind_of_entry.settings is type(settings):
            return kind_of_entry
    raise ConfigError(f"{type(settings).__name__} is not of an entry; register its class first.")


def family_of(kind: type) -> str:
    """The family whose settings a class has, "" where nothing is chosen by them."""
    return kind.family if issubclass(kind, KnownArguments) else ""


def target_of(settings: object) -> str | None:
    """The dotted name of the class from outside that settings are for; None for the package's."""
    found = _from_outside.get(type(settings))
    if isinstance(settings, KnownArguments) and settings.family == "task":
        found = _from_outside.get(class_of(settings))
    if found is None:
        return None
    return _dotted(found)


def settings_type(section: object, default: type) -> type[Any]:
    """The dataclass of a section: by its `_target_`, else by its key, else `default`.

    `section` is the section's content as the command line composed it: a class that `_target_`
    names is imported and registered.
    """
    family = family_of(default)
    if family in ("", "task") or not isinstance(section, Mapping):
        return default
    if names_class(section):
        return register(family, section["_target_"]).settings
    key = FAMILIES[family].key
    if not key:
        return default
    name = section.get(key)
    if name is None:
        if not issubclass(default, Entry):
            return default
        name = default.default_entry
    return lookup(family, name).settings


def names_class(section: object) -> bool:
    """Whether a section of the settings names a class, which is from outside the package."""
    return isinstance(section, Mapping) and "_target_" in section


def readers_of(family: str, key: str) -> list[str]:
    """The entries of a family whose settings have `key`."""
    if not FAMILIES[family].settings:
        return []
    return [
        name for name in names(family) if key in lookup(family, name).settings.__dataclass_fields__
    ]


def as_dict(config: DataclassInstance) -> Content:
    """Settings as plain values, with the name of each class from outside as `_target_`."""
    content: Content = asdict(config)
    for name, section in vars(config).items():
        if not is_dataclass(section) or name not in content:
            continue
        target = target_of(section)
        if target is not None:
            content[name] = {"_target_": target, **content[name]}
    return content


class Entry(KnownArguments):
    """Base of a family's settings.

    Calling it makes the settings of the entry that `name` names, `default_entry` without one.
    """

    default_entry: ClassVar[str]
    name: str

    @classmethod
    def public_name(cls) -> str:
        """The class that makes these settings in Python."""
        for kind in cls.__mro__:
            if "family" in vars(kind) and kind.__module__ == cls.__module__:
                return kind.__name__
        return cls.__name__

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        if "family" in vars(cls):
            name = args[0] if args else kwargs.get("name", cls.default_entry)
            cls = lookup(cls.family, name).settings
        return super().__new__(cls, *args, **kwargs)

    @classmethod
    def _check_name(cls, name: str, value: object) -> None:
        others = []
        if name not in cls.__dataclass_fields__:
            others = readers_of(cls.family, name)
        if others:
            own = f"{cls.public_name()}(name={cls.name!r})"
            raise ConfigError(f"{own} has no argument {name}; it is of {' and '.join(others)}.")
        super()._check_name(name, value)


def _loaded(target: str) -> Any:
    module, _, name = target.rpartition(".")
    return getattr(import_module(module), name, None)


def _dotted(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
