"""`python -m retina_dist.doctor cluster=true`: is every rank's machine sound, and equal to the others?"""
