"""Names for what the walk found. Each file needs only those before it:

- `edges.py`: the objects of a path become the references that people know
- `words.py`: a path in words; `expression.py`: as Python; `statement.py`: Python that cuts it
- `path.py`: one path with its words, its expression and its statement
- `steps.py`: the steps of a cut
- `found.py`: the whole answer
"""
