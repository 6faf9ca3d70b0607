"""What is trained: a task builds data, model and evaluator for the trainer, which knows none of them."""
