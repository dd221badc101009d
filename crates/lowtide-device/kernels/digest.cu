// The digest of every 2 MiB page, computed where the page is.
//
// One block per page, 256 lanes, each lane reading every 256th 16-byte vector.
// The scheme, and why it is sound, is written down once, in `src/page/digest.rs`;
// this file and that one compute the same function, and a conformance test
// holds them together. The keys arrive as a kernel parameter so that, unrolled,
// they are constant operands of the multiply-adds and cost no loads.
//
// Regenerate the PTX beside this file with `cargo xtask ptx`.

typedef unsigned int u32;
typedef unsigned long long u64;

#define LANES 256
#define TILE_VECTORS 8
#define TILE_WORDS (TILE_VECTORS * 4)
#define PAGE_BYTES (2u << 20)
#define TILES (PAGE_BYTES / 16 / LANES / TILE_VECTORS)

struct Keys {
    u64 word[2][TILE_WORDS]; // odd
    u64 chain[2];            // odd
    u64 lane[2];
    u64 seal[2];
};

__device__ __forceinline__ uint4 load_once(const uint4 *at) {
    uint4 v;
    asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    return v;
}

__device__ __forceinline__ u64 scatter(u64 x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    x ^= x >> 33;
    return x;
}

__device__ __forceinline__ u64 chain(u64 sum, u64 key, u64 tile) {
    return (sum ^ (sum >> 32)) * key + tile;
}

// pages: the device address of each page; out: two u64 for each page.
extern "C" __global__ void __launch_bounds__(LANES)
lowtide_digest(const u64 *pages, u64 *out, u64 count, const Keys keys) {
    __shared__ u64 partial[2][LANES / 32];
    const u32 lane = threadIdx.x;

    for (u64 page = blockIdx.x; page < count; page += gridDim.x) {
        const uint4 *at = reinterpret_cast<const uint4 *>(pages[page]) + lane;
        u64 sum0 = 0, sum1 = 0;
        for (u32 tile = 0; tile < TILES; tile++) {
            uint4 v[TILE_VECTORS];
#pragma unroll
            for (u32 i = 0; i < TILE_VECTORS; i++) {
                v[i] = load_once(at + i * LANES);
            }
            at += TILE_VECTORS * LANES;
            u64 t0 = 0, t1 = 0;
#pragma unroll
            for (u32 i = 0; i < TILE_VECTORS; i++) {
                t0 += v[i].x * keys.word[0][4 * i + 0];
                t0 += v[i].y * keys.word[0][4 * i + 1];
                t0 += v[i].z * keys.word[0][4 * i + 2];
                t0 += v[i].w * keys.word[0][4 * i + 3];
                t1 += v[i].x * keys.word[1][4 * i + 0];
                t1 += v[i].y * keys.word[1][4 * i + 1];
                t1 += v[i].z * keys.word[1][4 * i + 2];
                t1 += v[i].w * keys.word[1][4 * i + 3];
            }
            sum0 = chain(sum0, keys.chain[0], t0);
            sum1 = chain(sum1, keys.chain[1], t1);
        }
        u64 h0 = scatter(sum0 + keys.lane[0] * (2 * lane + 1));
        u64 h1 = scatter(sum1 + keys.lane[1] * (2 * lane + 1));
#pragma unroll
        for (u32 step = 16; step > 0; step /= 2) {
            h0 += __shfl_down_sync(0xffffffffu, h0, step);
            h1 += __shfl_down_sync(0xffffffffu, h1, step);
        }
        if (lane % 32 == 0) {
            partial[0][lane / 32] = h0;
            partial[1][lane / 32] = h1;
        }
        __syncthreads();
        if (lane < 2) {
            u64 total = 0;
#pragma unroll
            for (u32 warp = 0; warp < LANES / 32; warp++) {
                total += partial[lane][warp];
            }
            out[2 * page + lane] = scatter(total ^ keys.seal[lane]);
        }
        __syncthreads();
    }
}
