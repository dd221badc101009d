"""The zoo: one small real program for each way in which memory stays.

Each file here is a program as people write it, which leaks one large tensor in its own way and then
has itself examined. `CASE` in it says, as data, what `lowtide.why` must name, what must free it, and
what a person would type by hand. Each runs in a process of its own:

    cd tests
    python -m zoo.closure            # ask lowtide: what it names, what it frees
    python -m zoo.closure why        # only its answer, and the first cut of it
    python -m zoo.closure cut        # its answer, and the printed statement executed as it stands
    python -m zoo.closure cure       # without lowtide: does the hand-typed cure free it?
    python -m zoo.closure gc         # what gc.collect() and empty_cache() do with it
    python -m zoo.closure objgraph   # what objgraph says of it
    python -m zoo.closure snapshot   # what torch's memory snapshot says of it (GPU)

`ZOO_DEVICE` says where the tensor is: `cpu` (the default) or `cuda`. `test_zoo.py` runs them all,
`bench/compare_zoo.py` makes a table of them. To add a case, add a file: nothing lists them.
"""
