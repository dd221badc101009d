"""`why`: what keeps device memory in use, and which statement frees it.

- `why.py`: asks the question and applies cuts; `question.py`: what the native walk has to know
- `alone.py`: one examination at a time; `interpreter.py`: what the interpreter itself keeps
- `naming/`: turns the nodes and edges of the walk into names and statements
- `answer.py`: the answer as data, and as text
- `references/`: how one object refers to another, for every type, and how to cut that reference
- `rare/`: what keeps memory in few programs
- `memory/`: which objects hold device memory, and how much
"""
