"""Prints a row of `driver.tsv` for every function of NVIDIA's headers, with the class that the table has
for it, or `?`.

    python from_header.py INCLUDE_FOLDER > new.tsv

INCLUDE_FOLDER has cuda.h, as the Python package nvidia-cuda-runtime brings them.
The arguments are letters: `w` for a word (an integer, an enum, a handle or a pointer), `f` for a float,
`s` for a structure of 64 bytes, `h` for a handle of virtual memory. A row with `?` does not compile: somebody has to decide.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

BY_VALUE = {
    "float": "f",
    "CUipcMemHandle": "s",
    "CUipcEventHandle": "s",
    "CUmemGenericAllocationHandle": "h",
}
MODES = ([], ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"], ["-D__CUDA_API_VERSION_INTERNAL"])


def functions(folder: str) -> dict[str, str]:
    """Returns the arguments of each function, as letters."""
    found: dict[str, str] = {}
    source = '#include "cuda.h"\n'
    for mode in MODES:
        command = ["gcc", "-E", "-P", "-x", "c", *mode, f"-I{folder}", "-"]
        text = subprocess.run(
            command, input=source, capture_output=True, text=True, check=True
        ).stdout
        for match in re.finditer(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(", text):
            found[match.group(1)] = "".join(letters(arguments(text, match.end())))
    return found


def arguments(text: str, start: int) -> list[str]:
    """Splits the arguments that begin at `start`, up to the parenthesis that ends them."""
    depth, parts = 0, [""]
    for letter in text[start:]:
        if letter == ")" and depth == 0:
            break
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip() not in ("", "void")]


def letters(parts: list[str]) -> list[str]:
    return [
        "w" if "*" in part or "[" in part else BY_VALUE.get(part.split()[0], "w") for part in parts
    ]


def main() -> None:
    table = Path(__file__).with_name("driver.tsv")
    known: dict[str, str] = {}
    if table.exists():
        for row in table.read_text().splitlines():
            if row and not row.startswith("#"):
                name, _, of_class = row.split("\t")
                known[name] = of_class
    for name, shape in sorted(functions(sys.argv[1]).items()):
        print(name, shape or "-", known.get(name, "?"), sep="\t")


if __name__ == "__main__":
    main()
