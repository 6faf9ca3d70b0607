"""What the models of all tasks share: norms, convolutions, weights."""
