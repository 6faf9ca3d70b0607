"""Images of the task `classification`: readers, transforms, batches."""
