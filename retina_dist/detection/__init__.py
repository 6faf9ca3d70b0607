"""Detection: one task, whole."""
