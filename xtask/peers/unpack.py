"""Unpacks of the one wheel in a folder what starts with one of the given names; without names, all.

    unpack.py FOLDER TO [NAME …]

The whole of a wheel may be a thousand times what is needed of it.
"""

import pathlib
import sys
import zipfile

folder, to, *names = sys.argv[1:]
(wheel,) = pathlib.Path(folder).glob("*.whl")
with zipfile.ZipFile(wheel) as members:
    wanted = [m for m in members.namelist() if not names or m.startswith(tuple(names))]
    missing = [n for n in names if not any(m.startswith(n) for m in wanted)]
    if missing:
        sys.exit(f"{wheel.name} has no {', '.join(missing)}")
    members.extractall(to, wanted)
