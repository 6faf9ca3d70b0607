"""What the models of all tasks share: norms and averages of weights."""
