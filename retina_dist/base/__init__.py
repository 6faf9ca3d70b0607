"""What every package may use: errors, files, text, typed settings, redaction, seeds."""

__version__ = "0.2.0"
