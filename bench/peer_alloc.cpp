// Measures a hit in the allocators that lowtide is compared with: free a block and allocate one, by raw
// address, on one thread. In C++, because Python's own time would hide theirs. peer_alloc.py compiles
// this, loads it beside PyTorch's libraries, and passes it the work.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>

namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

void check(cudaError_t code) {
    if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

struct Torch {
    cudaStream_t stream;
    void* take(size_t size) { return caching::raw_alloc_with_stream(size, stream); }
    void free(void* block) { caching::raw_delete(block); }
    void trim() { caching::emptyCache(); }
};

struct CudaAsync {
    cudaStream_t stream;
    cudaMemPool_t pool;

    explicit CudaAsync(cudaStream_t on) : stream(on) {
        check(cudaDeviceGetDefaultMemPool(&pool, 0));
        // By default the pool gives everything back whenever the stream is waited for.
        uint64_t keep = std::numeric_limits<uint64_t>::max();
        check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    }
    void* take(size_t size) {
        void* block = nullptr;
        check(cudaMallocAsync(&block, size, stream));
        return block;
    }
    void free(void* block) { check(cudaFreeAsync(block, stream)); }
    void trim() {
        check(cudaStreamSynchronize(stream));
        check(cudaMemPoolTrimTo(pool, 0));
    }
};

struct Work {
    uint64_t blocks;
    const uint64_t* sizes;
    const uint64_t* visits;
    bool other;
    int rounds;
};

template <class Allocator>
double median_round_ns(Allocator& allocator, const Work& work, std::vector<void*>& held) {
    for (uint64_t i = 0; i < work.blocks; ++i) held[i] = allocator.take(work.sizes[i]);
    std::vector<uint64_t> wanted(work.blocks);
    std::vector<double> rounds_ns;
    // A processor that has rested is slow at first: as lowtide's own bench does, 0.2 s are not measured.
    auto warm = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (!work.other && std::chrono::steady_clock::now() < warm) {
        for (uint64_t i = 0; i < work.blocks; ++i) {
            void*& block = held[work.visits[i]];
            allocator.free(block);
            block = nullptr;
            block = allocator.take(work.sizes[work.visits[i]]);
        }
    }
    for (int round = 0; round < work.rounds; ++round) {
        // Later rounds reach further: otherwise the second would ask for what the first left there.
        uint64_t ahead = work.other ? 1 + round : 0;
        for (uint64_t i = 0; i < work.blocks; ++i)
            wanted[i] = work.sizes[work.visits[(i + ahead) % work.blocks]];
        check(cudaStreamSynchronize(allocator.stream));
        auto began = std::chrono::steady_clock::now();
        for (uint64_t i = 0; i < work.blocks; ++i) {
            void*& block = held[work.visits[i]];
            allocator.free(block);
            block = nullptr;
            block = allocator.take(wanted[i]);
        }
        std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - began;
        rounds_ns.push_back(took.count() / work.blocks);
    }
    std::sort(rounds_ns.begin(), rounds_ns.end());
    return rounds_ns[rounds_ns.size() / 2];
}

template <class Allocator>
double measure(Allocator allocator, const Work& work) {
    std::vector<void*> held(work.blocks, nullptr);
    // The next mode starts from an empty cache, out of memory or not.
    auto empty = [&] {
        for (void* block : held)
            if (block != nullptr) allocator.free(block);
        allocator.trim();
    };
    try {
        double ns = median_round_ns(allocator, work, held);
        empty();
        return ns;
    } catch (...) {
        cudaGetLastError(); // or the next call reports it once more
        empty();
        throw;
    }
}

} // namespace

// Returns 0, or 1 with the reason in `why`.
extern "C" int peer_alloc(const char* peer, int other, uint64_t blocks, const uint64_t* sizes,
                          const uint64_t* visits, int rounds, double* ns_per_pair, char* why,
                          size_t why_bytes) {
    try {
        cudaStream_t stream = nullptr;
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        Work work{blocks, sizes, visits, other != 0, rounds};
        bool async = std::strcmp(peer, "cuda-async") == 0;
        *ns_per_pair = async ? measure(CudaAsync(stream), work) : measure(Torch{stream}, work);
        return 0;
    } catch (const std::exception& error) {
        std::snprintf(why, why_bytes, "%s", error.what());
        return 1;
    }
}
