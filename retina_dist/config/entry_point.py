"""The `main()` of a command: Hydra's command line, our checks and help page, and how errors end the process."""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from retina_dist.base.errors import ConfigError, UserError, lost_connection
from retina_dist.base.files import check_output
from retina_dist.base.settings import limits_of
from retina_dist.base.unknown_keys import habit
from retina_dist.config import compose
from retina_dist.strategies.launch_environment import detect_launch
from retina_dist.strategies.lost_peers import plain_reason
from retina_dist.tracking.console import configure_logging, print_redacted

# Hydra's options, as its --hydra-help lists them; the second ones take a value.
FLAGS = [
    "--help -h",
    "--hydra-help",
    "--version",
    "--resolve",
    "--run -r",
    "--multirun -m",
    "--shell-completion -sc",
]
VALUED = [
    "--cfg -c",
    "--info -i",
    "--package -p",
    "--config-path -cp",
    "--config-name -cn",
    "--config-dir -cd",
]
OPTIONS = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
for _names in FLAGS:
    OPTIONS.add_argument(*_names.split(), action="store_true")
for _names in (*VALUED, "--experimental-rerun"):
    OPTIONS.add_argument(*_names.split(), nargs="?", const="")

Function = Callable[[Any], Any]  # of a command's settings
# Arguments: a function that returns the job's settings, the function to run on them, the job's folder.
Attempt = Callable[[Callable[[], Any], Function, Path], Any]

OmegaConf.register_new_resolver(
    "sweep_dir", lambda output_dir, name: output_dir or f"runs/{name}-sweep", replace=True
)


def entry_point(
    name: str, schema: type, attempt: Attempt | None = None
) -> Callable[[Function], Callable[[], None]]:
    """Make a `main()` of a function whose argument is of the dataclass `schema`.

    Hydra composes `conf/NAME.yaml` and runs the function, with --multirun once for each job, through `attempt`, which handles its
    errors. Otherwise a UserError is printed as one line (debug=true adds the traceback) and sets the exit code.
    """
    compose.SCHEMAS[name] = schema

    def decorate(function: Function) -> Callable[[], None]:
        def job(composed: Any) -> Any:
            settings = HydraConfig.get()
            folder, sweeps = (
                Path(os.path.relpath(settings.runtime.output_dir)),
                settings.mode == RunMode.MULTIRUN,
            )

            def composed_settings() -> Any:
                try:
                    config = compose.to_object(composed, name, settings.overrides.task)
                    if hasattr(config, "output_dir") and (
                        sweeps or (config.output_dir is None and folder != Path())
                    ):
                        config.output_dir = str(folder)
                    check_outputs(config)
                except UserError as error:
                    error.collective = True  # every rank composes the same settings
                    raise
                return config

            with configure_logging(detect_launch().rank):
                if attempt and sweeps:
                    return attempt(composed_settings, function, folder)
                with reported_errors(bool(composed.get("debug"))):
                    return function(composed_settings())

        def main() -> None:
            arguments = sys.argv[1:]
            job.__module__ = function.__module__  # by which Hydra names the job
            with reported_errors("debug=true" in arguments, collective=True):
                values, options = split_arguments(name, arguments)
                if options.help:
                    from retina_dist.config.help import help_page

                    document = sys.modules[function.__module__].__doc__ or ""
                    config, composed = compose.described(name, values, options.also)
                    page = help_page(name, config, document, Path(compose.config_dir()), composed)
                    print(page, end="", flush=True)
                    return
                compose.check_overrides(name, values)
                if not (options.config_path or options.config_name) and (
                    entry := compose.data_entry(name, values)
                ):
                    at = sys.argv.index(
                        values[0], 1
                    )  # beside the others: Hydra takes one run of overrides
                    values, sys.argv = [*values, *entry], [*sys.argv[:at], *entry, *sys.argv[at:]]
                    if options.cfg is None and detect_launch().rank == 0:
                        print_redacted(f"data.root is read by {entry[0]}")
                prepare(name, values, options)
                os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # its errors arrive here unchanged
                shown = (
                    options.cfg is not None or options.info is not None
                )  # then Hydra prints the settings, and nothing runs
                with (
                    compose.translate_hydra_errors(compose.command_of(name)),
                    redacted_stdout(shown),
                ):
                    hydra.main(
                        version_base="1.3", config_path=compose.config_dir(), config_name=name
                    )(job)()
                    sys.stdout.flush()

        return main

    return decorate


@contextmanager
def redacted_stdout(applies: bool) -> Iterator[None]:
    """Print what is written to stdout at the end of the context, without secrets, if it `applies`."""
    if not applies:
        yield
        return
    text = io.StringIO()
    try:
        with redirect_stdout(text):
            yield
    finally:
        print_redacted(text.getvalue().rstrip("\n"))


def split_arguments(name: str, arguments: list[str]) -> tuple[list[str], argparse.Namespace]:
    """The overrides of a command line, and Hydra's options; `also` is --config-dir as an override. Raises ConfigError."""
    options, values = OPTIONS.parse_known_args(arguments)
    for flag, folder in (
        ("--config-dir", options.config_dir),
        ("--config-path", options.config_path),
    ):
        if folder is not None and "://" not in folder and not Path(folder).is_dir():
            raise ConfigError(f"{flag} {folder} is not a folder.")
    options.also = (
        [f"hydra.searchpath=[file://{os.path.abspath(options.config_dir)}]"]
        if options.config_dir
        else []
    )
    for number, value in enumerate(values):
        if value.startswith("-") and value != "-":
            _, known = compose.described(
                name, [v for v in values if "=" in v and v[0] != "-"], options.also
            )
            raise ConfigError(
                _no_option(name, known, value, "".join(values[number + 1 : number + 2]))
            )
    return values, options


def _no_option(name: str, known: Collection[str], argument: str, following: str) -> str:
    flag, _, value = argument.partition("=")
    key = flag.lstrip("-").replace("-", "_")
    value = value or ("" if following.startswith("-") or "=" in following else following)
    unknown = f"see the keys with {compose.command_of(name)} --help"
    meant = habit(key, known, value) or (key if key in known else unknown)
    if " " in meant:
        return f"{flag} is not an option; {meant}."
    meant = meant if "=" in meant else f"{meant}={value or 'VALUE'}"
    return f"{flag} is not an option; settings are written KEY=VALUE: {meant}."


def prepare(name: str, values: list[str], options: argparse.Namespace) -> None:
    """Make the schema known to Hydra for this command line. Raises ConfigError for what Hydra would accept silently."""
    if path := options.config_path:  # Hydra takes it relative to this module
        flags = ("", "--config-path=", "-cp=")  # of an argument that is, or ends with, the path
        sys.argv = [
            f + os.path.abspath(path) if (f := a.removesuffix(path)) in flags else a
            for a in sys.argv
        ]
    if options.multirun and any(v.startswith("output_dir=") and "," in v for v in values):
        raise ConfigError(
            "output_dir cannot be swept; give one folder, and each job gets its own in it."
        )
    if options.cfg is not None and not options.config_path and not options.config_name:
        compose.register_defaults(name, values, options.also)
    else:
        compose.register(name, values)


def check_outputs(config: Any) -> None:
    """Raise ConfigError on rank 0, before the long work, for an output that cannot be written."""
    if detect_launch().rank or getattr(config, "dry_run", False):
        return
    for key in type(config).__dataclass_fields__:
        writes, value = limits_of(config, key).writes, getattr(config, key)
        if writes and value and not ("URL" in writes and "://" in value):
            check_output(value, key, folder=writes.startswith("folder"))


@contextmanager
def reported_errors(debug: bool = False, collective: bool = False) -> Iterator[None]:
    """Print a UserError as one line and exit with 2 (1 if another process was lost), anything else with its rank.

    Where all processes of a job have the same error, only its `reporter` prints it; `collective` says that all have, as for an
    error of the command line.
    """
    try:
        launch = detect_launch()
    except ConfigError as error:
        print_redacted(f"error: {error}", sys.stderr)
        raise SystemExit(2) from None
    label = f"[rank {launch.rank}] " if launch.world_size > 1 else ""
    try:
        yield
    except UserError as error:
        if debug:
            print_redacted(textwrap.indent(traceback.format_exc().rstrip(), label), sys.stderr)
        if launch.rank == error.reporter or not (error.collective or collective):
            print_redacted(f"{label if launch.rank else ''}{error.label}{error}", sys.stderr)
        else:  # after the one that prints: launchers end the others as soon as one has exited
            time.sleep(1.0)
        raise SystemExit(error.exit_code) from None
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        if launch.rank == 0:
            print_redacted("interrupted", sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        if (
            isinstance(error, OSError)
            and (error.filename or error.errno in (errno.ENOSPC, errno.EDQUOT))
            and not debug
        ):
            where = f"{error.filename}: " if error.filename else ""
            remedy = "correct that, or give another place (debug=true shows where)."
            print_redacted(f"{label}error: {where}{error.strerror}; {remedy}", sys.stderr)
            raise SystemExit(2) from None
        if launch.world_size > 1 and lost_connection(error) and not debug:
            why = f"lost another process ({plain_reason(error)}); see the last output of that one."
            print_redacted(f"{label}error: rank {launch.rank} {why}", sys.stderr)
        else:
            print_redacted(textwrap.indent(traceback.format_exc().rstrip(), label), sys.stderr)
        raise SystemExit(1) from None
