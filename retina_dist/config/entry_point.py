"""The `main()` of a command, and how its errors end the process."""

from __future__ import annotations

import errno
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import hydra

from retina_dist.config.commands import ShardsConfig
from retina_dist.config.compose import config_dir, register_schema, to_object
from retina_dist.config.overrides import SweepJob, check_overrides
from retina_dist.errors import ConfigError, UserError
from retina_dist.files import check_output
from retina_dist.reporting.console import configure_logging, print_redacted
from retina_dist.strategies.launch_environment import detect_launch

OUTPUTS = ("output", "output_dir")  # settings that name what a command writes


def entry_point(
    name: str, sweep: Callable[[list[SweepJob], Callable[[Any], Any]], int] | None = None
) -> Callable[[Callable[[Any], Any]], Callable[[], None]]:
    """Make a `main()` of a function of a typed config: Hydra's command line, our errors, logging to the console.

    A UserError is printed as one line and the process exits with 2; with `debug=true` the traceback is shown too.
    With --multirun, `sweep` gets the jobs of Hydra's product and the function, and its answer is the exit code. Without a
    `sweep`, or when another of Hydra's sweepers or launchers is asked for, Hydra calls the function for each job itself.
    """

    def decorate(function: Callable[[Any], Any]) -> Callable[[], None]:
        @hydra.main(version_base="1.3", config_path=config_dir(), config_name=name)
        def run(composed: Any) -> Any:
            with reported_errors(debug=bool(composed.get("debug"))), configure_logging(detect_launch().rank):
                config = to_object(composed, name)
                check_outputs(config)
                return function(config)

        def main() -> None:
            register_schema(name)
            debug = "debug=true" in sys.argv[1:]
            with reported_errors(debug, collective=True):
                jobs = check_overrides(name, sys.argv[1:])
            if sweep is None or not jobs or _asks_for_a_plugin(sys.argv[1:]):
                run()
                return
            with reported_errors(debug):
                raise SystemExit(sweep(jobs, function))

        return main

    return decorate


def check_outputs(config: Any) -> None:
    """Raise ConfigError, on rank 0, when a file or folder that a command is to write cannot be, before its long work."""
    if detect_launch().rank or getattr(config, "dry_run", False):
        return
    for key in OUTPUTS:
        value = getattr(config, key, None)
        if not value or (isinstance(config, ShardsConfig) and "://" in value):
            continue
        check_output(value, key, folder=key == "output_dir" or isinstance(config, ShardsConfig))


def _asks_for_a_plugin(arguments: list[str]) -> bool:
    return any(a.lstrip("+").startswith(("hydra/sweeper=", "hydra/launcher=")) for a in arguments)


@contextmanager
def reported_errors(debug: bool = False, collective: bool = False) -> Iterator[None]:
    """Print a UserError as one line and exit with 2 (1 if another process was lost), anything else with its rank.

    Of a job's processes, which may all have the same error, only the one that should speaks; `collective` says that an
    error comes of the command line, so that it is the first.
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
            print_redacted(_labelled(traceback.format_exc(), label), sys.stderr)
        if launch.rank == error.reporter or not (error.collective or collective):
            print_redacted(f"{label if launch.rank else ''}{error.label}{error}", sys.stderr)
        elif error.collective:
            time.sleep(1.0)  # the one that speaks goes first: launchers end the others as soon as one has gone
        raise SystemExit(error.exit_code) from None
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        if launch.rank == 0:
            print_redacted("interrupted", sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        if isinstance(error, OSError) and (error.filename or error.errno in (errno.ENOSPC, errno.EDQUOT)) and not debug:
            where = f"{error.filename}: " if error.filename else ""
            print_redacted(
                f"{label}error: {where}{error.strerror}; correct that, or give another place (debug=true shows where).",
                sys.stderr,
            )
            raise SystemExit(2) from None
        print_redacted(_labelled(traceback.format_exc(), label), sys.stderr)
        raise SystemExit(1) from None


def _labelled(text: str, label: str) -> str:
    return "\n".join(label + line for line in text.rstrip().splitlines())
