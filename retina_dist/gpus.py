"""What is known of GPUs before one is there: usable memory and compute capability.

`memory_gib` is what torch reports as `total_memory`: the smallest "total capacity" of torch's out-of-memory messages in public bug
reports of that GPU (drivers differ by up to 0.1 GiB). It is less than nvidia-smi's total, such as 79.1 of 79.6 GiB, and more than
the name says where that counts decimal gigabytes.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from retina_dist.errors import ConfigError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU; `pattern` matches the whole of `torch.cuda.get_device_name()`."""

    name: str
    pattern: str
    memory_gib: float
    capability: tuple[int, int]


GPUS = (
    Gpu("V100-16GB", r"Tesla V100-(SXM2|PCIE)-16GB", 15.77, (7, 0)),
    Gpu("V100-32GB", r"Tesla V100-(SXM[23]|PCIE)-32GB", 31.74, (7, 0)),
    Gpu("T4", r"Tesla T4|NVIDIA T4", 14.56, (7, 5)),
    Gpu("A10", r"NVIDIA A10G?", 21.96, (8, 6)),
    Gpu("A30", r"NVIDIA A30", 23.50, (8, 0)),
    Gpu("A40", r"NVIDIA A40", 44.34, (8, 6)),
    Gpu("A100-40GB", r"NVIDIA A100-(SXM4|PCIE)-40GB", 39.38, (8, 0)),
    Gpu("A100-80GB", r"NVIDIA A100-SXM4-80GB", 79.14, (8, 0)),
    Gpu("A100-PCIe-80GB", r"NVIDIA A100[ -]80GB PCIe|NVIDIA A100-PCIE-80GB", 79.14, (8, 0)),
    Gpu("L4", r"NVIDIA L4", 21.96, (8, 9)),
    Gpu("L40", r"NVIDIA L40", 44.39, (8, 9)),
    Gpu("L40S", r"NVIDIA L40S", 44.39, (8, 9)),
    Gpu("H100-80GB", r"NVIDIA H100 80GB HBM3", 79.10, (9, 0)),
    Gpu("H100-PCIe-80GB", r"NVIDIA H100 PCIe", 79.10, (9, 0)),
    Gpu("H100-NVL-94GB", r"NVIDIA H100 NVL", 93.00, (9, 0)),
    Gpu("H200-141GB", r"NVIDIA H200", 139.80, (9, 0)),
    Gpu("B200-180GB", r"NVIDIA B200", 178.35, (10, 0)),
    Gpu("GB200", r"NVIDIA GB200", 184.31, (10, 0)),
)


def find_gpu(name: str) -> Gpu:
    """The GPU that a user names, in any case, or as torch spells it; "H200" will do where one GPU is called so.

    "24GiB" is one of that memory that torch can use. Raises ConfigError with the nearest names.
    """
    wanted = name.strip().upper()
    if size := re.fullmatch(r"(\d+(?:\.\d+)?) ?GIB", wanted):
        if float(size[1]) < 1:
            raise ConfigError(f"gpu={name} is too little for a GPU; give at least 1GiB.")
        return Gpu(f"a GPU of {size[1]} GiB", re.escape(name), float(size[1]), (0, 0))
    begin = [gpu for gpu in GPUS if f"{gpu.name.upper()}-".startswith(f"{wanted}-")]
    same = [gpu for gpu in GPUS if wanted == gpu.name.upper() or re.fullmatch(gpu.pattern, name.strip())]
    if len(found := same or begin) == 1:
        return found[0]
    names = {gpu.name.upper(): gpu.name for gpu in GPUS}
    near = [gpu.name for gpu in begin] or [names[n] for n in difflib.get_close_matches(wanted, names, 1)]
    hint = f"did you mean {' or '.join(near)}? Or give" if near else f"use one of {', '.join(names.values())}, or"
    raise ConfigError(f"gpu={name} is not known; {hint} its memory, such as gpu=24GiB.")


def gpu_of(device: torch.device) -> Gpu:
    """The GPU of a CUDA device, with the memory and compute capability that it reports.

    A GPU that is not in `GPUS` has the name that the device reports.
    """
    import torch  # the settings, which are checked with the table, load without it

    properties = torch.cuda.get_device_properties(device)
    known = next((gpu for gpu in GPUS if re.fullmatch(gpu.pattern, properties.name)), None)
    gpu = known or Gpu(properties.name, re.escape(properties.name), 0.0, (0, 0))
    return replace(gpu, memory_gib=properties.total_memory / 2**30, capability=(properties.major, properties.minor))
