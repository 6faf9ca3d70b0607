"""What every package may use: errors, files, text, typed settings, redaction, seeds."""
