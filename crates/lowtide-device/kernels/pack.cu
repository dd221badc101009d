// Packed pages: 2 MiB of bf16 values in 1.51 MiB, packed and unpacked where the page is.
//
// The format is written down once, in `src/page/packing.rs`; this file and that one write the same bytes,
// and a conformance test holds them together. A packed page lies in host memory that the device
// knows: the kernels read and write it over the link, so that packing takes no device memory.
//
// Four blocks share a page, one for each segment. A block takes tiles of 4,096 values, one behind the
// other, 16 values a lane; so the escapes of a segment come in the order of their positions, and a
// prefix sum over the lanes says where each goes.
//
// Regenerate the PTX beside this file with `cargo xtask ptx`.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define LANES 256
#define WARPS (LANES / 32)
#define PAGE_BYTES (2u << 20)
#define VALUES (PAGE_BYTES / 2)
#define SEGMENTS 4
#define SEGMENT_VALUES (VALUES / SEGMENTS)
#define LANE_VALUES 16
#define TILE_VALUES (LANES * LANE_VALUES)
#define TILES (SEGMENT_VALUES / TILE_VALUES)
#define ESCAPES_MOST 764u

#define ESCAPES_AT (SEGMENTS * 16)
#define BYTES_AT (ESCAPES_AT + SEGMENTS * ESCAPES_MOST * 4)
#define CODES_AT (BYTES_AT + VALUES)
#define PACKED_BYTES (CODES_AT + VALUES / 2)

#define MARK (0x4c000000u | (PACKED_BYTES / 4096) << 12)
#define POSITION (SEGMENT_VALUES - 1)

#define WINDOW 14u
#define ZERO 14u
#define ESCAPE 15u
#define BASE_LEAST WINDOW

#define SAMPLED_PART (128u << 10)

// The indices of words in a checksum.
#define CODE_WORDS_AT (SEGMENT_VALUES / 4)
#define ESCAPE_WORDS_AT (CODE_WORDS_AT + SEGMENT_VALUES / 8)
#define MARK_WORD (ESCAPE_WORDS_AT + ESCAPES_MOST)
#define COUNT_WORD (MARK_WORD + 1)

#define ALL 0xffffffffu

__device__ __forceinline__ uint4 load_once(const uint4 *at) {
    uint4 v;
    asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    return v;
}

__device__ __forceinline__ uint2 load_once(const uint2 *at) {
    uint2 v;
    asm volatile("ld.global.cs.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(at));
    return v;
}

__device__ __forceinline__ u64 weighted(u32 word, u32 index) {
    return (u64)word * (2 * index + 1);
}

// Four values are worked on at once: their low and their high bytes, their exponents or their codes are
// the four bytes of a word.
#define EACH 0x01010101u

__device__ __forceinline__ u32 low_bytes(uint2 values) {
    return __byte_perm(values.x, values.y, 0x6420);
}

__device__ __forceinline__ u32 high_bytes(uint2 values) {
    return __byte_perm(values.x, values.y, 0x7531);
}

__device__ __forceinline__ u32 exponents_of(uint2 values) {
    return (high_bytes(values) & 0x7f * EACH) << 1 | (low_bytes(values) >> 7 & EACH);
}

// 0xff in each byte that is at least `least`, which is at most 0x80; 0 in the others.
__device__ __forceinline__ u32 at_least(u32 bytes, u32 least) {
    return (((bytes & 0x7f * EACH) + (0x80 - least) * EACH | bytes) >> 7 & EACH) * 0xff;
}

// `base` is in each byte, here and below. No byte borrows from the next.
__device__ __forceinline__ u32 below_base(u32 bytes, u32 base) {
    const u32 top = 0x80 * EACH;
    return ((base | top) - (bytes & ~top)) ^ ((base ^ ~bytes) & top);
}

// 0xff for each exponent that has no code.
__device__ __forceinline__ u32 escapes_of(u32 exponents, u32 base) {
    return at_least(below_base(exponents, base), WINDOW) & at_least(exponents, 1);
}

__device__ __forceinline__ u32 join(u32 byte, u32 exponent) {
    return (byte & 0x80) << 8 | exponent << 7 | (byte & 0x7f);
}

// The sum over all lanes of the block, in every lane. Lanes wait for one another before and after.
__device__ __forceinline__ u64 sum_of_block(u64 own, u64 *partial) {
#pragma unroll
    for (u32 step = 16; step > 0; step /= 2) {
        own += __shfl_xor_sync(ALL, own, step);
    }
    if (threadIdx.x % 32 == 0) {
        partial[threadIdx.x / 32] = own;
    }
    __syncthreads();
    u64 total = 0;
#pragma unroll
    for (u32 warp = 0; warp < WARPS; warp++) {
        total += partial[warp];
    }
    __syncthreads();
    return total;
}

// pages: the device address of each page; out: the base and, above 8 bits, the escapes of the segment
// that has most, for each page. One block for each page.
extern "C" __global__ void __launch_bounds__(LANES)
lowtide_look(const u64 *pages, u32 *out, u64 count) {
    __shared__ u32 counts[256];
    __shared__ u32 best;
    __shared__ u32 escapes[SEGMENTS];
    const u32 lane = threadIdx.x;

    for (u64 page = blockIdx.x; page < count; page += gridDim.x) {
        const uint4 *at = reinterpret_cast<const uint4 *>(pages[page]);
        counts[lane] = 0;
        if (lane < SEGMENTS) {
            escapes[lane] = 0;
        }
        best = 0;
        __syncthreads();
#pragma unroll 4
        for (u32 part = 0; part < PAGE_BYTES / SAMPLED_PART; part++) {
            const uint4 v = at[part * (SAMPLED_PART / 16) + lane];
            const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                atomicAdd(&counts[words[i] >> 7 & 0xff], 1);
                atomicAdd(&counts[words[i] >> 23 & 0xff], 1);
            }
        }
        __syncthreads();
        // Each lane tries the base of its number; the smallest of the best ones is taken. A sample
        // has 32,768 values.
        if (lane >= BASE_LEAST) {
            u32 covered = 0;
#pragma unroll 2
            for (u32 code = 0; code < WINDOW; code++) {
                covered += counts[lane - code];
            }
            atomicMax(&best, covered << 8 | (255 - lane));
        }
        __syncthreads();
        const u32 base = 255 - (best & 0xff);
        for (u32 segment = 0; segment < SEGMENTS; segment++) {
            u32 found = 0;
#pragma unroll 4
            for (u32 tile = 0; tile < SEGMENT_VALUES / 8 / LANES; tile++) {
                const uint4 v = load_once(at + segment * (SEGMENT_VALUES / 8) + tile * LANES + lane);
                found += __popc(escapes_of(exponents_of(make_uint2(v.x, v.y)), base * EACH) & EACH);
                found += __popc(escapes_of(exponents_of(make_uint2(v.z, v.w)), base * EACH) & EACH);
            }
#pragma unroll
            for (u32 step = 16; step > 0; step /= 2) {
                found += __shfl_down_sync(ALL, found, step);
            }
            if (lane % 32 == 0) {
                atomicAdd(&escapes[segment], found);
            }
        }
        __syncthreads();
        if (lane == 0) {
            u32 most = 0;
            for (u32 segment = 0; segment < SEGMENTS; segment++) {
                most = max(most, escapes[segment]);
            }
            out[page] = most << 8 | base;
        }
        __syncthreads();
    }
}

// Packs neighbouring pages. bases: a byte for each. One block for each segment of each page.
extern "C" __global__ void __launch_bounds__(LANES)
lowtide_pack(const u8 *pages, u8 *packed, u64 bases) {
    __shared__ u64 partial[WARPS];
    __shared__ u32 of_warps[2][WARPS];
    const u32 lane = threadIdx.x, page = blockIdx.x / SEGMENTS, segment = blockIdx.x % SEGMENTS;
    const u32 base = bases >> 8 * page & 0xff;
    const uint4 *from =
        reinterpret_cast<const uint4 *>(pages + (u64)page * PAGE_BYTES + segment * (PAGE_BYTES / SEGMENTS));
    packed += (u64)page * PACKED_BYTES;
    uint4 *bytes = reinterpret_cast<uint4 *>(packed + BYTES_AT + segment * SEGMENT_VALUES);
    uint2 *codes = reinterpret_cast<uint2 *>(packed + CODES_AT + segment * (SEGMENT_VALUES / 2));
    u32 *escapes = reinterpret_cast<u32 *>(packed + ESCAPES_AT) + segment * ESCAPES_MOST;

    u64 sum = 0;
    u32 before = 0; // escapes of the tiles before
    for (u32 tile = 0; tile < TILES; tile++) {
        const u32 at = tile * LANES + lane;
        const uint4 first = load_once(from + 2 * at), second = load_once(from + 2 * at + 1);
        const uint2 values[4] = {{first.x, first.y}, {first.z, first.w}, {second.x, second.y}, {second.z, second.w}};
        u32 byte_words[4], codes_by_four[4], escaped = 0; // a bit for each value
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 exponents = exponents_of(values[i]);
            const u32 some = at_least(exponents, 1), escape = escapes_of(exponents, base * EACH);
            const u32 code = (escape & ESCAPE * EACH) | (~some & ZERO * EACH) |
                             (some & ~escape & below_base(exponents, base * EACH));
            byte_words[i] = (high_bytes(values[i]) & 0x80 * EACH) | (low_bytes(values[i]) & 0x7f * EACH);
            codes_by_four[i] = code | code >> 4;
            escaped |= ((escape & EACH) * 0x10204080u >> 28) << 4 * i;
        }
        const u32 code_words[2] = {__byte_perm(codes_by_four[0], codes_by_four[1], 0x6420),
                                   __byte_perm(codes_by_four[2], codes_by_four[3], 0x6420)};
        const u32 own = __popc(escaped);
        bytes[at] = make_uint4(byte_words[0], byte_words[1], byte_words[2], byte_words[3]);
        codes[at] = make_uint2(code_words[0], code_words[1]);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            sum += weighted(byte_words[i], 4 * at + i);
        }
        sum += weighted(code_words[0], CODE_WORDS_AT + 2 * at);
        sum += weighted(code_words[1], CODE_WORDS_AT + 2 * at + 1);

        // The escapes of lanes before this one, within the warp, then of the warps before. Two halves
        // take turns, so that a warp that is ahead does not write what another still reads.
        u32 until = own;
#pragma unroll
        for (u32 step = 1; step < 32; step *= 2) {
            const u32 other = __shfl_up_sync(ALL, until, step);
            until += lane % 32 >= step ? other : 0;
        }
        if (lane % 32 == 31) {
            of_warps[tile % 2][lane / 32] = until;
        }
        __syncthreads();
        u32 next = before + until - own;
#pragma unroll
        for (u32 warp = 0; warp < WARPS; warp++) {
            const u32 of_warp = of_warps[tile % 2][warp];
            next += warp < lane / 32 ? of_warp : 0;
            before += of_warp;
        }
        for (; escaped != 0; escaped &= escaped - 1, next++) {
            if (next < ESCAPES_MOST) {
                const u32 position = at * LANE_VALUES + __ffs(escaped) - 1;
                const u32 value = reinterpret_cast<const u16 *>(from)[position];
                const u32 escape = (value >> 7 & 0xff) << 24 | position;
                escapes[next] = escape;
                sum += weighted(escape, ESCAPE_WORDS_AT + next);
            }
        }
    }
    for (u32 unused = before + lane; unused < ESCAPES_MOST; unused += LANES) {
        escapes[unused] = 0;
    }
    const u64 total = sum_of_block(sum, partial);
    if (lane == 0) {
        const u32 mark = MARK | segment << 8 | base;
        const u64 checksum = total + weighted(mark, MARK_WORD) + weighted(before, COUNT_WORD);
        reinterpret_cast<uint4 *>(packed)[segment] =
            make_uint4(mark, before, (u32)checksum, (u32)(checksum >> 32));
    }
}

// Unpacks neighbouring pages. Every write is inside the block's own segment of a page, whatever is in
// the packed ones. One block for each segment of each page.
extern "C" __global__ void __launch_bounds__(LANES)
lowtide_unpack(const u8 *packed, u8 *pages) {
    const u32 lane = threadIdx.x, page = blockIdx.x / SEGMENTS, segment = blockIdx.x % SEGMENTS;
    u8 *to = pages + (u64)page * PAGE_BYTES + segment * (PAGE_BYTES / SEGMENTS);
    packed += (u64)page * PACKED_BYTES;
    const u8 *own_bytes = packed + BYTES_AT + segment * SEGMENT_VALUES;
    const uint4 *bytes = reinterpret_cast<const uint4 *>(own_bytes);
    const uint2 *codes =
        reinterpret_cast<const uint2 *>(packed + CODES_AT + segment * (SEGMENT_VALUES / 2));
    const u32 *escapes = reinterpret_cast<const u32 *>(packed + ESCAPES_AT) + segment * ESCAPES_MOST;
    const u32 *record = reinterpret_cast<const u32 *>(packed) + 4 * segment;
    const u32 base = record[0] & 0xff, count = min(record[1], ESCAPES_MOST);

    // Several tiles are asked for before the first is used: the link is far away.
    const u32 ahead = 4;
    for (u32 tile = 0; tile < TILES; tile += ahead) {
        uint4 b[ahead];
        uint2 c[ahead];
#pragma unroll
        for (u32 i = 0; i < ahead; i++) {
            b[i] = load_once(bytes + (tile + i) * LANES + lane);
            c[i] = load_once(codes + (tile + i) * LANES + lane);
        }
#pragma unroll
        for (u32 i = 0; i < ahead; i++) {
            const u32 byte_words[4] = {b[i].x, b[i].y, b[i].z, b[i].w};
            const u32 code_words[2] = {c[i].x, c[i].y};
            u32 words[8];
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const u32 four = __byte_perm(code_words[j / 2], 0, j % 2 ? 0x4342 : 0x4140);
                const u32 code = (four | four << 4) & 0x0f * EACH;
                // An escape has the exponent 0 until its entry is read.
                const u32 exponent = below_base(code, base * EACH) & ~at_least(code, ZERO);
                const u32 low = (byte_words[j] & 0x7f * EACH) | (exponent & EACH) << 7;
                const u32 high = (byte_words[j] & 0x80 * EACH) | (exponent >> 1 & 0x7f * EACH);
                words[2 * j] = __byte_perm(low, high, 0x5140);
                words[2 * j + 1] = __byte_perm(low, high, 0x7362);
            }
            uint4 *at = reinterpret_cast<uint4 *>(to) + 2 * ((tile + i) * LANES + lane);
            at[0] = make_uint4(words[0], words[1], words[2], words[3]);
            at[1] = make_uint4(words[4], words[5], words[6], words[7]);
        }
    }
    __syncthreads();
    for (u32 i = lane; i < count; i += LANES) {
        const u32 escape = escapes[i], position = escape & POSITION;
        reinterpret_cast<u16 *>(to)[position] = join(own_bytes[position], escape >> 24);
    }
}
