"""Small GPU programs that know nothing of lowtide, without the agent and with it, with sleeps at random moments.

    python3 programs.py --lowtide ./lowtide [--only training,jax_jit] [--list] [--jobs 6] [--results programs.json]

Each program works in short turns with pauses between them, and prints a digest of its results after each turn. It runs
alone first, then under `lowtide run` while this script puts it and its children to sleep with `lowtide sleep PID`. A
program whose package is missing is skipped. One that differs runs alone once more: "unsteady" means that it differs
from itself. Exits 0 only if every program that ran printed the same marks both times, ended well, and slept.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from command_line import parser_of

LIMIT_S = 100
ENVIRONMENT = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "HF_HUB_OFFLINE": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

# What every program in Python begins with. `small` makes integers whose sums of products are exact in any order.
BEGIN = r"""
import asyncio, atexit, collections, concurrent.futures, ctypes, functools, hashlib, io, os, random, signal
import subprocess, sys, time, types, unittest
dice, ballast = random.Random(33), None
try:
    import NEEDS
except ModuleNotFoundError as missing:
    print("skip", missing, flush=True)
    sys.exit()
if "torch" in sys.modules and __name__ == "__main__":
    torch.manual_seed(33)
    torch.use_deterministic_algorithms(True, warn_only=True)
    ballast = torch.arange(16 << 20, device="cuda")
def raw(value):
    if isinstance(value, (list, tuple)):
        return b"".join(map(raw, value))
    if hasattr(value, "detach"):
        value = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).cpu().numpy()
    value = value.get() if hasattr(value, "get") else value
    value = sys.modules["numpy"].asarray(value).tobytes() if hasattr(value, "dtype") else value
    return value if isinstance(value, bytes) else repr(value).encode()
def mark(*words):
    print("mark", *words, flush=True)
def small(*shape):
    return torch.randint(-4, 5, shape, device="cuda").float()
def network():
    nn = torch.nn
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 10)).cuda()
def batch():
    return torch.randn(64, 256, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
def fit(model, rule, x, y):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    return [loss, loss.backward(), rule.step(), rule.zero_grad(), *model.parameters()]
"""
TURN = """
        kept_sum = None if ballast is None else int(ballast.mul_(3).add_(turn).sum())
        mark(turn, hashlib.sha256(raw([out, kept_sum])).hexdigest()[:16])
        time.sleep(dice.uniform(0.02, 0.12))
"""

# Each: its name, packages and environment; what it does once; after `|`, what it does in a turn.
PYTHON = r"""
=== training: torch, torch.utils.data
rows, order = torch.utils.data.TensorDataset(torch.randn(512, 256), torch.randint(0, 10, (512,))), torch.Generator()
loader = torch.utils.data.DataLoader(rows, 64, shuffle=True, num_workers=2, pin_memory=True, generator=order)
batches, model = (both for epoch in range(1000) for both in loader), network()
rule = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
| out = fit(model, rule, *(one.cuda(non_blocking=True) for one in next(batches)))
=== generation: torch, transformers
sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8}
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=999, **sizes)).cuda().eval()
out, ones = torch.randint(3, 999, (2, 16), device="cuda"), torch.ones(2, 16, dtype=torch.int64, device="cuda")
options = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
| out = model.generate(out[:, -16:], attention_mask=ones, **options)
=== compiled: torch
weight, out = small(512, 512), small(512, 512)
step = torch.compile(lambda one: torch.remainder(one @ weight, 5) - 2, mode=os.environ.get("MODE"))
| out = step(out).clone()
=== compiled_with_graphs = compiled: MODE=reduce-overhead
=== fourier: torch
| one = torch.randn(64, 1024, device="cuda")
| out = [torch.fft.fft2(one), torch.fft.irfft(torch.fft.rfft(one))]
=== sparse: torch
| dense, other = small(512, 512) * (torch.rand(512, 512, device="cuda") < 0.05), small(512, 64)
| rows, pairs = dense.to_sparse_csr(), dense.to_sparse_coo().coalesce()
| out = [rows @ other, pairs @ other, pairs.indices(), rows.values()]
=== random_numbers: torch
own = torch.Generator("cuda").manual_seed(5)
| state = torch.cuda.get_rng_state()
| out = [torch.randn(1 << 20, device="cuda"), torch.rand(1 << 18, device="cuda", generator=own)]
| torch.cuda.set_rng_state(state)
| out += [torch.equal(out[0], torch.randn(1 << 20, device="cuda")), torch.randperm(1 << 16, device="cuda")]
=== solvers: torch, torch.linalg as linalg
torch.backends.cuda.preferred_linalg_library("cusolver")
| one = torch.randn(96, 96, device="cuda", dtype=torch.float64)
| whole = one @ one.T + 96 * torch.eye(96, device="cuda", dtype=torch.float64)
| out = [linalg.cholesky(whole), linalg.qr(one)[1], linalg.eigvalsh(whole), linalg.solve(whole, one)]
=== attention: torch, torch.nn.attention as attention
kinds = [attention.SDPBackend.FLASH_ATTENTION, attention.SDPBackend.EFFICIENT_ATTENTION, attention.SDPBackend.MATH]
| three = [torch.randn(2, 8, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
| with attention.sdpa_kernel(kinds[turn % 3]):
|     out = torch.nn.functional.scaled_dot_product_attention(*three, is_causal=True)
=== pinned_copies: torch
host, back = torch.randint(0, 1 << 30, (1 << 20,)).pin_memory(), torch.empty(1 << 20, dtype=torch.int64).pin_memory()
| back.copy_(host.to("cuda", non_blocking=True) * 3 + 1, non_blocking=True)
| torch.cuda.current_stream().synchronize()
| out = [host.copy_(back % (1 << 30)), host.is_pinned()]
=== own_memory_pool: torch
pool, out = torch.cuda.MemPool(), small(4 << 20)
| with torch.cuda.use_mem_pool(pool):
|     fresh = small(4 << 20)
| out = (out * 3 + fresh) % 1001
=== allocator: torch
kept = collections.deque(maxlen=12)
| for _ in range(10):
|     kept.append(torch.full((dice.randrange(1, 8 << 20),), dice.randrange(99), dtype=torch.int32, device="cuda"))
| torch.cuda.empty_cache() if turn % 7 == 6 else None
| out = [int(one.sum()) for one in kept]
=== expandable_segments = allocator: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
=== stream_ordered_memory = allocator: PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync
=== without_a_cache = allocator: PYTORCH_NO_CUDA_MEMORY_CACHING=1
=== out_of_memory: torch
kept = small(8 << 20)
| try:
|     out = torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
| except torch.OutOfMemoryError as error:
|     out = [type(error).__name__, int(kept.add_(1).sum())]
=== saved_and_resumed: torch
model = network()
rule = torch.optim.AdamW(model.parameters(), 1e-3)
| out, file = fit(model, rule, *batch()), io.BytesIO()
| torch.save([model.state_dict(), rule.state_dict()], file)
| model, (weights, state) = network(), torch.load(io.BytesIO(file.getvalue()), map_location="cuda")
| model.load_state_dict(weights)
| rule = torch.optim.AdamW(model.parameters(), 1e-3)
| rule.load_state_dict(state)
=== collectives: torch, torch.distributed as distributed
out, store = small(1 << 20), distributed.HashStore()
distributed.init_process_group("nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda:0"))
atexit.register(distributed.destroy_process_group)
| parts, rest = [torch.empty_like(out)], torch.empty_like(out)
| distributed.all_reduce(out)
| distributed.all_gather(parts, out)
| distributed.reduce_scatter_tensor(rest, parts[0])
| out = rest.mul(3).remainder(1001)
=== work_at_exit: torch
out = small(4 << 20)
atexit.register(lambda: mark("at exit", int(out.add_(1).sum())))
| out.mul_(3).remainder_(1001)
=== triton_kernels: torch, triton, triton.language as tl
@triton.autotune([triton.Config({"BLOCK": size}) for size in (256, 1024)], key=["count"], restore_value=["at"])
@triton.jit
def step(at, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(at + place, tl.load(at + place, mask=place < count) * 3 + 1, mask=place < count)
out = torch.arange(1 << 20, device="cuda")
| step[lambda chosen: (triton.cdiv(out.numel(), chosen["BLOCK"]),)](out, out.numel())
=== dlpack_with_cupy: torch, cupy
out = small(1 << 20)
| out = torch.remainder(torch.from_dlpack(cupy.from_dlpack(out) * 3 + 1), 1001)
| cupy.from_dlpack(out)[::7] = 5
=== dlpack_with_jax: torch, jax, jax.numpy as jnp
out = small(1 << 20)
| out = torch.from_dlpack(jnp.remainder(jnp.from_dlpack(out) * 3 + 1, 1001).block_until_ready()).clone()
=== samples_of_torchs_tests: torch
sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))
from torch.testing._internal.common_methods_invocations import op_db
names = "abs add amax bitwise_xor cat clamp cumsum diff flip gather index_select masked_fill mul roll sort sum tril"
ops = [one for one in op_db if one.name in names.split() and not one.variant_test_name]
| op = ops[turn % len(ops)]
| out = [op(one.input, *one.args, **one.kwargs) for one in op.sample_inputs("cuda", torch.int64)]
=== cupy_arrays: cupy, numpy
kept, stream = cupy.arange(16 << 20, dtype=cupy.int64), cupy.cuda.Stream()
| kept = kept * 3 + 1
| with stream:
|     sums = kept.reshape(16, -1).sum(axis=1)
| stream.synchronize()
| out = [sums, cupy.unique(kept[: 1 << 16] % 1001), cupy.asarray(numpy.sort(kept[:99].get())), cupy.cumsum(kept[:99])]
=== cupy_kernels: cupy, numpy
source = 'extern "C" __global__ void f(long long *a){int i=blockIdx.x*blockDim.x+threadIdx.x;a[i]=a[i]*3+1;}'
kernel, value = cupy.RawKernel(source, "f"), cupy.arange(4 << 20, dtype=cupy.int64)
total = cupy.ReductionKernel("int64 x", "int64 y", "x * x", "a + b", "y = a", "0", "total")
| kernel((value.size // 256,), (256,), (value,))
| out = [total(value), value[:1000]]
=== cupy_libraries: cupy, numpy, cupyx.scipy.sparse
own, kept = cupy.random.RandomState(3), cupy.arange(4 << 20, dtype=cupy.int64)
| one = own.randint(-4, 5, (256, 256)).astype(cupy.float64)
| few = cupyx.scipy.sparse.csr_matrix(one * (one > 3))
| out = [one @ one, few @ one, cupy.fft.fft(one), cupy.linalg.qr(one)[1], kept]
=== jax_jit: jax, jax.numpy as jnp, numpy
weight = value = jax.random.randint(jax.random.PRNGKey(3), (512, 512), -4, 5).astype(jnp.float32)
step = jax.jit(lambda kept, value: (kept * 3 + 1, jnp.remainder(value @ weight, 5) - 2), donate_argnums=0)
kept = jnp.arange(8 << 20)
| kept, value = step(kept, value)
| out = [kept[::64], kept.sum(), value]
=== jax_preallocated = jax_jit: XLA_PYTHON_CLIENT_PREALLOCATE=true XLA_PYTHON_CLIENT_MEM_FRACTION=0.015
=== jax_transforms: jax, jax.numpy as jnp, numpy
each, many = jax.vmap(jax.grad(lambda one: jnp.sin(one * one))), jax.pmap(lambda one: one * 3 + 1)
scan = jax.jit(lambda one: jax.lax.scan(lambda kept, row: (kept * 3 + row, kept.sum()), one[0], one))
value = jnp.arange(1 << 20, dtype=jnp.int32)
| value = many(value[None])[0]
| out = [value, each(jnp.linspace(0, 3, 1 << 16)), *scan(value.reshape(64, -1)), jnp.sort(value)]
=== graphs_of_one_pool: torch
weight, value = small(1024, 1024), small(1024, 1024)
last = value @ weight  # so that the library is there before the capture
pool, graphs, last = torch.cuda.graph_pool_handle(), [torch.cuda.CUDAGraph() for _ in range(3)], value
for graph in graphs:
    with torch.cuda.graph(graph, pool=pool):
        last = torch.remainder(last @ weight, 5) - 2
| out = [graph.replay() for graph in graphs] + [value.copy_(last)]
=== products: torch
one, kinds = torch.ones((), device="cuda"), (torch.float64, torch.float32, torch.float16, torch.bfloat16)
| a, b = small(512, 512), small(512, 512)
| out = [a.to(kind) @ b.to(kind) for kind in kinds] + [torch._int_mm(a.to(torch.int8), b.to(torch.int8))]
| a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
| out += [torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)]
=== convolutions: torch, torch.nn as nn
model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, 2)).cuda()
memory = nn.LSTM(64, 128, 2).cuda()
| one, two = model(torch.randn(8, 3, 64, 64, device="cuda")), memory(torch.randn(9, 4, 64, device="cuda"))[0]
| out = [one, two, *torch.autograd.grad(one.square().mean(), list(model.parameters()))]
=== checkpointing: torch, torch.utils.checkpoint
layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Dropout(0.2)).cuda() for _ in range(6)]
| first = last = batch()[0].requires_grad_()
| for layer in layers:
|     last = torch.utils.checkpoint.checkpoint(layer, last, use_reentrant=False)
| out = [last, *torch.autograd.grad(last.sum(), first)]
=== mixed_precision: torch
model, scaler = network(), torch.amp.GradScaler("cuda")
rule = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
| with torch.autocast("cuda", torch.float16):
|     loss = torch.nn.functional.cross_entropy(model(batch()[0]), batch()[1])
| scaler.scale(loss).backward()
| out = [loss, scaler.step(rule), scaler.update(), rule.zero_grad(), scaler.get_scale(), *model.parameters()]
=== streams_and_events: torch
streams, out = [torch.cuda.Stream() for _ in range(4)], [small(1 << 20) for _ in range(4)]
| before = torch.cuda.current_stream().record_event()
| for place, stream in enumerate(streams):
|     with torch.cuda.stream(stream):
|         stream.wait_event(before)
|         out[place].mul_(2).add_(out[place - 1]).remainder_(1001)
|         before = stream.record_event(torch.cuda.Event(enable_timing=True))
| before.synchronize()
=== forks: torch
value = small(1 << 20)
| if (child := os.fork()) == 0:
|     try:
|         os._exit(int(value.sum()) & 1)
|     except RuntimeError:  # torch's: CUDA cannot be used again in a forked process
|         os._exit(3)
| out = [os.waitpid(child, 0)[1], subprocess.check_output(["echo", "child"]), value.add_(1)]
=== spawned: torch, torch.multiprocessing as multiprocessing
def answer(connection):
    kept = torch.arange(4 << 20, device="cuda")
    while True:
        connection.send(int(kept.mul_(3).add_(connection.recv()).sum()))
| if turn == 0:
|     spawn, (ours, theirs) = multiprocessing.get_context("spawn"), multiprocessing.Pipe()
|     spawn.Process(target=answer, args=(theirs,), daemon=True).start()
| ours.send(turn)
| out = ours.recv()
=== threads: torch
def one(seed):
    with torch.cuda.stream(torch.cuda.Stream()):
        value = torch.arange(seed, seed + (1 << 20), device="cuda")
        return int(functools.reduce(lambda value, _: value * 3 + 1, range(20), value).sum())
pool = concurrent.futures.ThreadPoolExecutor(6)
| out = list(pool.map(one, range(12)))
=== coroutines: torch
async def one(seed):
    value, done = torch.full((1 << 20,), seed, device="cuda"), torch.cuda.current_stream().record_event()
    while not done.query():
        await asyncio.sleep(0.001)
    return await asyncio.to_thread(lambda: int(value.sum()))
async def several():
    return await asyncio.gather(*map(one, range(6)))
| out = asyncio.run(several())
=== signals: torch
value, count = torch.zeros(1 << 20, dtype=torch.int64, device="cuda"), []
signal.signal(signal.SIGALRM, lambda *_: (value.add_(1), count.append(0)))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.013)
atexit.register(lambda: signal.setitimer(signal.ITIMER_REAL, 0))
| before, total, after = len(count), int(value.sum()), len(count)
| out = [total % (1 << 20), before <= total >> 20 <= after]
=== cupy_memory: cupy, numpy
pools = [cupy.get_default_memory_pool(), cupy.cuda.MemoryPool(cupy.cuda.malloc_managed), cupy.cuda.MemoryAsyncPool()]
kept = [cupy.ndarray((4 << 20,), cupy.int64, pool.malloc(32 << 20)) for pool in pools]
once = [one.fill(3) for one in kept]
| out = [int(cupy.add(one * 3, turn, one).sum()) for one in kept]
| pools[0].free_all_blocks()
=== illegal_access_in_a_child: cupy, numpy
value, child = cupy.arange(4 << 20, dtype=cupy.int64), None
if sys.argv[1:]:
    try:
        cupy.RawKernel('extern "C" __global__ void f(){*(int*)16=1;}', "f")((1,), (1,), ())
        cupy.cuda.Device().synchronize()
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    os._exit(4)
| child = child or subprocess.Popen([sys.executable, __file__, "child"], stdout=subprocess.PIPE)
| value = value * 3 + 1
| out = [int(value.sum()), [child.communicate()[0], child.wait()] if turn == 20 else ""]
=== driver_by_ctypes: numpy
library, size, context = ctypes.CDLL("libcuda.so.1"), 8 << 20, ctypes.c_void_p()
def call(name, *arguments):
    if code := getattr(library, name)(*arguments):
        sys.exit(f"{name}: {code}")
call("cuInit", 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
memory, many, place = [ctypes.c_uint64() for _ in range(3)], ctypes.c_size_t(size), ctypes.create_string_buffer(size)
for one in memory:
    call("cuMemAlloc_v2", ctypes.byref(one), many)
    call("cuMemsetD32_v2", one, 5, ctypes.c_size_t(size // 4))
| call("cuMemsetD32_v2", memory[turn % 3], turn, ctypes.c_size_t(size // 8))
| call("cuMemcpyPeer", memory[(turn + 1) % 3], context, memory[turn % 3], context, ctypes.c_size_t(size * 3 // 4))
| call("cuMemcpyDtoDAsync_v2", memory[2], memory[0], ctypes.c_size_t(size // 4), None)
| out = [call("cuMemcpyDtoH_v2", place, one, many) or place.raw for one in memory]
"""

C = r"""
#include <cooperative_groups.h>
#include <cstdio>
#include <string>
#include <unistd.h>
#include <vector>
typedef unsigned long long u64;
#define DO(call) do { cudaError_t e = (call); if (e) { printf("mark error %d: %s\n", e, #call); exit(1); } } while (0)
const size_t MANY = 4 << 20, SIZE = MANY * 8, SIDE = 1024, ROW = SIDE * 4, LESS = 4000;
const cudaMemcpyKind INSIDE = cudaMemcpyDeviceToDevice;
__global__ void step(u64 *at, size_t many, u64 add) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < many; i += (size_t)gridDim.x * blockDim.x)
        at[i] = at[i] * 3 + add;
}
__global__ void look(cudaTextureObject_t texture, cudaSurfaceObject_t surface) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    surf2Dwrite(tex2D<unsigned>(texture, x, y) * 3 + x, surface, x * 4, y);
}
__global__ void together(u64 *at, u64 *other) {
    cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    for (size_t i = grid.thread_rank(); i < MANY; i += grid.size()) other[i] = at[(i + 1) % MANY] + 1;
    grid.sync();
    for (size_t i = grid.thread_rank(); i < MANY; i += grid.size()) at[i] = other[MANY - 1 - i] * 3;
}
__global__ void parent(u64 *at) { step<<<64, 256>>>(at, MANY, 5); }
int main(int, char **arguments) {
    std::string which = arguments[1];
    std::vector<u64> host(MANY);
    u64 *a, *b, *managed, *ordered, *mapped, *view, *plane;
    size_t pitch;
    cudaStream_t stream; cudaArray_t array; cudaGraph_t graph; cudaGraphExec_t ready;
    cudaTextureObject_t texture; cudaSurfaceObject_t surface; cudaTextureDesc how = {}; cudaResourceDesc what = {};
    DO(cudaMalloc(&a, SIZE)); DO(cudaMalloc(&b, SIZE)); DO(cudaMemset(a, 7, SIZE)); DO(cudaMemset(b, 9, SIZE));
    DO(cudaStreamCreate(&stream)); DO(cudaMallocPitch((void **)&plane, &pitch, LESS, SIDE));
    cudaChannelFormatDesc format = cudaCreateChannelDesc<unsigned>();
    DO(cudaMallocArray(&array, &format, SIDE, SIDE, cudaArraySurfaceLoadStore));
    DO(cudaMemcpy2DToArray(array, 0, 0, a, ROW, ROW, SIDE, INSIDE));
    what.resType = cudaResourceTypeArray; what.res.array.array = array;
    DO(cudaCreateTextureObject(&texture, &what, &how, NULL)); DO(cudaCreateSurfaceObject(&surface, &what));
    DO(cudaMallocManaged(&managed, SIZE)); DO(cudaMemset(managed, 1, SIZE));
    DO(cudaMallocAsync((void **)&ordered, SIZE, stream)); DO(cudaMemsetAsync(ordered, 2, SIZE, stream));
    DO(cudaHostAlloc((void **)&mapped, SIZE, cudaHostAllocMapped));
    DO(cudaHostGetDevicePointer((void **)&view, mapped, 0)); DO(cudaDeviceSynchronize());
    DO(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal)); step<<<256, 256, 0, stream>>>(a, MANY, 1);
    DO(cudaMemcpyAsync(b, a, SIZE, INSIDE, stream)); step<<<256, 256, 0, stream>>>(b, MANY, 2);
    DO(cudaStreamEndCapture(stream, &graph)); DO(cudaGraphInstantiate(&ready, graph, 0));
    for (int turn = 0; turn < atoi(arguments[2]); turn++) {
        u64 found = 14695981039346656037ull;
        if (which == "c_arrays") {
            look<<<dim3(SIDE / 256, SIDE), 256>>>(texture, surface);
            DO(cudaMemcpy2DFromArray(b, ROW, array, 0, 0, ROW, SIDE, INSIDE));
            DO(cudaMemcpy2D(plane, pitch, a, LESS, LESS, SIDE, INSIDE));
            for (size_t y = 0; y < SIDE; y++) step<<<1, 256>>>(plane + y * pitch / 8, LESS / 8, turn);
            DO(cudaMemcpy2D(a, LESS, plane, pitch, LESS, SIDE, INSIDE));
        } else if (which == "c_graph") {
            DO(cudaGraphLaunch(ready, stream)); DO(cudaStreamSynchronize(stream));
        } else if (which == "c_addresses") {
            step<<<256, 256, 0, stream>>>(ordered, MANY, turn); step<<<256, 256, 0, stream>>>(managed, MANY, turn);
            DO(cudaMemcpyAsync(view, ordered, SIZE, cudaMemcpyDefault, stream));
            step<<<256, 256, 0, stream>>>(view, MANY, 3); DO(cudaStreamSynchronize(stream));
            for (u64 *one : {a + 1, managed, ordered, mapped, view}) {
                cudaPointerAttributes about; DO(cudaPointerGetAttributes(&about, one)); found = found * 10 + about.type;
            }
            managed[turn] += 1; DO(cudaMemcpy(a, managed, SIZE, cudaMemcpyDefault));
            DO(cudaMemcpy(b, mapped, SIZE, cudaMemcpyDefault));
        } else {
            void *given[] = {&a, &b};
            DO(cudaLaunchCooperativeKernel((void *)together, dim3(64), dim3(256), given, 0, 0)); parent<<<1, 1>>>(b);
        }
        for (u64 *one : {a, b}) {
            DO(cudaMemcpy(host.data(), one, SIZE, cudaMemcpyDeviceToHost));
            for (u64 each : host) found = (found ^ each) * 1099511628211ull;
        }
        printf("mark %d %llx\n", turn, found); fflush(stdout);
        usleep(20000 + turn * 7919 % 60000);
    }
}
"""
C_PROGRAMS = ("c_arrays", "c_graph", "c_addresses", "c_cooperative")


def write_programs(folder: Path, turns: int) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Writes the programs and returns the command and the environment of each."""
    found: dict[str, tuple[list[str], dict[str, str]]] = {}
    for block in PYTHON.split("\n=== ")[1:]:
        title, *lines = block.splitlines()
        name, _, rest = title.partition(": ")
        name, _, same_as = name.partition(" = ")
        if same_as:
            found[name] = (found[same_as][0], dict(pair.split("=", 1) for pair in rest.split()))
            continue
        once = "\n".join(line for line in lines if not line.startswith("|"))
        turn = "\n".join(" " * 7 + line[1:] for line in lines if line.startswith("|"))
        loop = f'\nif __name__ == "__main__":\n    for turn in range({turns}):\n{turn}{TURN}'
        (folder / f"{name}.py").write_text(BEGIN.replace("NEEDS", rest) + once + loop)
        found[name] = ([sys.executable, str(folder / f"{name}.py")], {})
    (folder / "c.cu").write_text(C)
    return found | {name: ([str(folder / "c"), name, str(turns)], {}) for name in C_PROGRAMS}


def family(pid: int) -> list[int]:
    """Returns a process and its descendants."""
    found = [pid]
    for one in found:
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        except OSError:
            pass
    return found


def run(command: list[str], environment: dict[str, str], lowtide: str | None, seed: str) -> dict:
    """Runs a program; with `lowtide`, under it and with sleeps."""
    began, dice, sleeps, lines = time.monotonic(), random.Random(seed), [], []
    command = [lowtide, "run", "--", *command] if lowtide else command
    environment = {**os.environ, **ENVIRONMENT, **environment}
    with tempfile.TemporaryFile("w+") as errors:
        started = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
        reader = threading.Thread(target=lambda: [lines.append(line) for line in started.stdout or []], daemon=True)
        reader.start()
        while reader.is_alive() and time.monotonic() < began + LIMIT_S:
            reader.join(dice.uniform(0.02, 0.3))
            if lowtide and lines and reader.is_alive():
                ask = ["timeout", "60", lowtide, "sleep", str(dice.choice(family(started.pid) + [started.pid] * 2))]
                sleeps.append(subprocess.run(ask, capture_output=True, check=False).returncode == 0)
        for pid in family(started.pid)[::-1] if reader.is_alive() else []:
            subprocess.run(["kill", "-9", str(pid)], check=False)
        code = started.wait()
        reader.join(10)
        errors.seek(0)
        told = errors.read()[-1500:]
    marks = [line.strip() for line in lines if line.startswith("mark")] + [f"exit {code}"]
    skipped = next((line[5:].strip() for line in lines if line.startswith("skip")), None)
    took_s = round(time.monotonic() - began, 1)
    return {"marks": marks, "skipped": skipped, "sleeps": sum(sleeps), "s": took_s, "errors": told}


def compare(name: str, command: list[str], environment: dict[str, str], options: argparse.Namespace) -> dict:
    """Runs a program alone and under lowtide, and prints a line."""

    def again(lowtide: str | None = None) -> dict:
        return run(command, environment, lowtide, f"{options.seed} {name}")

    if not Path(command[0]).exists():
        result = {"verdict": "skipped", "why": "there is no nvcc"}
    elif (alone := again())["skipped"]:
        result = {"verdict": "skipped", "why": alone["skipped"]}
    elif alone["marks"][-1] != "exit 0":
        result = {**alone, "verdict": "fails alone", "why": alone["errors"]}
    else:
        ours = again(options.lowtide)
        if alone["marks"] == ours["marks"]:
            verdict = "same" if ours["sleeps"] else "never slept"
        else:
            verdict = "differs" if again()["marks"] == alone["marks"] else "unsteady"
        why = "" if verdict == "same" else f"{ours['marks'][-2:]} {ours['errors']}"
        result = {**ours, "verdict": verdict, "why": why, "marks_alone": alone["marks"]}
    figures = f"{result.get('sleeps', 0)} sleeps, {result.get('s', 0)} s"
    print(f"{name}: {result['verdict']}, {figures} {result['why'][-700:]}", flush=True)
    return result


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--results", type=Path, help="where the results go, as JSON")
    parser.add_argument("--only", help="names, with commas between them")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--write", type=Path, help="write the programs into this folder and end")
    parser.add_argument("--jobs", type=int, default=6, help="how many programs run at a time")
    parser.add_argument("--turns", type=int, default=40, help="how many turns each program has")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of the moments of the sleeps")
    options = parser.parse_args()
    options.lowtide = shutil.which(options.lowtide) or options.lowtide
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.write or Path(temporary)
        programs = write_programs(folder, options.turns)
        names = options.only.split(",") if options.only else list(programs)
        if options.list or options.write:
            sys.exit(print(*names, sep="\n"))
        print("seed", options.seed, flush=True)
        nvcc = shutil.which("nvcc", path=os.environ["PATH"] + ":/usr/local/cuda/bin")
        if nvcc and {*names} & {*C_PROGRAMS}:
            subprocess.run([nvcc, "-arch=native", "-rdc=true", "-o", folder / "c", folder / "c.cu"], check=True)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            each = {name: pool.submit(compare, name, *programs[name], options) for name in names}
        results = {name: one.result() for name, one in each.items()}
    verdicts = [one["verdict"] for one in results.values()]
    print({one: verdicts.count(one) for one in sorted({*verdicts})}, flush=True)
    if options.results:
        options.results.write_text(json.dumps({"seed": options.seed, "programs": results}, indent=1) + "\n")
    sys.exit(bool({*verdicts} - {"same", "skipped"}))


if __name__ == "__main__":
    main()
