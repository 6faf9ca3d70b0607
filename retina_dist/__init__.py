"""RetinaNet on COCO-format data, with interchangeable distributed backends.

The public names (`__init__.pyi`) are imported on first use: `import retina_dist` loads neither
hydra nor pycocotools.
"""

import os
import sys

# A script of the package, as python retina_dist/train.py starts, puts this folder first: its bisect
# would then hide Python's.
if sys.path[:1] == [os.path.dirname(__file__)]:
    del sys.path[0]

import lazy_loader  # noqa: E402

__version__ = "0.2.0"

_imported, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    try:
        return _imported(name)
    except AttributeError:
        from retina_dist.base.arguments import no_attribute

        raise AttributeError(no_attribute("retina_dist", name, __all__)) from None
