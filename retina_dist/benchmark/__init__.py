"""Speed, measured on the machine at hand; figures to be compared take turns in one run, because its speed drifts."""
