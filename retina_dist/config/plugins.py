"""Installed packages that add parts: functions of the entry point group `retina_dist.plugins`.

A function calls `base.registry.register`, or stores entries that name a class by `_target_` in
Hydra's ConfigStore.
"""

import functools
from importlib.metadata import entry_points

from retina_dist.base.errors import ConfigError, describe_error


@functools.cache
def load_plugins() -> None:
    """Call the installed packages' entry points of the group `retina_dist.plugins`.

    Raises ConfigError for a broken one.
    """
    for plugin in entry_points(group="retina_dist.plugins"):
        try:
            plugin.load()()
        except Exception as error:
            raise ConfigError(
                f"the installed plugin {plugin.name} ({plugin.value}) cannot be loaded "
                f"({describe_error(error)}); repair or uninstall its package."
            ) from error
