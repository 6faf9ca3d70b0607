"""RetinaNet on COCO-format data, with interchangeable distributed backends.

The public names (`__init__.pyi`) are imported on first use: `import retina_dist` loads neither
hydra nor pycocotools.
"""

import lazy_loader

__version__ = "0.2.0"

_imported, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    try:
        return _imported(name)
    except AttributeError:
        from retina_dist.base.arguments import no_attribute

        raise AttributeError(no_attribute("retina_dist", name, __all__)) from None
