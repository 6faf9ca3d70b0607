"""The task `detection`: objects in images, as boxes."""
