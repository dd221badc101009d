"""cuBLAS's workspace.

One matrix product, and everything that belongs to it is deleted, collected and trimmed. Some
megabytes stay: a workspace for each handle and stream, that torch made and keeps.
"""

import gc

import torch

from zoo.case import DEVICE, Case, examine

CASE = Case(
    names=(r"(?i)cublas|workspace|librar|native",),
    cut=r"(?i)release\(\)|workspace|cublas",
    cure="torch._C._cuda_clearCublasWorkspaces(); torch.cuda.empty_cache()",
    mib=8,
    storages=False,
    gpu="cuBLAS works on a device",
)


def multiply() -> None:
    a = torch.ones(2048, 2048, device=DEVICE, dtype=torch.bfloat16)
    (a @ a).sum().item()


if __name__ == "__main__":
    multiply()
    gc.collect()
    torch.cuda.empty_cache()
    examine(CASE)
