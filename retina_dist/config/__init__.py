"""Settings: their schema, and Hydra."""
