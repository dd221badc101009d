// Host memory that the device knows, read over the link by a kernel.
//
// A copy engine does this, too, and a little faster. But the driver clears memory that was given back
// with the same engine, and while it does, copies to the device take twice as long; a kernel does not
// notice. (docs/decisions/0005-sleep-and-wake.md)
//
// Regenerate the PTX beside this file with `cargo xtask ptx`.

typedef unsigned int u32;
typedef unsigned long long u64;

#define LANES 256
// The link is far away: so many reads of each lane are under way at a time.
#define AHEAD 8
#define TILE (LANES * AHEAD)

__device__ __forceinline__ uint4 load_once(const uint4 *at) {
    uint4 v;
    asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    return v;
}

// Copies `count` vectors of 16 bytes. Blocks take tiles in turn.
extern "C" __global__ void __launch_bounds__(LANES)
lowtide_copy_in(const uint4 *from, uint4 *to, u64 count) {
    for (u64 tile = (u64)blockIdx.x * TILE; tile < count; tile += (u64)gridDim.x * TILE) {
        const u64 at = tile + threadIdx.x;
        if (tile + TILE <= count) {
            uint4 v[AHEAD];
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++) {
                v[i] = load_once(from + at + i * LANES);
            }
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++) {
                to[at + i * LANES] = v[i];
            }
        } else {
            for (u64 rest = at; rest < count; rest += LANES) {
                to[rest] = load_once(from + rest);
            }
        }
    }
}
