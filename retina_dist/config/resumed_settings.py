"""The settings of the run that `resume=RUN` continues, from its config.yaml.

Nothing that the file names is looked up.
"""

import logging
from pathlib import Path

from retina_dist.base.errors import ConfigError, first_line
from retina_dist.base.redaction import MASK
from retina_dist.base.registry import names_class
from retina_dist.base.settings import Content, is_known, leaves, settings_by_key
from retina_dist.base.yaml_files import load_yaml
from retina_dist.config.run_config import name_of_root, section_types

logger = logging.getLogger(__name__)

# Settings of a start, which a resume does not take from the run.
OF_ONE_START = ("resume", "output_dir", "dry_run", "debug", "trainer.stop_after")


def settings_of_run(composed: Content, schema: type, given: set[str]) -> Content:
    """The settings of the run of `resume=RUN`, with the overrides; else the composed ones.

    `given` are the overrides' keys. Keys that this version lacks are left out. With `experiment`,
    nothing is taken.
    """
    file = config_file(composed.get("resume"))
    if file is None or "experiment" in given:
        return composed

    try:
        run: Content = load_yaml(file)
        task = (run.get("task") or {}).get("name")
        own = [key for key in sorted(given) if not key.startswith("hydra")]
        for key in (*OF_ONE_START, *own, *_renamed(composed, run, given)):
            _take(key, composed, run)
    except (OSError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{file} does not hold the settings of a run ({first_line(error)}); remove it."
        ) from error

    now = (run.get("task") or {}).get("name")
    if task not in (None, now):
        raise ConfigError(
            f"{composed['resume']} is a run of task={task}; leave task={now} out, "
            "or start a new run."
        )
    _check_contents(run, file, given)
    schema, sections = section_types(schema, run)
    _remove_unknown(run, settings_by_key(schema, sections=sections), given, file)
    return run


def _renamed(composed: Content, run: Content, given: set[str]) -> list[str]:
    """Name the data anew where `data.root` is given and the run had its data's name from its root.

    Returns the keys that were set: `["data.name"]`, or none.
    """
    data = run.get("data") or {}
    is_own = data.get("name") != name_of_root(data.get("root"))
    if is_own or "data.root" not in given or not given.isdisjoint(("data", "data.name")):
        return []
    composed["data"]["name"] = name_of_root(composed["data"]["root"])
    return ["data.name"]


def _take(key: str, source: Content, target: Content) -> None:
    """Set a dotted key of `target` to its value in `source`, None where it has none."""
    *above, last = key.split(".")
    for section in above:
        source = source.get(section) or {}
        if not isinstance(target.get(section), dict):  # such as null or auto
            target[section] = {}
        target = target[section]
    target[last] = source.get(last)


def _check_contents(run: Content, file: Path, given: set[str]) -> None:
    """Raise ConfigError for what must be given again: a class from outside, or a secret."""
    for group, section in run.items():
        if names_class(section) and group not in given:
            raise ConfigError(
                f"{file} has {group} from outside the package, which no file imports; "
                f"give {group}=NAME."
            )
    for key, value in leaves(run):
        if isinstance(value, str) and MASK in value:
            raise ConfigError(f"{file} holds {key} without its secret; give {key}=… again.")


def config_file(resume: object) -> Path | None:
    """config.yaml of the run that `resume` names by its folder or a checkpoint."""
    if not isinstance(resume, str) or resume in ("", "auto") or "://" in resume:
        return None
    folder = Path(resume)
    if folder.suffix == ".pt":
        folder = folder.parent
    if folder.name == "checkpoints":
        folder = folder.parent
    file = folder / "config.yaml"
    return file if file.is_file() else None


def _remove_unknown(
    section: Content, known: Content, given: set[str], file: Path, prefix: str = ""
) -> None:
    """Remove what has no setting here, unless the command line gives it."""
    for name in list(section):
        key = f"{prefix}{name}"
        is_given = any(f"{key}.".startswith(f"{k}.") or k.startswith(f"{key}.") for k in given)
        if not is_known(key, known) and not is_given:
            del section[name]
            logger.info(f"{file}: {key} is not a setting of this version")
        elif isinstance(section[name], dict):
            _remove_unknown(section[name], known, given, file, f"{key}.")
