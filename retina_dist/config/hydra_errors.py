"""What Hydra and OmegaConf raise, as sentences that name the key, the value and the remedy."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from retina_dist.base.errors import ConfigError, UserError, first_line
from retina_dist.base.files import is_packed
from retina_dist.base.other_names import value_meant
from retina_dist.base.text import as_override, rows_of
from retina_dist.base.unknown_keys import unclosed

# How the names of torchvision's networks begin.
TORCHVISIONS = re.compile(
    "(wide_)?resnet|resnext|mobilenet|efficientnet|convnext|regnet|swin|vit|vgg|densenet",
    re.IGNORECASE,
)


# What is chosen by a setting, not by an entry of the group.
SETTINGS_OF_GROUPS = {
    "hydra/sweeper": "install its plugin, as by pip install hydra-optuna-sweeper; there",
    "hydra/launcher": "install its plugin, as by pip install hydra-ray-launcher; there",
    "data": (
        "give data.root=FOLDER, whose format is recognised, or, where each class has a "
        "folder, task=classification data=folders data.root=FOLDER; there"
    ),
    "augmentation": "see data.hflip, data.photometric and data.scale_jitter; there",
    "task": "give detection, for boxes, or classification, for whole images; there",
    "experiment": "to choose a network alone, give model=…; there",
    "model": "to choose a recipe, give experiment=…; there",
    "trainer": "give strategy=ddp, or settings such as trainer.precision=bf16; there",
    "logging": "give logging.tensorboard=true or logging.mlflow_uri=URI; there",
}
# What is given where a path takes one value.
ONE_OF = {
    "run": "give one, and the other as other=…",
    "input": 'give one file, a folder, or "photos/*.jpg"',
    "checkpoint": "give one",
    "root": "give one folder",
    "data.root": "give one folder",
}
# Settings of one value that people sweep over.
OF_ONE_VALUE = [
    "seed",
    "lr",
    "weight_decay",
    "batch_size",
    "gradient_clip",
    "norm",
    "backbone",
    "precision",
    "max_duration",
]
GROUPS = {*SETTINGS_OF_GROUPS, "optimizer", "schedule", "strategy"}
# Answers to faults by the pattern of what Hydra, OmegaConf and PyYAML say; {0} is the command, and
# {1} and {2} are the groups of the pattern.
KNOWN_FAULTS = rows_of(
    """
Cannot merge DictConfig with ListConfig -> a file of the configuration holds a list; write \
KEY: VALUE lines, without - before.
does not support sweep type -> interval() is for other sweepers; write the values, as \
optimizer.lr=1e-4,1e-3.
Environment variable '([^']+)' not found -> the environment variable {1} is not set; write export \
{1}=VALUE before.
Unsupported interpolation type env -> ${{env:NAME}} is not read; write ${{oc.env:NAME}} for a \
variable of the environment.
In '([^']+)': Could not override '[a-z]+@experiment[.] -> {1}: the file of a recipe begins with \
the line # @package _global_; add it.
In '([^']+)': Could not override 'experiment/([^'@]+) -> {1}: write - override /{2}: NAME, with \
the slash.
Could not override '([^'@]+)@([^']+)' -> {1}@{2} is not a choice; write {1}=NAME, or settings such \
as {1}.name=NAME.
Could not override '([^'.]+)'[.]\\s+To append -> {1}: the file of --config-name lacks it; begin \
the file with # @package _global_, put it into FOLDER/experiment/, and give --config-dir FOLDER \
experiment=….
Could not override '([^']+)'[.]\\s+To append -> {1}: a file has a name in its place; there, in \
defaults, write - override /GROUP: NAME.
Multiple values for ([^.]+)[.] -> {1} is chosen twice; leave one out, write {1}=NAME without a +, \
and in defaults - override /{1}: NAME.
Could not override 'data'[.] -> {0} has no choice of data; to evaluate, give root=FOLDER, to \
predict, input=FOLDER, or leave data=… out.
Could not override '([^']+)'[.]\\s+No match -> {0} has no choice of {1}; leave {1}=… out.
(Interpolation key .*)\\s+full_key: (\\S+) -> {2}: {1}; write a whole key, such as \
${{optimizer.lr}}, that a file or the command line sets, or the value.
argument --cfg -> a file of your own is FOLDER/experiment/NAME.yaml: give --config-dir FOLDER \
experiment=NAME
ignored explicit argument -> it takes no value
An item is already at '([^']+)' -> {1} is a setting already; write {1}=… without the +.
Error merging override [+]*([^=]+)= -> {1} is not a setting; see the keys with {0} --help.
(Config group override .*) -> groups such as data and model take a name, as in \
model=retinanet_r50 ({1}).
The --resolve flag -> --resolve is for --cfg job; leave it out.
Only one of --run -> --multirun, --cfg and --info exclude each other; leave one out.
duplicate key -> write the key once, with all that is below it
mapping values are not allowed -> indent the keys of a section alike, begin a new line below, or \
put the text in quotes
escape character -> write the text in single quotes, or with slashes
""",
    " -> ",
)


@contextmanager
def translate_hydra_errors(command: str) -> Iterator[None]:
    """Turn what Hydra and OmegaConf raise into a ConfigError with key, value and remedy."""
    try:
        yield
    except UserError:
        raise
    except OverrideParseException as error:
        raise ConfigError(unreadable(str(error.override))) from error
    except MissingConfigException as error:
        raise ConfigError(_missing_entry(error)) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_sentence(command, error)) from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        remedy = known_fault(command, reason) or "correct it, with spaces in place of tabs"
        raise ConfigError(
            f"a file of the configuration is not YAML: {reason}; {remedy}."
        ) from error
    except ValueError as error:
        known = known_fault(command, str(error))
        if not known:
            raise
        raise ConfigError(known) from error


def unreadable(text: str) -> str:
    """Message for an override that Hydra cannot parse, with the quotes that it needs."""
    key, _, value = text.partition("=")
    sentence = f"{text} cannot be read as KEY=VALUE"
    if re.search(r"\s[\w.]+=", value):
        return f"{sentence}; these are several settings, so leave the quotes around them out."
    quoted = as_override(key.replace(":", "."), value.strip(",="))
    if value.startswith("~/"):  # which the shell leaves as it is
        return f"{sentence}; write {key}=$HOME{value[1:]}."
    if unclosed(value):
        return f"{sentence}; close its brackets, or write {quoted} as text."
    if re.fullmatch(r"[\[{].*=.*[\]}]", value):
        return f'{sentence}; write "{key}={value.replace("=", ":")}".'
    if re.match(r"[a-z]+\(", value):
        return f"{sentence}; write the values, as {key}=1,2, with --multirun."
    items = re.fullmatch(r"\((?=.*\))(.*?),?\)|\[(.*),\]", value)
    if items:
        return f'{sentence}; write "{key}=[{items[1] or items[2]}]".'
    return f"{sentence}; write {quoted}."


def _missing_entry(error: MissingConfigException) -> str:
    """Message for a choice without a file, such as model=yolo."""
    # model/yolo, hydra/sweeper/optuna, or a NAME alone
    group, slash, value = re.split("(?<!hydra)(/|$)", str(error.missing_cfg_file), maxsplit=1)
    if not slash:
        remedy = f"give experiment={group}, with --config-dir FOLDER if it is FOLDER/experiment's"
        remedy += ", not --config-path"
        return f"there is no configuration {group}; {remedy}."
    remedy = _instead_of_entry(group, value)
    if remedy:
        return remedy

    options = error.options or ["none"]
    value = value.removesuffix(".yaml")
    name = re.split("[./]", value)[-1]  # of torch.optim.SGD, conf/experiment/small
    near = [each for each in options if value and each.startswith(value[:6])]
    near = near or list(filter(None, [str(value_meant(group, name, options, 0.75))]))
    hint = SETTINGS_OF_GROUPS.get(group, "there")
    if near:
        hint = f"did you mean {' or '.join(near)}? There"
    elif group == "model" and TORCHVISIONS.match(value):
        classifier = f"task=classification model=classifier model.architecture={value}"
        hint = f"give model.backbone={value} to detect, or {classifier}; there"
    sentence = f"{group}={value} does not exist; {hint} are {', '.join(options)}"
    if near:
        return f"{sentence}."
    return (
        f"{sentence}; an entry of your own needs --config-dir FOLDER, where "
        f"FOLDER/{group}/{value}.yaml is."
    )


def _instead_of_entry(group: str, value: str) -> str:
    """Message for a file, folder or name that stands where an entry is asked for; "" for others."""
    is_yaml = value.lower().endswith((".yaml", ".yml"))
    own, _, entry = value.partition("/")
    if group == "experiment" and own in GROUPS and not is_yaml:  # in its list of defaults
        line = entry if own == group else f"override /{own}: {entry}"
        return f"{group} has no {value}; in the defaults of its file, write - {line}."
    if group == "data":
        return _instead_of_data(value, is_yaml)
    if group == "model" and Path(value).name.lower().startswith("yolo"):
        return (
            f"{group}={value} is no RetinaNet; leave it out, or give experiment=finetune, which "
            "starts from torchvision's COCO detector."
        )
    if group == "model" and ("/" in value or value.endswith(".pt")):
        return (
            f"model={value}: model is the kind of network; write checkpoint={value} or, in a "
            f"training, model.weights={value}."
        )
    if is_yaml:
        stem = Path(value).stem
        return (
            f"{group}={value} is a file; give {group}={stem} if it is of the library, put yours "
            f"into FOLDER/{group}/ and give --config-dir FOLDER {group}={stem}, or for a run's "
            "config.yaml --config-dir RUN --config-name config."
        )
    return ""


def _instead_of_data(value: str, is_yaml: bool) -> str:
    """Message for an archive, file or folder of data."""
    root = ""
    if is_packed(value):
        return f"data={value} is an archive; unpack it, and give data=auto data.root=FOLDER."
    if Path(value).is_file():
        root = as_override("data.root", str(Path(value).parent))
    elif value.lower().startswith("yolo") or is_yaml:
        root = "data.root=FOLDER"
    elif re.search(r"[/.]", value) or (value and Path(value).is_dir()):
        root = as_override("data.root", value)
    if not root:
        return ""
    return f"data={value} is not an entry; give data=auto {root}, which recognises the format."


def _sentence(command: str, error: Exception) -> str:
    """The sentence for what Hydra or OmegaConf raises."""
    text = str(error)
    several = re.match(r"Ambiguous value for argument '([^=]+)=(.*)'", text)
    if several:
        return _several_values(*several.groups())
    known = known_fault(command, text)
    if known:
        return known

    cause, key = _innermost(error)
    reason = first_line(cause).strip().rstrip(".")
    if key:
        reason = f"{key}: {reason}"
    return f"{reason}."


def known_fault(command: str, text: str) -> str:
    """The answer of `KNOWN_FAULTS`; "" for another fault."""
    for pattern, said in KNOWN_FAULTS.items():
        fault = re.search(pattern, text)
        if fault:
            return said.format(command, *fault.groups())
    return ""


def _innermost(error: BaseException) -> tuple[BaseException, str]:
    """The first cause of an error, and the key of the innermost that has one; "" for none."""
    key = ""
    inner: BaseException | None = error
    while inner:
        error = inner
        key = getattr(error, "full_key", None) or key
        inner = error.__cause__ or error.__context__
    return error, key


def _several_values(key: str, value: str) -> str:
    """Message for values with commas between them."""
    lists = (
        f'write "{key}=[{value}]" where a list is asked for, {as_override(key, value)} where a '
        "text is, one of them where one value is, a point in a number"
    )
    if key in ONE_OF:
        lists = f"{ONE_OF[key]} ({as_override(key, value)} if it is one)"
    if re.search(r"(device|gpu)\w*$", key):
        lists = "leave it out, and start a process for each GPU: torchrun --nproc-per-node N -m …"
    elif re.search(r"(?<!seed)=0,\d+$", f"{key}={value}"):
        lists = f"write {key}={value.replace(',', '.')} with a point"
    elif key == "data.classes":
        lists = "leave it out, and remove the boxes of other classes from the annotations"
    elif key in GROUPS or key.rpartition(".")[2] in OF_ONE_VALUE:
        lists = f"give one, as {key}={value.partition(',')[0]}"
    return f"{key}={value} is more than one value; {lists}, or add --multirun for a run with each."
