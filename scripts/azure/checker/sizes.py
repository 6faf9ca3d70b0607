"""GPUs of Azure's virtual machines and the memory of each; sizes that Azure has retired."""

from __future__ import annotations

import re

from retina_dist.benchmark.communication import MACHINES

# Sizes without a communication model: name -> (GPUs a process can use, GiB of each). A fraction of an A10 counts as one GPU.
# https://learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated: ncast4v3, nvadsa10v5, ndh100v5 series
OTHERS = {
    "Standard_NC4as_T4_v3": (1, 16),
    "Standard_NC8as_T4_v3": (1, 16),
    "Standard_NV6ads_A10_v5": (1, 4),
    "Standard_NV12ads_A10_v5": (1, 8),
    "Standard_NV18ads_A10_v5": (1, 12),
    "Standard_NV36ads_A10_v5": (1, 24),
    "Standard_NV36adms_A10_v5": (1, 24),
    "Standard_NV72ads_A10_v5": (2, 24),
    "Standard_ND96is_H100_v5": (8, 80),  # without InfiniBand
}
MEMORY_GIB = {"T4": 16, "A100 40 GB": 40, "A100 80 GB": 80, "H100": 80, "H100 NVL": 94, "H200": 141}
NO_GPU = re.compile(r"standard_([bdefm]\w*?\d+\w*|ds\d+_v2)", re.IGNORECASE)

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
    """The day on which a size ended; None for one that has not."""
    return next((day for pattern, day in RETIRED.items() if re.fullmatch(pattern, size, re.IGNORECASE)), None)


KNOWN = {n: (m.gpus, MEMORY_GIB[m.gpu]) for n, m in MACHINES.items() if not retired(n)} | OTHERS
_BY_NAME = {name.lower(): figures for name, figures in KNOWN.items()}


def gpus_of(size: str | None) -> int | None:
    """GPUs of a size, in any case; 0 for a size without GPUs, None for a retired or unknown one."""
    if not size:
        return None
    return _BY_NAME.get(size.lower(), (0 if NO_GPU.fullmatch(size) else None,))[0]


def memory_gib_of(size: str | None) -> float | None:
    """Memory of one GPU of a size in GiB; None where it is not known."""
    return _BY_NAME.get((size or "").lower(), (None, None))[1]


def vcpus_of(size: str | None) -> int | None:
    """vCPUs of a size: the number in its name. None for a name without one."""
    found = re.match(r"Standard_[A-Z]+(\d+)", size or "", re.IGNORECASE)
    return int(found[1]) if found else None
