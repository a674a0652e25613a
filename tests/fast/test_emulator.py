"""The emulator's instructions against torch, and its complaints about kernels that a GPU would fault on or hang in."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.fast.emulated import Emulator, KernelError, requires_compiler

pytestmark = requires_compiler

KERNELS = r"""
#include "common.cuh"

KERNEL numbers(const float* x, u32* packed, u32* larger, u32* masks, long n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    packed[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
    larger[i] = max_bf16x2(packed[i], pack_bf16(x[2 * (n - 1 - i)], x[2 * (n - 1 - i) + 1]));
    masks[i] = masks_of_signs(i);
  }
}

KERNEL arguments(const float* null, long whole, long bits, double* to) {
  if (threadIdx.x == 0) to[0] = !null, to[1] = whole, to[2] = as_float((u32)bits);
}

KERNEL lanes(const int* x, int* sums, int* firsts, float* partners) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  sums[i] = warp_sum(x[i]);
  firsts[i] = uniform(x[i]);
  partners[i] = shuffle_xor((float)x[i], 5);
}

KERNEL matrices(const uint4* rows, u32* plain, u32* transposed) {
  u32 r[4], lane = threadIdx.x;
  shared_16(lane * 16) = rows[lane];
  __syncwarp();
  load_matrices(r, lane * 16);
  for (int m = 0; m < 4; m++) plain[m * 32 + lane] = r[m];
  load_matrices_transposed(r, lane * 16);
  for (int m = 0; m < 4; m++) transposed[m * 32 + lane] = r[m];
}

KERNEL multiply(const uint4* a, const uint4* b, float* c) {  // c += a b: 16x16 by 16x8
  u32 x[4], y[4], lane = threadIdx.x;
  float d[4];
  shared_16(lane * 16) = a[lane];
  shared_16(512 + lane % 16 * 16) = b[lane % 16];
  __syncwarp();
  load_matrices(x, lane % 16 * 32 + lane / 16 * 16);
  load_matrices_transposed(y, 512 + lane % 16 * 16);
  for (int e = 0; e < 4; e++) d[e] = c[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2];
  mma(d, x, y[0], y[1]);
  for (int e = 0; e < 4; e++) c[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = d[e];
}

// Two groups of four warps: d[group] = accumulate * d + a[group] b', a: [K / 8][64][8], b: [K / 8][32][8].
KERNEL multiply_by_group(const uint4* a, const uint4* b, float* c, long accumulate) {
  u32 i = threadIdx.x, group = i / 128, lane = i % 32, first_row = i / 32 % 4 * 16;
  u32 at_a = group * 4096, at_b = 8192, stride_a = 80, stride_b = 40;
  for (u32 k = 0; k < 2; k++) {
    if (i % 128 < 64) shared_16(at_a + (k * stride_a + i % 64) * 16) = a[(group * 2 + k) * 64 + i % 64];
    if (i < 32) shared_16(at_b + (k * stride_b + i) * 16) = b[k * 32 + i];
  }
  fence_async();
  __syncthreads();
  float d[16];
  float* to[16];
  for (u32 e = 0; e < 16; e++) {
    to[e] = c + (group * 64 + first_row + lane / 4 + e / 2 % 2 * 8) * 32 + e / 4 * 8 + lane % 4 * 2 + e % 2;
    d[e] = *to[e];
  }
  wgmma_fence();
  wgmma_64x32x16(d, matrix_descriptor(at_a, stride_a), matrix_descriptor(at_b, stride_b), accumulate);
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_touch(d);
  for (u32 e = 0; e < 16; e++) *to[e] = d[e];
}

KERNEL atomics(float* sums, int* least, int* most) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(sums, 0.5f);
  add_pair(sums + 2, 1.f, (float)i);
  atomicMin(least, 100 - i);
  atomicMax(most, 3 * i);
}

KERNEL reverse(int* x, long with_barrier) {  // within every block, twice
  int i = threadIdx.x, block = blockIdx.y * gridDim.x + blockIdx.x;
  for (int times = 0; times < 2; times++) {
    shared_u32(i * 4) = x[block * blockDim.x + i];
    if (with_barrier) __syncthreads();
    x[block * blockDim.x + i] = shared_u32((blockDim.x - 1 - i) * 4);
    if (with_barrier) __syncthreads();
  }
}

KERNEL leave_early(int* x) {  // threads that have left do not hold up the others
  if (threadIdx.x >= 64) return;
  shared_u32(threadIdx.x * 4) = threadIdx.x;
  __syncthreads();
  x[threadIdx.x] = shared_u32((63 - threadIdx.x) * 4);
}

KERNEL untouched(uint4* x) {
  x[blockIdx.x * 32 + threadIdx.x] = shared_16(threadIdx.x * 16);
  shared_16(threadIdx.x * 16) = zeros_16();
}

KERNEL load(const uint4* from, uint4* early, uint4* late, long commits, long waits) {
  int i = threadIdx.x;
  copy_async(i * 16, from + i);
  if (i < commits) copy_async_commit();
  early[i] = shared_16(i * 16);
  if (i < waits) copy_async_wait();
  __syncthreads();
  late[i] = shared_16((i ^ 1) * 16);
}

KERNEL load_twice(const uint4* from, uint4* early, uint4* to) {  // [2][64]
  int i = threadIdx.x;
  if (i == 0) barrier_init(1024);
  __syncthreads();
  for (int phase = 0; phase < 2; phase++) {
    if (i == 32) {
      barrier_expect(1024, 1024);
      bulk_load(0, from + phase * 64, 512, 1024);
      bulk_load(512, from + phase * 64 + 32, 512, 1024);
    }
    early[phase * 64 + i] = shared_16(i * 16);
    __syncthreads();
    barrier_wait(1024, phase);
    to[phase * 64 + i] = shared_16((63 - i) * 16);
    __syncthreads();
  }
}

KERNEL store(uint4* at_wait, uint4* at_end) {
  u32& word = shared_u32(threadIdx.x * 4);
  word = 1;
  __syncthreads();
  if (threadIdx.x == 0) {
    bulk_store(at_wait, 0, 128);
    bulk_store_commit();
    bulk_store(at_end, 0, 128);
  }
  __syncthreads();
  word = 2;
  __syncthreads();
  if (threadIdx.x == 0) bulk_store_wait_read();
  __syncthreads();
  word = 3;
}

KERNEL misuse(uint4* global, long kind) {
  u32 r[4], i = threadIdx.x, barrier = 512;
  float d[16] = {};
  if (kind >= 20 && i == 0) barrier_init(barrier);
  __syncthreads();
  if (kind == 0) load_matrices(r, i * 16 + (i == 7) * 4);
  if (kind == 1) load_matrices_transposed(r, 528 + i * 16);
  if (kind == 2) copy_async(8, global);
  if (kind == 3) copy_async(1024, global);
  if (kind == 4) copy_async(0, (char*)global + 4);
  if (kind == 5) bulk_store(global, 0, 24);
  if (kind == 6) shared_u32(1020 + i * 4) = 0;
  if (kind == 7) shared_u32(0u - 4) = 0;
  if (kind == 8) shared_16(8) = zeros_16();
  if (kind == 9) *(float2*)((float*)global + 1) = float2();
  if (kind == 10) *(volatile int*)0 = 0;
  if (kind == 11) global[(long)1 << 55] = zeros_16();
  if (kind == 12) bulk_store((void*)16, 0, 16);
  if (kind == 13 && i % 2) __syncwarp();
  if (kind == 13 && i % 2 == 0) warp_sum(1);
  if (kind == 14 && i < 40) __syncwarp();
  if (kind == 15 && i < 40) __syncthreads();
  if (kind == 15 && i >= 40) uniform(1);
  if (kind == 16) wgmma_64x32x16(d, matrix_descriptor(0, 8), matrix_descriptor(0, 8), 0);
  if (kind == 17) barrier_wait(barrier, 0);
  if (kind == 18) add_pair((float*)global + 1, 1.f, 1.f);
  if (kind == 19) *(shared_memory - 65536) = 0;
  if (kind == 20 && i == 0) barrier_expect(barrier, 32);
  if (kind == 20 && i == 0) bulk_load(0, global, 16, barrier);
  if (kind == 20) barrier_wait(barrier, 0);
  if (kind == 21 && i == 0) barrier_expect(barrier, 16);
  if (kind == 21 && i == 0) bulk_load(0, global, 32, barrier);
  if (kind == 21) barrier_wait(barrier, 0);
  if (kind == 22 && i == 0) barrier_expect(barrier, 16);
  if (kind == 22 && i == 0) bulk_load(0, global, 16, barrier);
  if (kind == 23) barrier_wait(barrier, 0);
  if (kind == 24) shared_u32(barrier) = 0;
  if (kind == 24) barrier_wait(barrier, 0);
  if (kind == 25 && i < 2) barrier_expect(barrier, 16);
}

KERNEL misuse_of_group(long kind) {
  float d[16] = {};
  u32 a = matrix_descriptor(kind == 0 && threadIdx.x == 5 ? 16 : 0, 64);
  wgmma_64x32x16(d, a, matrix_descriptor(0, kind == 1 ? 33 : 32), 0);
}
"""

MISUSES = {
    0: "thread 7 of block .*load_matrices at 116 of shared memory, not a multiple of 16",
    1: r"load_matrices_transposed of bytes \d* to \d* of 1024 bytes of shared memory",
    2: "copy_async at 8 of shared memory, not a multiple of 16",
    3: "copy_async of bytes 1024 to 1040 of 1024",
    4: "copy_async at 0x.* of global memory, not a multiple of 16",
    5: "bulk_store of 24 bytes, not a multiple of 16",
    6: r"access at 1\d* of 1024 bytes of shared memory",
    7: "access at 4294967292 of 1024 bytes of shared memory",
    8: "misaligned access",
    9: "misaligned access",
    10: "access outside of memory, at ",
    11: "access outside of memory, at ",
    12: "access outside of memory, at 0x10",
    13: "while its warp is in",
    14: "block .*: threads wait for ever: 8 in __syncwarp",
    15: "threads wait for ever: 40 in __syncthreads, 24 in uniform",
    16: "wgmma by less than four warps",
    17: "barrier_wait: no barrier_init at 512",
    18: "add_pair at .*, not a multiple of 8",
    19: "access at -65536 of 1024 bytes of shared memory",
    20: "wait for ever: 64 in barrier_wait; barrier at 512 has 16 of 32 bytes",
    21: "barrier at 512 expects 16 bytes and gets 32",
    22: "nobody waits for the bytes of the barrier at 512",
    23: "wait for ever: 64 in barrier_wait; barrier at 512 has 0 of 0 bytes",
    24: "barrier at 512 is overwritten",
    25: "barrier_expect at 512 before anyone has waited",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "primitives.cu"
    path.write_text(KERNELS)
    return path


@pytest.fixture(params=[False, True], ids=["forwards", "backwards"])
def emulator(source: Path, request: pytest.FixtureRequest) -> Emulator:
    return Emulator(source, backwards=request.param)


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def integers(*shape: int) -> Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, generator=torch.Generator().manual_seed(0))


def test_numbers(emulator: Emulator):
    n = 1 << 16
    every_half = torch.arange(n, dtype=torch.int32) << 16  # all bf16, with and without something to round
    bits = torch.cat([every_half, every_half | 0x8000, every_half | 0x8001, every_half | 0x7FFF, integers(2 * n)])
    x = bits[torch.randperm(len(bits), generator=torch.Generator().manual_seed(0))][: 2 * n].view(torch.float32)
    packed, larger, masks = torch.empty(3, n, dtype=torch.int32)
    emulator.launch("numbers", 1, 32, 0, x, packed, larger, masks, n)

    rounded, got = x.bfloat16(), packed.view(torch.bfloat16)
    numbers = ~rounded.isnan()
    assert torch.equal(got.view(torch.int16)[numbers], rounded.view(torch.int16)[numbers])
    assert (got.view(torch.int16)[~numbers] == 0x7FFF).all()

    other = got.view(n, 2).flip(0).flatten()
    expected = torch.fmax(got.float(), other.float()).bfloat16()
    torch.testing.assert_close(larger.view(torch.bfloat16), expected, rtol=0, atol=0, equal_nan=True)

    signs = torch.arange(n, dtype=torch.int16).view(torch.int8).view(n, 2) < 0
    assert torch.equal(masks.view(torch.int16).view(n, 2) == -1, signs)
    assert torch.equal(masks.view(torch.int16).view(n, 2) == 0, ~signs)


def test_arguments(emulator: Emulator):
    to = torch.empty(3, dtype=torch.float64)
    emulator.launch("arguments", 1, 32, 0, None, -(2**40), 0.1, to)
    assert to.tolist() == [1, -(2**40), struct.unpack("f", struct.pack("f", 0.1))[0]]


def test_lanes_of_a_warp(emulator: Emulator):
    x = integers(2, 3, 32)
    sums, firsts = torch.empty(2, *x.shape, dtype=torch.int32)
    partners = torch.empty(x.shape)
    emulator.launch("lanes", 2, 96, 0, x, sums, firsts, partners)
    assert torch.equal(sums, x.long().sum(-1, keepdim=True).to(torch.int32).expand_as(x))  # wraps
    assert torch.equal(firsts, x[..., :1].expand_as(x))
    assert torch.equal(partners, x[..., torch.arange(32) ^ 5].float())


def test_matrices(emulator: Emulator):
    x = torch.arange(256, dtype=torch.int16).view(4, 8, 8)
    plain, transposed = torch.empty(2, 4, 32, dtype=torch.int32)
    emulator.launch("matrices", 1, 32, 512, x, plain, transposed)
    assert torch.equal(plain.view(torch.int16).view(4, 8, 8), x)
    assert torch.equal(transposed.view(torch.int16).view(4, 8, 8), x.mT)


def test_product_by_a_warp(emulator: Emulator):
    a, b, before = normal(16, 16), normal(16, 8), normal(16, 8, dtype=torch.float32)
    c = before.clone()
    emulator.launch("multiply", 1, 32, 768, a, b, c)
    torch.testing.assert_close(c.double(), before.double() + a.double() @ b.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("accumulate", [0, 1])
def test_product_by_four_warps(emulator: Emulator, accumulate: int):
    a, b, before = normal(2, 64, 16), normal(32, 16), normal(2, 64, 32, dtype=torch.float32)
    c = before.clone()
    planar_a, planar_b = (x.unflatten(-1, (2, 8)).transpose(-3, -2).contiguous() for x in (a, b))
    emulator.launch("multiply_by_group", 1, 256, 10240, planar_a, planar_b, c, accumulate)
    expected = before.double() * accumulate + a.double() @ b.double().mT
    torch.testing.assert_close(c.double(), expected, atol=1e-5, rtol=1e-5)


def test_atomics(emulator: Emulator):
    sums, least, most = torch.zeros(4), torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    emulator.launch("atomics", 2, 128, 0, sums, least, most)
    assert sums.tolist() == [128, 0, 256, 255 * 128]
    assert (least.item(), most.item()) == (-155, 765)


def test_barrier_of_a_block(emulator: Emulator):
    x = integers(3, 2, 512)
    got = x.clone()
    emulator.launch("reverse", (2, 3), 512, 2048, got, 1)
    assert torch.equal(got, x)
    emulator.launch("reverse", (2, 3), 512, 2048, got, 0)
    assert not torch.equal(got, x)
    emulator.launch("leave_early", 1, 128, 256, got)
    assert got.flatten()[:64].tolist() == list(range(63, -1, -1))


def test_shared_memory_begins_as_nan(emulator: Emulator):
    x = torch.zeros(3, 32, 4)
    emulator.launch("untouched", 3, 32, 512, x)
    assert x.isnan().all()


def test_copies_are_there_after_the_wait_of_their_thread(emulator: Emulator):
    x = torch.arange(256, dtype=torch.int32).view(64, 4)
    early, late = torch.empty(2, *x.shape, dtype=torch.int32)
    partners = x[torch.arange(64) ^ 1]
    emulator.launch("load", 1, 64, 1024, x, early, late, 64, 64)
    assert (early == -1).all()
    assert torch.equal(late, partners)
    for commits, waits in ((40, 64), (64, 40)):
        emulator.launch("load", 1, 64, 1024, x, early, late, commits, waits)
        assert torch.equal(late[:40], partners[:40])
        assert (late[40:] == -1).all()


def test_bulk_loads_are_there_after_the_wait_for_their_barrier(emulator: Emulator):
    x = torch.arange(512, dtype=torch.int32).view(2, 64, 4)
    early, to = torch.empty(2, *x.shape, dtype=torch.int32)
    emulator.launch("load_twice", 1, 64, 1032, x, early, to)
    assert (early[0] == -1).all()
    assert torch.equal(early[1], x[0])
    assert torch.equal(to, x.flip(1))


def test_bulk_stores_read_no_earlier_than_the_wait(emulator: Emulator):
    at_wait, at_end = torch.zeros(2, 32, dtype=torch.int32)
    emulator.launch("store", 1, 32, 128, at_wait, at_end)
    assert at_wait.tolist() == [2] * 32
    assert at_end.tolist() == [3] * 32


@pytest.mark.parametrize(("kind", "error"), MISUSES.items())
def test_misuse_is_an_error(emulator: Emulator, kind: int, error: str):
    x = torch.zeros(256, dtype=torch.int32)
    with pytest.raises(KernelError, match=f"^misuse: .*{error}"):
        emulator.launch("misuse", (2, 2), 64, 1024, x, kind)
    emulator.launch("misuse", (2, 2), 64, 1024, x, 99)


@pytest.mark.parametrize(
    ("kind", "bytes_", "error"),
    [(0, 4096, "operands differ between lanes 0 and 5"), (1, 1040, r"wgmma of bytes \d* to \d* of 1040 bytes")],
)
def test_misuse_by_four_warps_is_an_error(emulator: Emulator, kind: int, bytes_: int, error: str):
    with pytest.raises(KernelError, match=error):
        emulator.launch("misuse_of_group", 1, 128, bytes_, kind)


def test_bad_launches_are_errors(source: Path):
    emulator = Emulator(source)
    with pytest.raises(KernelError, match="no kernel 'nothing'; there are arguments, atomics"):
        emulator.launch("nothing", 1, 32, 0)
    with pytest.raises(KernelError, match="untouched has 1 parameters and got 2"):
        emulator.launch("untouched", 1, 32, 0, None, None)
    with pytest.raises(KernelError, match="1 to 65535 blocks"):
        emulator.launch("untouched", (1, 0), 32, 512, None)
    with pytest.raises(KernelError, match="whole warps"):
        emulator.launch("untouched", 1, 48, 512, None)
    with pytest.raises(KernelError, match="232448 bytes of shared memory"):
        emulator.launch("untouched", 1, 32, 232449, None)
    with pytest.raises(KernelError, match="tensors of the CPU, not of meta"):
        emulator.launch("untouched", 1, 32, 512, torch.empty(1, device="meta"))


def test_what_does_not_compile_is_an_error(tmp_path: Path):
    (tmp_path / "broken.cu").write_text("KERNEL broken(long x) { undeclared(x); }")
    with pytest.raises(KernelError, match=r"broken\.cu does not compile:\n(.|\n)*error"):
        Emulator(tmp_path / "broken.cu")
