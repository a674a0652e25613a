// What all kernels share: number formats and the machine's instructions under readable names.
//
// Shared memory is addressed by byte offsets from its beginning. Kernel parameters are pointers and `long`s, all of eight
// bytes, and tables, so that one launcher works for every kernel. A CPU emulator (tests/fast/emulator) compiles these sources with
// SGQN_EMULATED and puts functions of the same names into the place of this file's first half.
#ifdef SGQN_EMULATED
#include "emulator.h"
#else

#define KERNEL extern "C" __global__ void
#define DEVICE __device__ __forceinline__
#define TABLE(T) const __grid_constant__ T  // a kernel's parameter of many numbers, by value
typedef unsigned int u32;
typedef unsigned long long u64;
extern __shared__ __align__(1024) unsigned char shared_memory[];

DEVICE u32 shared_address(u32 offset) { return (u32)__cvta_generic_to_shared(shared_memory) + offset; }

// ---- numbers

DEVICE float as_float(u32 bits) { return __uint_as_float(bits); }
DEVICE u32 as_bits(float x) { return __float_as_uint(x); }
DEVICE u32 pack_bf16(float low, float high) {  // rounded to nearest even
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
DEVICE u32 max_bf16x2(u32 a, u32 b) {
  u32 r;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// Each half becomes all ones where the sign bit of byte 0 (low half) or byte 1 (high half) is set, else zero.
DEVICE u32 masks_of_signs(u32 bytes) {
  u32 r;
  asm("prmt.b32 %0, %1, %1, 0x9988;" : "=r"(r) : "r"(bytes));  // __byte_perm would ignore the replicate-sign bits
  return r;
}
DEVICE float fast_exp(float x) { return __expf(x); }
DEVICE float fast_log(float x) { return __logf(x); }
DEVICE float fast_reciprocal(float x) { return __fdividef(1.f, x); }

// ---- a warp together

DEVICE float shuffle_xor(float x, int lanes) { return __shfl_xor_sync(0xffffffffu, x, lanes); }
DEVICE int warp_sum(int x) { return __reduce_add_sync(0xffffffffu, x); }
// The value of lane 0, known to the compiler to be the same in the whole warp: wgmma must not sit in divergent code.
DEVICE int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }

// ---- tensor cores of one warp: fragments of 16x16 (A) and 16x8 (B) bf16, 16x8 (C) float

DEVICE void load_matrices(u32 (&r)[4], u32 offset) {  // four 8x8 matrices; each lane gives one row's offset
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(offset)));
}
DEVICE void load_matrices_transposed(u32 (&r)[4], u32 offset) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(offset)));
}
DEVICE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- memory

DEVICE void add_pair(float* to, float a, float b) {  // atomically; sm_90 and later in one instruction
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v2.f32 [%0], {%1,%2};" ::"l"(to), "f"(a), "f"(b) : "memory");
#else
  atomicAdd(to, a);
  atomicAdd(to + 1, b);
#endif
}
DEVICE void copy_async(u32 offset, const void* global) {  // 16 bytes to shared memory
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(offset)), "l"(global) : "memory");
}
DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
DEVICE void copy_async_wait() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

#if __CUDA_ARCH__ >= 900
// ---- Hopper: bulk copies, barriers that count their bytes, tensor cores of four warps

// Needed before the barrier that hands ordinary writes to wgmma or to bulk copies, which see memory another way.
DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void bulk_store(void* global, u32 offset, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               ::"l"(global), "r"(shared_address(offset)), "r"(bytes) : "memory");
}
DEVICE void bulk_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
DEVICE void bulk_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
DEVICE void barrier_init(u32 offset) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(offset)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
DEVICE void barrier_expect(u32 offset, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(offset)), "r"(bytes) : "memory");
}
DEVICE void barrier_wait(u32 offset, u32 parity) {
  asm volatile("{\n.reg .pred p;\nW%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra D%=;\nbra W%=;\nD%=:\n}"
               ::"r"(shared_address(offset)), "r"(parity) : "memory");
}
DEVICE void bulk_load(u32 offset, const void* global, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(shared_address(offset)), "l"(global), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }
DEVICE void wgmma_touch(float (&d)[16]) {  // keeps the compiler from moving uses of d across a fence or a wait
#pragma unroll
  for (int i = 0; i < 16; i++) asm volatile("" : "+f"(d[i])::"memory");
}
// The lower half of a descriptor of 8x8 matrices of 128 bytes that follow one another along M (or N) without swizzle;
// `stride` is the distance along K, in 16 bytes.
DEVICE u32 matrix_descriptor(u32 offset, u32 stride) { return ((shared_address(offset) >> 4) & 0x3fffu) | (stride << 16); }
DEVICE void wgmma_64x32x16(float (&d)[16], u32 a, u32 b, int accumulate) {
  u64 full_a = ((u64)8 << 32) | a, full_b = ((u64)8 << 32) | b;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, p, 1, 1, 0, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "l"(full_a), "l"(full_b), "r"(accumulate));
}
#endif
#endif

typedef unsigned char u8;
typedef unsigned short bf16;  // stored bits

DEVICE float to_float(bf16 x) { return as_float((u32)x << 16); }
DEVICE float low_half(u32 pair) { return as_float(pair << 16); }
DEVICE float high_half(u32 pair) { return as_float(pair & 0xffff0000u); }
DEVICE bf16 to_bf16(float x) { return (bf16)pack_bf16(x, 0.f); }
DEVICE float warp_sum(float x) {
  for (int lanes = 16; lanes; lanes >>= 1) x += shuffle_xor(x, lanes);
  return x;
}
DEVICE float warp_max(float x) {
  for (int lanes = 16; lanes; lanes >>= 1) x = fmaxf(x, shuffle_xor(x, lanes));
  return x;
}
DEVICE u32& shared_u32(u32 offset) { return *(u32*)(shared_memory + offset); }
DEVICE uint4& shared_16(u32 offset) { return *(uint4*)(shared_memory + offset); }
DEVICE uint4 zeros_16() {
  uint4 z;
  z.x = z.y = z.z = z.w = 0;
  return z;
}
