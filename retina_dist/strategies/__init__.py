"""How processes work together, one file a backend."""
