"""RetinaNet on COCO-format data, with interchangeable distributed backends.

The public names (`__init__.pyi`) are imported on first use: `import retina_dist` loads neither
hydra nor pycocotools.
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
