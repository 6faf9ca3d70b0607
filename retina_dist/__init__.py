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

        sentence = no_attribute(__name__, name, __all__)
        # of an AttributeError, from retina_dist import NAME would not say the sentence; the name of
        # a module, in small letters, is looked for among the files
        if sys._getframe(1).f_code.co_name == "_handle_fromlist" and not name.islower():
            raise ImportError(sentence) from None
        raise AttributeError(sentence) from None
