"""Reading files as they grow, are rotated, cut and replaced."""
