"""What the tasks share: evaluator, predictor, export, model card."""
