"""The console script: `retina-dist COMMAND ...`, also `python -m retina_dist COMMAND ...`.

Each command is the module `retina_dist.COMMAND`. A launcher starts that module itself:
`torchrun --nproc-per-node 2 -m retina_dist.train`.
"""

import importlib
import re
import sys
from itertools import takewhile
from typing import NoReturn

from retina_dist.base import __version__
from retina_dist.base.other_names import value_meant

COMMANDS = {
    "train": "train a model, or sweep over settings with -m",
    "evaluate": "compute metrics of a checkpoint, or of COCO results",
    "predict": "run a checkpoint on images; write drawings, and COCO results or a CSV file",
    "export": "write a checkpoint as ONNX, torch.export or torchvision state_dict",
    "serve": "serve a checkpoint over HTTP",
    "doctor": "check a data set and, for detection, how well the anchors fit it",
    "convert": "convert a data set of any format to COCO json",
    "shards": "pack the images of a data set into tar shards",
    "report": "write the report of a run, or of two side by side, as one HTML file",
    "compare": "which of two runs or COCO results is better: compare RUN RUN",
    "parity": "compare every backend with one process, step by step",
    "bisect": "where two runs that should agree part: the step, and what in it differs first",
    "reproduce": "check that a run happened as it is logged, from its digests",
    "benchmark": "measure step, data and scaling",
}
# The modules of commands that are not `retina_dist.COMMAND`.
MODULES = {"benchmark": "retina_dist.benchmark.__main__", "compare": "retina_dist.report"}


def usage() -> str:
    """The text of --help: one line for each command."""
    lines = ["usage: retina-dist COMMAND [KEY=VALUE ...]", "", "commands:"]
    for name, summary in COMMANDS.items():
        lines.append(f"  {name:<10} {summary}")
    lines += [
        "",
        "retina-dist COMMAND --cfg job lists the settings of a command with their values.",
        "Under a launcher, start the module: torchrun --nproc-per-node 2 -m retina_dist.train",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run the command that the first argument names.

    An unknown one exits with 2 and names the nearest.
    """
    command = "".join(sys.argv[1:2])
    if command in ("-h", "--help", "help"):  # perhaps of a command
        sys.argv[1:] = [*sys.argv[2:3], "--help"]
        command = sys.argv[1]
    if command == "--help":
        print(usage())
        return
    if command in ("--version", "-V", "version"):
        print(__version__)
        return
    if not command:
        _refuse(usage())
    if command not in COMMANDS:
        hint = f"the commands are {', '.join(COMMANDS)}."
        meant = value_meant("command", command, COMMANDS, 0.7)
        if command.startswith("-") or "=" in command:
            hint = f"write a command first, as in retina-dist train {command}."
        if meant:
            hint = f"did you mean {meant}?"
        _refuse(f"error: there is no command {command}; {hint}")

    arguments = sys.argv[2:]
    if command == "compare":
        arguments = _with_keys(arguments)
    sys.argv = [f"retina-dist {command}", *arguments]
    importlib.import_module(MODULES.get(command, f"retina_dist.{command}")).main()


def _with_keys(arguments: list[str]) -> list[str]:
    """Compare's arguments, its two results as run=RESULT and other=RESULT."""
    folders = list(takewhile(re.compile("((a|first|run_?[1a])=)?[^-=][^=]*").fullmatch, arguments))
    if arguments and not folders:
        return arguments
    if len(folders) != 2 or folders[0] == folders[1]:
        _refuse("error: compare takes two run folders or COCO results, as compare runs/a runs/b.")
    return [f"run={folders[0]}", f"other={folders[1]}", *arguments[2:]]


def _refuse(text: str) -> NoReturn:
    print(text, file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    main()
