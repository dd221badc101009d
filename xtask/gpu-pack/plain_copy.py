"""The link by somebody else's hand: one pinned buffer, one stream, PyTorch. GiB/s, medians."""

import json
import statistics
import time

import torch

GIB = 4
TURNS = 5


def turn(to, source):
    torch.cuda.synchronize()
    began = time.perf_counter()
    to.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return GIB / (time.perf_counter() - began)


host = torch.empty(GIB << 30, dtype=torch.uint8, pin_memory=True).fill_(1)
device = torch.empty(GIB << 30, dtype=torch.uint8, device="cuda").fill_(2)
speed = {
    "plain_out_gib_s": statistics.median(turn(host, device) for _ in range(TURNS)),
    "plain_in_gib_s": statistics.median(turn(device, host) for _ in range(TURNS)),
    "size_bytes": GIB << 30,
    "turns": TURNS,
    "torch": torch.__version__,
}
print(json.dumps(speed, indent=2))
