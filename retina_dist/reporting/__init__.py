"""What a run tells its user: metric files, a progress line, curves and images with boxes."""
