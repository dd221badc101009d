"""How one object refers to another, by one reader for each type, and how to cut that reference."""
