"""Hydra's and OmegaConf's errors as a sentence with the key, the value and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from retina_dist.errors import ConfigError, UserError

OF_CHECKPOINTS = ("doctor", "evaluate", "predict", "export", "serve", "agreement")  # the commands with checkpoint=


@contextmanager
def translate_hydra_errors(command: str) -> Iterator[None]:
    """Turn what Hydra and OmegaConf raise into a ConfigError that names the key, the value and the remedy."""
    try:
        yield
    except UserError:
        raise
    except OverrideParseException as error:
        raise ConfigError(
            f"{error.override} cannot be read as KEY=VALUE; quote the whole argument for the shell if the value has "
            "spaces, commas or brackets."
        ) from error
    except MissingConfigException as error:
        raise ConfigError(_missing_entry(command, error)) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_sentence(command, error)) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"a file of the configuration is not YAML: {' '.join(str(error).split())}.") from error
    except ValueError as error:
        if "Config group override" not in str(error):  # Hydra's answer to model=3 or model=null
            raise
        raise ConfigError(f"groups such as data and model take a name, as in model=retinanet_r50 ({error}).") from error


def _missing_entry(command: str, error: MissingConfigException) -> str:
    """The sentence for a choice without a file, such as model=yolo."""
    group, slash, value = str(error.missing_cfg_file).partition("/")
    if not slash:
        return f"there is no configuration {group}; give another --config-name."
    if group == "data" and value.lower().startswith("yolo"):
        return f"data={value} is not an entry; give data=auto data.root=FOLDER, which recognises YOLO."
    if group == "data" and value and ("/" in value or "." in value or Path(value).is_dir()):
        place = "FOLDER" if value.endswith((".yaml", ".yml")) else value
        return f"data={value}: data is the format, not the place; write data=auto data.root={place}."
    value, options = value.removesuffix(".yaml"), error.options or []
    if group == "model" and ("/" in value or value.endswith(".pt")):
        key = "checkpoint" if command.endswith(OF_CHECKPOINTS) else "model.weights"
        return f"model={value}: model is the kind of network, not a file or a run; write {key}={value}."
    near = get_close_matches(value, options, 1, 0.75)
    hint = f"did you mean {near[0]}? There" if near else "there"
    if group == "model" and value.lower().startswith(("resnet", "resnext")):
        hint = f"give model.backbone={value}, or task=classification model=classifier model.architecture={value}; there"
    own = "" if near else "; an entry of your own needs --config-dir FOLDER, where FOLDER/" + f"{group}/{value}.yaml is"
    return f"{group}={value} does not exist; {hint} are {', '.join(options)}{own}."


def _sentence(command: str, error: Exception) -> str:
    text = str(error)
    if several := re.match(r"Ambiguous value for argument '([^=]+)=(.*)'", text):
        key, value = several.groups()
        return (
            f'{key}={value} is more than one value; write "{key}=[{value}]" for a list, "{key}=\'{value}\'" for a text, a point in '
            "a number, or add --multirun for a run with each."
        )
    if absent := re.match(r"Could not override '([^']+)'\.\s+No match in the defaults list", text):
        return f"{command} has no choice of {absent[1]}; leave {absent[1]}=… out."
    cause: BaseException = error
    key = getattr(error, "full_key", None) or ""
    while inner := cause.__cause__ or cause.__context__:
        cause, key = inner, getattr(inner, "full_key", None) or key
    if given := re.match(r"Error merging override \+*([^=]+)=", text):  # a key below a value
        return f"{given[1]} is not a setting; see the keys with {command} --help."
    reason = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
    return f"{key}: {reason.rstrip('.')}." if key else f"{reason.rstrip('.')}."
