"""The `main()` of a command: Hydra's command line, and how errors end the process."""

import argparse
import io
import os
import re
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.utils import _run_hydra, get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from retina_dist.base import __version__
from retina_dist.base.console import configure_logging, print_redacted
from retina_dist.base.errors import ConfigError, UserError, lost_connection
from retina_dist.base.files import check_output, is_disk_full
from retina_dist.base.settings import MISSING, limits_of
from retina_dist.base.unknown_keys import in_settings_of, nearest
from retina_dist.base.yaml_files import load_yaml
from retina_dist.config import compose
from retina_dist.config.hydra_errors import known_fault
from retina_dist.config.run_config import RunConfig
from retina_dist.strategies.launch_environment import Launch, detect_launch
from retina_dist.strategies.lost_peers import plain_reason

Function = Callable[[Any], object]  # of a command's settings
# Arguments: a function that returns the job's settings, the function to run on them, the job's
# folder.
Attempt = Callable[[Callable[[], Any], Function, Path], object]

ALONE = ("predict", "export", "serve", "convert", "shards", "report")

OmegaConf.register_new_resolver(
    "sweep_dir", lambda output_dir, name: output_dir or f"runs/{name}-sweep", replace=True
)


def entry_point(
    name: str, schema: type, attempt: Attempt | None = None
) -> Callable[[Function], Callable[[], None]]:
    """Make a `main()` of a function whose argument is of the dataclass `schema`.

    Hydra composes `conf/NAME.yaml` and runs the function, with --multirun once for each job,
    through `attempt`, which handles its errors. Otherwise a UserError is printed as one line
    (debug=true adds the traceback) and sets the exit code.
    """
    compose.SCHEMAS[name] = schema

    def decorate(function: Function) -> Callable[[], None]:
        return Command(name, function, attempt).main

    return decorate


class Command:
    """A command: `main` reads the command line, and Hydra calls the object for each job."""

    def __init__(self, name: str, function: Function, attempt: Attempt | None) -> None:
        self.name = name
        self.function = function
        self.attempt = attempt
        self.__module__ = function.__module__  # by which Hydra names the job

    def main(self) -> None:
        """Run the command line of this process, or print what its options ask for."""
        arguments = sys.argv[1:]
        with reported_errors("debug=true" in arguments, collective=True):
            options = parse(self.name, arguments)
            if options.help:
                from retina_dist.config.help import help_page

                document = sys.modules[self.__module__].__doc__ or ""
                settings = [each for each in options.overrides if "=" in each]
                config, values = compose.described(self.name, settings, options.also)
                page = help_page(self.name, config, document, compose.config_dir(), values)
                print(page, end="", flush=True)
                return

            self._prepare(options)
            twice = compose.repeated(options.overrides)
            if twice and detect_launch().rank == 0:
                print_redacted(f"warning: {twice}", sys.stderr)
            os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # its errors arrive here unchanged
            version.setbase("1.3")
            # with these, Hydra prints the settings, and nothing runs
            prints_settings = options.cfg is not None or options.info is not None
            with (
                compose.translate_hydra_errors(compose.command_of(self.name)),
                redacted_stdout() if prints_settings else nullcontext(),
            ):
                _run_hydra(
                    args=options,
                    args_parser=get_args_parser(),
                    task_function=self,
                    config_path=str(compose.config_dir()),
                    config_name=self.name,
                )
                sys.stdout.flush()

    def __call__(self, composed: Any) -> object:
        """Run one job with the settings that Hydra composed."""
        job = HydraConfig.get()
        folder = Path(os.path.relpath(job.runtime.output_dir))
        is_sweep = job.mode == RunMode.MULTIRUN
        if job.sweeper.get("params") and not is_sweep:
            print_redacted(
                "warning: hydra.sweeper.params have no effect without --multirun.", sys.stderr
            )
        overrides = list(job.overrides.task)
        settings = partial(self._settings, composed, overrides, folder, is_sweep)
        with configure_logging(detect_launch().rank):
            if self.attempt and is_sweep:
                return self.attempt(settings, self.function, folder)
            with reported_errors(composed.get("debug") is True):
                config = settings()
                try:
                    return self.function(config)
                except UserError as error:
                    if "data" not in type(config).__dataclass_fields__:  # not a run's settings
                        error.args = (in_settings_of(type(config), str(error)),)
                    raise

    def _settings(self, composed: Any, overrides: list[str], folder: Path, is_sweep: bool) -> Any:
        """A job's settings, with Hydra's folder where that is the run's.

        Raises ConfigError, alike on every rank.
        """
        try:
            if self.name in ALONE and detect_launch().world_size > 1:
                raise ConfigError(f"{self.name} is for one process; leave out the launcher.")
            config = compose.to_object(composed, self.name, overrides)
            if "output_dir" in type(config).__dataclass_fields__:
                hydra_names_it = config.output_dir is None and folder != Path()
                if is_sweep or hydra_names_it:
                    config.output_dir = str(folder)
            check_outputs(config)
        except UserError as error:
            error.collective = True
            raise
        return config

    def _prepare(self, options: argparse.Namespace) -> None:
        """Check the overrides, add those that they imply, and make the schema known to Hydra.

        Raises ConfigError.
        """
        compose.check_overrides(self.name, options.overrides)
        unread = "hydra.sweep[.]"
        if options.multirun or "hydra.mode=MULTIRUN" in options.overrides:
            unread = "output_dir=.*,|hydra.run.dir="
        for each in filter(re.compile(unread).match, options.overrides):
            raise ConfigError(
                f"{each} has no effect here; give one folder as output_dir=FOLDER, and each job of "
                "--multirun gets its own in it."
            )

        own_configuration = options.config_path or options.config_name
        if own_configuration:
            if options.config_path:
                check_readable(Path(options.config_path))
            compose.register(self.name, options.overrides)
            return
        implied = compose.data_entry(self.name, options.overrides)
        options.overrides += implied
        if options.cfg is not None:
            compose.register_defaults(self.name, options.overrides, options.also)
            return
        compose.register(self.name, options.overrides)
        place, _ = compose.place_of_data(options.overrides)
        if implied and place and detect_launch().rank == 0:
            print_redacted(f"{place} is read by {implied[0]}")


def check_readable(folder: Path) -> None:
    """Raise ConfigError for a YAML file that Hydra's own reader might never finish."""
    for file in folder.rglob("*.yaml"):
        try:
            load_yaml(file)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} cannot be read ({error}); correct it.") from error


def parse(name: str, arguments: list[str]) -> argparse.Namespace:
    """A command line, by Hydra's own parser; overrides and options may alternate.

    `also` of the result is --config-dir as an override. Raises ConfigError for what Hydra does not
    know.
    """
    parser = get_args_parser()
    parser.exit_on_error = False
    parser.allow_abbrev = False
    parser._option_string_actions["--version"].version = __version__  # type: ignore[attr-defined]
    try:
        options, unknown = parser.parse_known_intermixed_args(arguments)
    except argparse.ArgumentError as error:
        command = compose.command_of(name)
        remedy = known_fault(command, str(error)) or f"see {command} --help"
        raise ConfigError(f"{error}; {remedy}.") from error

    options.overrides = options.overrides or []
    folders = {"--config-dir": options.config_dir, "--config-path": options.config_path}
    for flag, folder in folders.items():
        if folder is not None and "://" not in folder and not Path(folder).is_dir():
            raise ConfigError(
                f"{flag} {folder} is not a folder; give the one above experiment/NAME.yaml."
            )
    options.also = []
    if options.config_dir:
        options.also = [f"hydra.searchpath=[file://{os.path.abspath(options.config_dir)}]"]
    if options.config_path:  # which Hydra takes relative to a module
        options.config_path = os.path.abspath(options.config_path)

    if options.experimental_rerun is not None:
        unknown.append("--experimental-rerun")
    if unknown:
        raise ConfigError(_no_option(name, options, unknown[0], arguments))
    return options


def _no_option(name: str, options: argparse.Namespace, argument: str, arguments: list[str]) -> str:
    """Message for an option that Hydra does not have, with the setting that is meant."""
    flag, _, value = argument.partition("=")
    following = [*arguments, ""][arguments.index(argument) + 1]
    if not value and not re.match("-|.*=", following):
        value = following

    settings = [override for override in options.overrides if "=" in override]
    config, known = compose.described(name, settings, options.also)
    key = flag.lstrip("-").replace("-", "_")
    meant = next(iter(nearest(key, [*known, *vars(config)], value)), "")
    if key in known or getattr(config, key, None) == MISSING:
        meant = key
    if not meant:
        meant = f"settings are written KEY=VALUE, see {compose.command_of(name)} --help"
    if " " in meant:
        return f"{flag} is not an option; {meant}."
    if "=" not in meant:
        example = {"true": "true", "false": "true"}.get(known.get(meant, ""), "VALUE")
        meant = f"{meant}={value or example}"
    return f"{flag} is not an option; settings are written KEY=VALUE: {meant}."


@contextmanager
def redacted_stdout() -> Iterator[None]:
    """Print what is written to stdout at the end, without secrets."""
    text = io.StringIO()
    try:
        with redirect_stdout(text):
            yield
    finally:
        print_redacted(text.getvalue().rstrip("\n"))


def check_outputs(config: Any) -> None:
    """Raise ConfigError on rank 0, before the long work, for an output that cannot be written."""
    if detect_launch().rank or (isinstance(config, RunConfig) and config.dry_run):
        return
    for key in type(config).__dataclass_fields__:
        value = getattr(config, key)
        writes = limits_of(config, key).writes
        is_url = "URL" in writes and value and "://" in value
        if writes and value and not is_url:
            check_output(value, key, folder=writes.startswith("folder"))


@contextmanager
def reported_errors(debug: bool = False, collective: bool = False) -> Iterator[None]:
    """Print a UserError as one line and exit with 2; print anything else with its rank.

    Where all processes of a job have the same error, only its `reporter` prints it; `collective`
    says that all have, as for an error of the command line.
    """
    try:
        launch = detect_launch()
    except ConfigError as error:
        print_redacted(f"error: {error}", sys.stderr)
        raise SystemExit(2) from None

    try:
        yield
    except UserError as error:
        _report(error, launch, debug, error.collective or collective)
        raise SystemExit(error.exit_code) from None
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        if launch.rank == 0:
            print_redacted("interrupted", sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        sentence, exit_code = _sentence_of(error, launch)
        if debug or not sentence:
            _print_traceback(launch)
            raise SystemExit(1) from None
        print_redacted(f"{_label(launch)}error: {sentence}", sys.stderr)
        raise SystemExit(exit_code) from None


def _report(error: UserError, launch: Launch, debug: bool, collective: bool) -> None:
    """Print an error on the ranks that have it; where all have it, on its reporter."""
    if debug:
        _print_traceback(launch)
    if launch.rank == error.reporter or not collective:
        label = _label(launch) if launch.rank else ""
        print_redacted(f"{label}{error.label}{error}", sys.stderr)
    else:  # after the one that prints: launchers end the others as soon as one has exited
        time.sleep(1.0)


def _sentence_of(error: Exception, launch: Launch) -> tuple[str, int]:
    """The sentence and exit code of a known kind of error; "" for another, which is a bug."""
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        if where or is_disk_full(error):
            remedy = "correct that, or give another place (debug=true shows where)."
            return f"{where}{error.strerror}; {remedy}", 2
    if launch.world_size > 1 and lost_connection(error):
        why = f"lost another process ({plain_reason(error)}); see the last output of that one."
        return f"rank {launch.rank} {why}", 1
    return "", 1


def _label(launch: Launch) -> str:
    if launch.world_size == 1:
        return ""
    return f"[rank {launch.rank}] "


def _print_traceback(launch: Launch) -> None:
    text = textwrap.indent(traceback.format_exc().rstrip(), _label(launch))
    print_redacted(text, sys.stderr)
