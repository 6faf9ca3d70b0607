"""RetinaNet, its targets and its losses."""
