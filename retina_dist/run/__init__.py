"""From settings to objects and back: assembling, run folders, results, sweeps, tracking."""
