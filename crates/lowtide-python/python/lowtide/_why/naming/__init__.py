"""Names for what the walk found: edges, then words and code, a path, its cuts, the whole answer."""
