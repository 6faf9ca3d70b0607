"""Console and log files, metric loggers, the progress line, reports."""
