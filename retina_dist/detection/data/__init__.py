"""From stored images and boxes to batches."""
