"""`python -m retina_dist.doctor cluster=true`: is every rank's machine sound, and equal to the others?

Each rank collects facts (`facts`), all of them measure together (`clock`, `network`, `step`), and the main rank compares what
it gathered (`checks`, `speed_checks`) and prints it (`report`).
"""
