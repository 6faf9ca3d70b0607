"""NCCL's environment variables as settings.

NCCL reads them as it starts, once in a process: they are set before a strategy is made, and a sweep over them needs a `launcher`
for each job. https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

Settings = Mapping[str, str | int | bool | None]  # the group's name and a value, or None, for each key of VARIABLES

VARIABLES = {
    "socket_ifname": "NCCL_SOCKET_IFNAME",
    "ib_disable": "NCCL_IB_DISABLE",
    "ib_pci_relaxed_ordering": "NCCL_IB_PCI_RELAXED_ORDERING",
    "topo_file": "NCCL_TOPO_FILE",
    "debug": "NCCL_DEBUG",
}


def apply_nccl(settings: Settings, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that the user has not set; a topology file that this machine lacks is left out."""
    for name, value in _wanted(settings).items():
        if not _lacks_file(name, value):
            environment.setdefault(name, value)


def describe_nccl(settings: Settings, environment: Mapping[str, str] = os.environ) -> str | None:
    """What `apply_nccl` came to, in one line; None where the settings want nothing."""
    parts = []
    for name, value in _wanted(settings).items():
        found = environment.get(name)
        if found is None:
            parts.append(f"no {name}, as there is no {value}")
        else:
            parts.append(f"{name}={found}" + (" (your own)" if found != value else ""))
    return f"nccl={settings['name']}: {', '.join(parts)}" if parts else None


def _wanted(settings: Settings) -> dict[str, str]:
    values = {name: settings[key] for key, name in VARIABLES.items()}
    return {name: str(int(v)) if isinstance(v, bool) else str(v) for name, v in values.items() if v is not None}


def _lacks_file(name: str, value: str) -> bool:
    return name == VARIABLES["topo_file"] and not Path(value).is_file()
