// What a CPU puts into the place of the first half of common.cuh, and of what nvcc itself declares.
//
// Every CUDA thread is a fiber. It runs until it waits: for its warp in an operation of the whole warp, for its block
// in __syncthreads, for bytes in barrier_wait. Blocks run one after another. Asynchronous copies take effect no earlier
// than the wait for them, and shared memory begins as NaNs, so that a forgotten wait or barrier shows in the result.
//
// A launch fails, with a message, on what a GPU would fault on or hang in: accesses outside of memory, misaligned ones,
// lanes of a warp that do different things together, barriers whose bytes never come. It does not see forgotten
// fence_async or wgmma_fence/commit/wait, nor accesses outside of a tensor that hit other memory of the process.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#define TABLE(T) const T&  // its address
#define KERNEL extern "C" __attribute__((visibility("default"))) void
#define DEVICE inline
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __CUDA_ARCH__ 900

typedef unsigned int u32;
typedef unsigned long long u64;
struct alignas(8) int2 { int x, y; };
struct alignas(8) uint2 { u32 x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct Index { u32 x, y, z; };
extern Index threadIdx, blockIdx, blockDim, gridDim;
extern unsigned char* shared_memory;

void __syncthreads();
void __syncwarp();

// ---- numbers

inline float as_float(u32 bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
inline u32 as_bits(float x) {
  u32 bits;
  memcpy(&bits, &x, 4);
  return bits;
}
inline u32 round_to_bf16(float x) {  // to nearest even
  u32 bits = as_bits(x);
  return isnan(x) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline u32 pack_bf16(float low, float high) { return round_to_bf16(low) | round_to_bf16(high) << 16; }
inline float larger(float a, float b) {  // a number before a NaN, +0 before -0
  return a == b ? as_float(as_bits(a) & as_bits(b)) : fmaxf(a, b);
}
inline u32 max_bf16x2(u32 a, u32 b) {
  const u32 high = 0xffff0000u;
  return pack_bf16(larger(as_float(a << 16), as_float(b << 16)), larger(as_float(a & high), as_float(b & high)));
}
inline u32 masks_of_signs(u32 bytes) { return (bytes & 0x80 ? 0xffffu : 0) | (bytes & 0x8000 ? 0xffff0000u : 0); }
inline float fast_exp(float x) { return expf(x); }
inline float fast_log(float x) { return logf(x); }
inline float fast_reciprocal(float x) { return 1 / x; }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
template <class A, class B> inline auto min(A a, B b) { return b < a ? b : a; }
template <class A, class B> inline auto max(A a, B b) { return a < b ? b : a; }

// ---- a warp together

float shuffle_xor(float x, int lanes);
int warp_sum(int x);
int uniform(int x);
void load_matrices(u32 (&r)[4], u32 offset);
void load_matrices_transposed(u32 (&r)[4], u32 offset);
void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);

// ---- memory

template <class T> struct SameType { typedef T type; };  // keeps the second argument from deciding on T
template <class T> inline T atomicAdd(T* to, typename SameType<T>::type x) {
  T before = *to;
  *to = before + x;
  return before;
}
template <class T> inline T atomicMin(T* to, typename SameType<T>::type x) {
  T before = *to;
  *to = min(before, x);
  return before;
}
template <class T> inline T atomicMax(T* to, typename SameType<T>::type x) {
  T before = *to;
  *to = max(before, x);
  return before;
}
void add_pair(float* to, float a, float b);
void copy_async(u32 offset, const void* global);
void copy_async_commit();
void copy_async_wait();

// ---- Hopper

void bulk_store(void* global, u32 offset, u32 bytes);
void bulk_store_commit();
void bulk_store_wait_read();
void barrier_init(u32 offset);
void barrier_expect(u32 offset, u32 bytes);
void barrier_wait(u32 offset, u32 parity);
void bulk_load(u32 offset, const void* global, u32 bytes, u32 barrier);
inline void fence_async() {}
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int PENDING> inline void wgmma_wait() {}
inline void wgmma_touch(float (&)[16]) {}
u32 matrix_descriptor(u32 offset, u32 stride);
void wgmma_64x32x16(float (&d)[16], u32 a, u32 b, int accumulate);
