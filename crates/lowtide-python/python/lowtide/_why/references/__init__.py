"""How one object refers to another: the name of the reference, and how to cut it.

- `reference.py`: one reference, and how it is cut; `spelling.py`: the statements that a person types
- `readers.py`: finds all references from one object to another, through the readers below
- `containers.py`, `classes.py`, `functions.py`, `suspended.py`, `contexts.py`,
  `tensors.py`: one reader for each type
- `look.py`: reads objects without running their code; `locals.py`: reads the variables of frames
"""
