"""The hooks that Python and torch add to a release, one idea per file, and the registry that they work on."""
