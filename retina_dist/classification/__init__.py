"""The task `classification`: which class an image shows."""
