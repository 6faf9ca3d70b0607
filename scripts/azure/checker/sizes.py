"""GPUs of Azure's virtual machines, and those that are gone."""

from __future__ import annotations

import re

from retina_dist.benchmark.communication import MACHINES

# Sizes without a model of their communication, from the pages below
# https://learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated: ncast4v3-series, nvadsa10v5-series
MORE = {
    "Standard_NC4as_T4_v3": 1,
    "Standard_NC8as_T4_v3": 1,
    "Standard_NV36ads_A10_v5": 1,
    "Standard_NV36adms_A10_v5": 1,
    "Standard_NV72ads_A10_v5": 2,
}
NO_GPU = re.compile(r"Standard_([DEF]\d+(-\d+)?[abdlmst]*_v\d|DS\d+_v2)")

# Families and the day they ended: https://learn.microsoft.com/azure/virtual-machines/sizes/retirement/retired-sizes-list
RETIRED = {
    r"Standard_NC(6|12|24r?)(_Promo)?": "2023-09-06",  # K80; NC24 is the machine of 2018
    r"Standard_NC(6|12|24r?)s_v2": "2023-09-06",  # P100
    r"Standard_ND(6|12|24r?)s": "2023-09-06",  # P40
    r"Standard_NV(6|12|24)(_Promo)?": "2023-09-06",  # M60
    r"Standard_NC(6|12|24r?)s_v3": "2025-09-30",  # V100
    r"Standard_ND40rs_v2": "2025-09-30",
    r"Standard_NV(12|24|48)s_v3": "2026-09-30",
    r"Standard_NV(4|8|16|32)as_v4": "2026-09-30",
}


def retired(size: str) -> str | None:
    """The day on which a size ended, None for one that has not."""
    return next((day for pattern, day in RETIRED.items() if re.fullmatch(pattern, size, re.IGNORECASE)), None)


GPUS = {name.lower(): machine.gpus for name, machine in MACHINES.items() if not retired(name)} | {
    name.lower(): gpus for name, gpus in MORE.items()
}


def gpus_of(size: str | None) -> int | None:
    """How many GPUs a size has, 0 for one of the usual CPU sizes; None for a retired or unknown one. Case does not count."""
    if not size:
        return None
    return GPUS.get(size.lower(), 0 if NO_GPU.fullmatch(size) else None)


def known() -> list[str]:
    """Names of the sizes with GPUs, as Azure writes them."""
    return [name for name in (*MACHINES, *MORE) if name.lower() in GPUS]
