"""RetinaNet on COCO-format data, with interchangeable distributed backends.

The public names (`__init__.pyi`) are imported on first use: `import retina_dist` loads neither
hydra nor pycocotools.
"""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

# A script of the package, as python retina_dist/train.py starts, puts this folder first: its bisect
# would then hide Python's.
if sys.path[:1] == [os.path.dirname(__file__)]:
    del sys.path[0]

for _package in ("lazy_loader", "omegaconf", "torch"):
    if _package not in sys.modules and find_spec(_package) is None:
        _remedy = "first write source .venv/bin/activate, or pip install . in the clone"
        _said = f"{sys.executable} has no {_package}; {_remedy}."
        if sys.argv[:1] == ["-m"]:  # of python -m retina_dist.COMMAND
            sys.exit(f"error: {_said}")
        raise ModuleNotFoundError(_said)

import lazy_loader  # noqa: E402

from retina_dist.base import __version__ as __version__  # noqa: E402

_imported, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def _no_attribute(name: str, modules: Sequence[str] = ()) -> str:
    from retina_dist.base.arguments import no_attribute
    from retina_dist.base.other_names import value_meant

    if name in __all__:
        return f"{name} is no module; write from retina_dist import {name}."
    meant = value_meant("command", name, modules, 0.8)
    if meant and name not in ("fit", "predict", "trainer"):  # which Python has, too
        return f"retina_dist has no {name}; use python -m retina_dist.{meant}."
    return no_attribute(__name__, name, __all__)


def __getattr__(name: str) -> object:
    try:
        return _imported(name)
    except AttributeError:
        # without a `name`, so that Python does not add a suggestion to ours
        raise AttributeError(_no_attribute(name), obj=sys.modules[__name__]) from None


class _Absent:
    """The last finder of modules: says of one that retina_dist does not have what is meant.

    It is asked by `from retina_dist import NAME` and `python -m retina_dist.NAME`, which would both
    leave out the sentence of an AttributeError.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        package, _, end = name.rpartition(".")
        if package == __name__ and not end.startswith("_"):
            files = os.listdir(os.path.dirname(__file__))
            modules = [file[:-3] for file in files if file.endswith(".py")]
            # with its `name`, `from retina_dist import NAME` would pass over it
            raise ModuleNotFoundError(_no_attribute(end, modules))


sys.meta_path.append(_Absent)
