"""Load CUDA's forward compatibility libraries where the driver is too old for CUDA 13.

A .pth file of the image imports this at the start of every Python, before torch looks for a driver.
A fixed entry in the libraries' path would not do: with a driver that is newer than they are, and on
GPUs that are not made for data centres, CUDA refuses to start with them.
https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html
"""

import ctypes
import re
from pathlib import Path

FOLDER = Path("/usr/local/cuda/compat")
DRIVER = Path("/proc/driver/nvidia/version")
MIN_DRIVER = 580  # the oldest driver that CUDA 13 starts on without them
LIBRARIES = ("libnvidia-nvvm.so.4", "libnvidia-ptxjitcompiler.so.1", "libcuda.so.1")


def load() -> None:
    """Do nothing where the driver is new enough or unknown, or the image has no such libraries."""
    if not DRIVER.is_file():
        return
    driver = re.search(r"Kernel Module.*?\s(\d+)\.", DRIVER.read_text(errors="replace"))
    if not driver or int(driver[1]) >= MIN_DRIVER:
        return
    for name in LIBRARIES:
        library = FOLDER / name
        if library.is_file():  # later loads of this name get this library
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


load()
