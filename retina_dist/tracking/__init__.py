"""What speaks while a training runs: console, progress, loggers."""
