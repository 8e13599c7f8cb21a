// Copies whole pages between the engine's cache and host memory, many in one launch.
//
// A page is a group's runs one after the other. Run r of device block b lies at
// runs[r].address + b * runs[r].block_stride_bytes, and in host memory at
// pages[p].host_address + runs[r].page_offset_bytes.
//
// Grid: (pieces of a run, runs, pages); any number of threads and pieces is right.
// Every address, stride, offset and size is a multiple of the word of the entry
// that is launched; a run has fewer than 2^31 words. Host memory is pinned and
// mapped at its own address.
//
// The structures are laid out as in kernel_block.py, which fills them.

struct Run {
  long long address;
  long long block_stride_bytes;
  long long page_offset_bytes;
  long long size_bytes;
};

struct Page {
  long long block_id;
  long long host_address;
};

// 4096 bytes, all that a launch may pass by value on every device: the pages of a
// launch need no memory of their own that would have to outlive it.
struct Operation {
  const Run* runs;
  long long to_host;
  Page pages[255];
};

template <typename Word>
__device__ void copy_piece(const Operation& operation) {
  const Run run = operation.runs[blockIdx.y];
  const long long block_id = operation.pages[blockIdx.z].block_id;
  Word* device = reinterpret_cast<Word*>(run.address + block_id * run.block_stride_bytes);
  Word* host = reinterpret_cast<Word*>(operation.pages[blockIdx.z].host_address +
                                       run.page_offset_bytes);
  const Word* source = operation.to_host ? device : host;
  Word* target = operation.to_host ? host : device;
  const unsigned words = static_cast<unsigned>(run.size_bytes / sizeof(Word));
  const unsigned step = gridDim.x * blockDim.x;
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  // Four loads before the first store: what is read over PCIe is far away.
#pragma unroll 1
  for (; i + 3 * step < words; i += 4 * step) {
    const Word first = source[i];
    const Word second = source[i + step];
    const Word third = source[i + 2 * step];
    const Word fourth = source[i + 3 * step];
    target[i] = first;
    target[i + step] = second;
    target[i + 2 * step] = third;
    target[i + 3 * step] = fourth;
  }
#pragma unroll 1
  for (; i < words; i += step) {
    target[i] = source[i];
  }
}

#define ENTRY(bytes, Word)                                                             \
  extern "C" __global__ void copy_pages_##bytes(const __grid_constant__ Operation op) { \
    copy_piece<Word>(op);                                                               \
  }

ENTRY(16, uint4)
ENTRY(8, unsigned long long)
ENTRY(4, unsigned int)
ENTRY(2, unsigned short)
ENTRY(1, unsigned char)
