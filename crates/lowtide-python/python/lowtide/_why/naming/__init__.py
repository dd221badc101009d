"""Names for what the walk found. Each file needs only those before it:

- `edges.py`: the objects of a path become the references that people know
- `words.py`: a path in words
- `code.py`: a path as Python: the expression for its end, the statement that cuts it
- `path.py`: one path with its words, its expression and its statement
- `cuts.py`: the cuts of an object
- `found.py`: the whole answer
"""
