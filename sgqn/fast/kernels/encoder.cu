// The paper's encoder, fused: eleven 3x3 convolutions of 32 filters on 9x84x84 pictures, ReLU between them.
//
// One thread block runs one image through all layers; activations between layers stay in shared memory. Hopper only.
//
// Layers. Level 0 is the output of the first convolution (stride 2): 41x41. Layer l = 0..9 takes level l, S x S with
// S = 41 - 2 l, to level l + 1, (S - 2) x (S - 2). Level 10, 21x21, is the features, without ReLU.
//
// Planar layout, of a level (and of its gradient) in shared and in global memory: [4][pixel][8] bf16, 8 channels of a pixel are 16 bytes. The
// tensor cores want matrices of 8 pixels x 8 channels, 128 bytes: here that is any 8 pixels in a row, so the tap (y, x) of
// a convolution is the same matrix, y S + x pixels on. Output pixels are computed with the input's pitch S; the two
// columns too many of each row are thrown away. In global memory levels follow one another, each [picture][4][pixel][8].
//
// Gates: which units of a level are positive, one bit each. Byte j of a pixel's four covers the channels 8 n + 2 j (bit n)
// and 8 n + 2 j + 1 (bit 4 + n), n = 0..3: what one lane of the tensor cores holds of a pixel.
//
// Packed weights, bf16: see `encoder_pack`.
#include "common.cuh"

#define THREADS 512
#define FIRST_LEVEL 41
#define PICTURE 63504  // bytes: 84 * 84 * 9
#define QUADS 1764     // of four pixels in an image
#define FEATURES 14112
#define FEATURE_PIXELS 441
#define LAYER_16 1152  // a packed 32 -> 32 layer in 16 bytes: 9 taps * 4 * 32 * 8 * 2 bytes

#define PACKED_FIRST 0                               // in elements
#define PACKED_FORWARD 3072                          // [10][tap 9][ci / 8][co][8]
#define PACKED_BACKWARD (PACKED_FORWARD + 92160)     // [10][tap 9][co / 8][ci][8], taps mirrored
#define PACKED_PIXELS (PACKED_BACKWARD + 92160)      // fragments of the first layer's input gradient
#define PACKED_END (PACKED_PIXELS + 5120)

// Pixels of the levels below `level`, for one image.
DEVICE int pixels_before(int level) {
  int sum = 0;
  for (int l = 0; l < level; l++) {
    int S = FIRST_LEVEL - 2 * l;
    sum += S * S;
  }
  return sum;
}
// Where an image's part of a level begins, in pixels.
DEVICE size_t place(int before, long pictures, int picture, int pixels) {
  return (size_t)before * pictures + (size_t)picture * pixels;
}
DEVICE float byte_to_float(u32 b) { return as_float(0x4B000000u | b) - 8388608.f; }  // 2^23 + b - 2^23
DEVICE u32 bytes_to_bf16(u32 a, u32 b) {  // integers up to 255 are exact
  return (as_bits(byte_to_float(a)) >> 16) | (as_bits(byte_to_float(b)) & 0xffff0000u);
}
DEVICE void copy_layer(u32 to, const uint4* layer, int thread) {
  for (int k = thread; k < LAYER_16; k += THREADS) copy_async(to + k * 16, layer + k);
}

// ---------------------------------------------------------------- weights

// weights, biases: the addresses of eleven float tensors each. packed: bf16; flat_biases: float [11][32].
KERNEL encoder_pack(const u64* weights, const u64* biases, bf16* packed, float* flat_biases) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < PACKED_END; i += gridDim.x * blockDim.x) {
    const float* first = (const float*)weights[0];
    float value = 0.f;
    if (i < PACKED_FORWARD) {  // B fragments [kh][k half][n half][lane][8]; k runs over (kw, channel), padded to 32
      int e = i & 1, u = (i >> 1) & 3, lane = (i >> 3) & 31, half = (i >> 8) & 1, step = (i >> 9) & 1, kh = i >> 10;
      int n = (half * 2 + (u >> 1)) * 8 + (lane >> 2), k = step * 16 + (lane & 3) * 2 + e + (u & 1) * 8;
      if (k < 27) value = first[(n * 9 + k % 9) * 9 + kh * 3 + k / 9];
    } else if (i < PACKED_PIXELS) {
      int back = i >= PACKED_BACKWARD, r = i - (back ? PACKED_BACKWARD : PACKED_FORWARD);
      int j = r & 7, n = (r >> 3) & 31, k = ((r >> 8) & 3) * 8 + j, tap = (r >> 10) % 9, l = r / 9216;
      const float* w = (const float*)weights[l + 1];
      value = back ? w[(k * 32 + n) * 9 + 8 - tap] : w[(n * 32 + k) * 9 + tap];
    } else {  // B fragments [tap 4][k half][5][lane][4]; n = ((py * 9 + channel) * 2 + px), 36 of 40 used
      int r = i - PACKED_PIXELS, e = r & 1, u = (r >> 1) & 1, lane = (r >> 2) & 31, tile = (r >> 7) % 5, m = (r >> 7) / 5;
      int step = m & 1, tap = m >> 1, n = tile * 8 + (lane >> 2), k = step * 16 + (lane & 3) * 2 + e + u * 8;
      int px = n & 1, channel = (n >> 1) % 9, py = (n >> 1) / 9, kh = 2 * (1 - (tap >> 1)) + py, kw = 2 * (1 - (tap & 1)) + px;
      if (n < 36 && kh < 3 && kw < 3) value = first[(k * 9 + channel) * 9 + kh * 3 + kw];
    }
    packed[i] = to_bf16(value);
    if (i < 352) flat_biases[i] = ((const float*)biases[i >> 5])[i & 31];
  }
}

// sums: [10][tap 9][ci][co] and [kh 3][kw, channel: 27][co], as the gradient kernels add them up.
// gradients: the eleven weights' own layouts, one after another.
KERNEL encoder_unpack(const float* sums, float* gradients) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < 2592 + 92160; i += gridDim.x * blockDim.x) {
    if (i < 2592) {
      int tap = i % 9, channel = (i / 9) % 9, co = i / 81;
      gradients[i] = sums[92160 + (tap / 3 * 27 + tap % 3 * 9 + channel) * 32 + co];
    } else {
      int r = i - 2592, tap = r % 9, ci = (r / 9) & 31, co = (r / 288) & 31, l = r / 9216;
      gradients[i] = sums[((l * 9 + tap) * 32 + ci) * 32 + co];
    }
  }
}

// ---------------------------------------------------------------- one convolution of 64 pixels by four warps

// d = the sum over taps and channels; a: descriptor of the first pixel's matrix, b: of the weights.
DEVICE void convolve(float (&d)[16], u32 a, u32 S, u32 b) {
#pragma unroll
  for (int y = 0; y < 3; y++)
#pragma unroll
    for (int x = 0; x < 3; x++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        wgmma_64x32x16(d, a + y * S + x + half * 2 * S * S, b + (y * 3 + x) * 128 + half * 64, (y | x | half) ? 1 : 0);
}

// ---------------------------------------------------------------- forward

#define F_EVEN 0         // even levels
#define F_ODD 107776     // odd levels; before them the image
#define F_WEIGHTS 205568 // of even layers
#define F_WEIGHTS_ODD 89344  // behind level 2, which is small enough
#define F_SHARED 224000

// The image, [channel][pixel] of bytes (kind 0), floats (1) or bf16 (2), as bytes [pixel][channel] in shared memory.
DEVICE void stage_picture(u32 to, const void* picture, long kind, int thread) {
  for (int quad = thread; quad < QUADS; quad += THREADS) {
    u32 bytes[9];  // of four pixels
#pragma unroll
    for (int c = 0; c < 9; c++) {
      if (kind == 0) {
        bytes[c] = ((const u32*)picture)[c * QUADS + quad];
      } else {
        float x[4];
        if (kind == 1) {
          float4 v = ((const float4*)picture)[c * QUADS + quad];
          x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
        } else {
          uint2 v = ((const uint2*)picture)[c * QUADS + quad];
          x[0] = low_half(v.x), x[1] = high_half(v.x), x[2] = low_half(v.y), x[3] = high_half(v.y);
        }
        bytes[c] = 0;
#pragma unroll
        for (int p = 0; p < 4; p++) bytes[c] |= (u32)(fminf(fmaxf(x[p], 0.f), 255.f) + 0.5f) << (8 * p);
      }
    }
    u32 words[9];
#pragma unroll
    for (int w = 0; w < 9; w++) words[w] = 0;
#pragma unroll
    for (int j = 0; j < 36; j++) words[j >> 2] |= ((bytes[j % 9] >> (8 * (j / 9))) & 255u) << (8 * (j & 3));
#pragma unroll
    for (int w = 0; w < 9; w++) shared_u32(to + quad * 36 + w * 4) = words[w];
  }
}

// Four pairs of channels of one pixel through ReLU to shared memory; returns the pixel's byte of gates.
DEVICE u32 put_rectified(u32 (&pairs)[4], u32 to, u32 plane) {
  u32 signs = 0;
#pragma unroll
  for (int n = 0; n < 4; n++) {
    pairs[n] = max_bf16x2(pairs[n], 0u);
    signs = (signs >> 1) | ((pairs[n] + 0x7fff7fffu) & 0x80008000u);  // a carry where a half is not zero
    shared_u32(to + n * plane) = pairs[n];
  }
  return ((signs >> 12) & 15u) | ((signs >> 24) & 0xf0u);
}

struct ForwardLayer {
  int S;          // input and pitch
  u32 out, plane; // shared memory
  u32 inverse;    // r / S = r * inverse >> 20
  u8* gates;
  float bias[8];  // of this lane's channels
};

template <bool LAST> DEVICE void finish_forward(const ForwardLayer& layer, float (&d)[16], int tile, int warp, int lane) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int r = tile * 64 + (warp & 3) * 16 + (lane >> 2) + 8 * h, y = (int)((r * layer.inverse) >> 20), x = r - y * layer.S;
    if (x >= layer.S - 2 || y >= layer.S - 2) continue;
    int pixel = r - 2 * y;
    u32 pairs[4];
#pragma unroll
    for (int n = 0; n < 4; n++)
      pairs[n] = pack_bf16(d[n * 4 + 2 * h] + layer.bias[2 * n], d[n * 4 + 2 * h + 1] + layer.bias[2 * n + 1]);
    if (LAST) {  // [channel][pixel]
      bf16* features = (bf16*)(shared_memory + layer.out) + (lane & 3) * 2 * FEATURE_PIXELS + pixel;
#pragma unroll
      for (int n = 0; n < 4; n++) {
        features[n * 8 * FEATURE_PIXELS] = (bf16)pairs[n];
        features[(n * 8 + 1) * FEATURE_PIXELS] = (bf16)(pairs[n] >> 16);
      }
    } else {
      u32 gates = put_rectified(pairs, layer.out + pixel * 16 + (lane & 3) * 4, layer.plane);
      if (layer.gates) layer.gates[pixel * 4 + (lane & 3)] = (u8)gates;
    }
  }
}

template <bool LAST>
DEVICE void forward_layer(const ForwardLayer& layer, int group, int warp, int lane, u32 a, u32 b) {
  int tiles = ((layer.S - 2) * layer.S + 63) / 64;
#pragma unroll 1
  for (int t = group; t < tiles; t += 8) {  // two tiles under way, so that finishing one hides behind the other
    float d0[16], d1[16];
    bool two = t + 4 < tiles;
    wgmma_touch(d0);
    wgmma_touch(d1);
    wgmma_fence();
    convolve(d0, a + t * 64, layer.S, b);
    wgmma_commit();
    if (two) convolve(d1, a + (t + 4) * 64, layer.S, b);
    wgmma_commit();
    wgmma_wait<1>();
    wgmma_touch(d0);
    finish_forward<LAST>(layer, d0, t, warp, lane);
    wgmma_wait<0>();
    wgmma_touch(d1);
    if (two) finish_forward<LAST>(layer, d1, t + 4, warp, lane);
  }
}

// One block per image. bytes, levels, gates: what the gradients need (the image as bytes [pixel][channel]), or null.
KERNEL __launch_bounds__(THREADS, 1)
encoder_forward(const u8* pictures, long kind, const uint4* packed, const float* biases, bf16* features, u8* bytes,
                bf16* levels, u8* gates, long count) {
  int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, group = uniform(warp >> 2), picture = blockIdx.x;
  const uint4* weights = packed + PACKED_FORWARD / 8;
  copy_layer(F_WEIGHTS, weights, thread);
  copy_async_commit();
  stage_picture(F_ODD, pictures + (size_t)picture * PICTURE * (kind == 0 ? 1 : kind == 1 ? 4 : 2), kind, thread);
  uint4 first[6][2];
#pragma unroll
  for (int k = 0; k < 12; k++) first[k >> 1][k & 1] = packed[k * 32 + lane];
  ForwardLayer layer;
#pragma unroll
  for (int k = 0; k < 8; k++) layer.bias[k] = biases[(k >> 1) * 8 + (lane & 3) * 2 + (k & 1)];
  copy_async_wait();
  fence_async();
  __syncthreads();
  if (bytes && thread == 0) {
    bulk_store(bytes + (size_t)picture * PICTURE, F_ODD, PICTURE);
    bulk_store_commit();
  }

  // First layer: 16 pixels a warp, the products of three rows of 27 bytes.
  u8* gate = gates ? gates + (size_t)picture * 1681 * 4 : (u8*)0;
  for (int tile = warp; tile < 106; tile += 16) {
    float d[4][4];
#pragma unroll
    for (int n = 0; n < 4; n++)
      for (int e = 0; e < 4; e++) d[n][e] = 0.f;
    u32 corner[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int r = min(tile * 16 + (lane >> 2) + 8 * h, 1680), y = r / 41, x = r - y * 41;
      corner[h] = F_ODD + y * 1512 + x * 18 + (lane & 3) * 2;
    }
#pragma unroll
    for (int kh = 0; kh < 3; kh++)
#pragma unroll
      for (int step = 0; step < 2; step++) {
        u32 a[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
          u32 pair = *(unsigned short*)(shared_memory + corner[e & 1] + kh * 756 + step * 16 + (e >> 1) * 8);
          a[e] = bytes_to_bf16(pair & 255u, pair >> 8);
        }
        uint4 b0 = first[kh * 2 + step][0], b1 = first[kh * 2 + step][1];
        mma(d[0], a, b0.x, b0.y);
        mma(d[1], a, b0.z, b0.w);
        mma(d[2], a, b1.x, b1.y);
        mma(d[3], a, b1.z, b1.w);
      }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int r = tile * 16 + (lane >> 2) + 8 * h;
      if (r >= 1681) continue;
      u32 pairs[4];
#pragma unroll
      for (int n = 0; n < 4; n++)
        pairs[n] = pack_bf16(d[n][2 * h] * (1.f / 255.f) + layer.bias[2 * n],
                             d[n][2 * h + 1] * (1.f / 255.f) + layer.bias[2 * n + 1]);
      u32 positive = put_rectified(pairs, F_EVEN + r * 16 + (lane & 3) * 4, 1681 * 16);
      if (gate) gate[r * 4 + (lane & 3)] = (u8)positive;
    }
  }
  if (bytes && thread == 0) bulk_store_wait_read();
  fence_async();
  __syncthreads();

  int before = 0;
#pragma unroll 1
  for (int l = 0; l < 10; l++) {
    if (l == 1) {  // only now is there room for a second layer's weights
      copy_layer(F_WEIGHTS_ODD, weights + LAYER_16, thread);
      copy_async_commit();
      copy_async_wait();
      fence_async();
      __syncthreads();
    }
    if (l >= 1 && l < 9) {
      copy_layer((l & 1) ? F_WEIGHTS : F_WEIGHTS_ODD, weights + (l + 1) * LAYER_16, thread);
      copy_async_commit();
    }
    int S = FIRST_LEVEL - 2 * l, out = S - 2;
    u32 in = (l & 1) ? F_ODD : F_EVEN;
    if (levels && thread == 0) {
      bulk_store(levels + place(before, count, picture, S * S) * 32, in, S * S * 64);
      bulk_store_commit();
    }
    before += S * S;
    layer.S = S;
    layer.out = (l & 1) ? F_EVEN : F_ODD;
    layer.plane = out * out * 16;
    layer.inverse = (1u << 20) / S + 1;
    layer.gates = gates && l < 9 ? gates + place(before, count, picture, out * out) * 4 : (u8*)0;
#pragma unroll
    for (int k = 0; k < 8; k++) layer.bias[k] = biases[(l + 1) * 32 + (k >> 1) * 8 + (lane & 3) * 2 + (k & 1)];
    u32 a = matrix_descriptor(in, S * S), b = matrix_descriptor((l & 1) ? F_WEIGHTS_ODD : F_WEIGHTS, 32);
    if (l < 9) forward_layer<false>(layer, group, warp, lane, a, b);
    else forward_layer<true>(layer, group, warp, lane, a, b);
    if (levels && thread == 0) bulk_store_wait_read();
    copy_async_wait();
    fence_async();
    __syncthreads();
  }
  if (thread == 0) {
    bulk_store(features + (size_t)picture * FEATURES, F_EVEN, FEATURES * 2);
    bulk_store_commit();
    bulk_store_wait_read();
  }
}

// ---------------------------------------------------------------- gradients of the levels

#define B_EVEN 0           // gradients of odd levels' inputs ... the level that layer l's input gradient reads
#define B_ODD 109184
#define B_WEIGHTS 208128
#define B_WEIGHTS_OTHER 90752
#define B_SHARED 226560

// A level's gradient D x D lies in a frame of zeros two pixels wide: pitch D + 2, data from pixel 2 + 2 (D + 2) on; the two
// pixels at the end of a row are used as the beginning of the next. Zeroes all that is not data.
DEVICE void zero_frame(u32 to, int D, int thread) {
  int pitch = D + 2, head = 2 + 2 * pitch, heads = 4 * head, ends = 8 * D, tail = head + 16;
  for (int k = thread; k < heads + ends + tail; k += THREADS) {
    int pixel;
    if (k < heads) {
      int p = k / head;
      pixel = p * pitch * pitch + (k - p * head);
    } else if (k < heads + ends) {
      int j = k - heads, p = j / (2 * D);
      j -= p * 2 * D;
      pixel = p * pitch * pitch + 2 + ((j >> 1) + 2) * pitch + D + (j & 1);
    } else {
      pixel = 4 * pitch * pitch + (k - heads - ends);
    }
    shared_16(to + pixel * 16) = zeros_16();
  }
}

struct BackwardLayer {
  int W;          // of the gradient that comes out, and the pitch of the one that goes in
  u32 out, plane; // shared memory
  u32 inverse;
  const u8* gates;
  bf16* level;    // of level 0 in global memory
};

template <bool LAST, bool GUIDED>
DEVICE void finish_backward(const BackwardLayer& layer, float (&d)[16], int tile, int warp, int lane, const u32 (&gates)[2]) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    int r = tile * 64 + (warp & 3) * 16 + (lane >> 2) + 8 * h;
    if (r >= layer.W * layer.W) continue;
    u32 open = (gates[h] & 15u) | ((gates[h] & 0xf0u) << 4), pairs[4];
#pragma unroll
    for (int n = 0; n < 4; n++) {
      pairs[n] = pack_bf16(d[n * 4 + 2 * h], d[n * 4 + 2 * h + 1]);
      if (GUIDED) pairs[n] = max_bf16x2(pairs[n], 0u);
      pairs[n] &= masks_of_signs(open << (7 - n));
    }
    if (LAST) {
      u32* to = (u32*)layer.level + (r * 4 + (lane & 3));
#pragma unroll
      for (int n = 0; n < 4; n++) to[n * 6724] = pairs[n];
    } else {
      int y = (int)((r * layer.inverse) >> 20);
      u32 to = layer.out + (2 + 2 * (layer.W + 2) + r + 2 * y) * 16 + (lane & 3) * 4;
#pragma unroll
      for (int n = 0; n < 4; n++) shared_u32(to + n * layer.plane) = pairs[n];
    }
  }
}

template <bool LAST, bool GUIDED>
DEVICE void backward_layer(const BackwardLayer& layer, int group, int warp, int lane, u32 a, u32 b) {
  int pixels = layer.W * layer.W, tiles = (pixels + 63) / 64;
#pragma unroll 1
  for (int t = group; t < tiles; t += 8) {
    float d0[16], d1[16];
    bool two = t + 4 < tiles;
    u32 gates0[2], gates1[2];
    wgmma_touch(d0);
    wgmma_touch(d1);
    wgmma_fence();
    convolve(d0, a + t * 64, layer.W, b);
    wgmma_commit();
    if (two) convolve(d1, a + (t + 4) * 64, layer.W, b);
    wgmma_commit();
    int r = t * 64 + (warp & 3) * 16 + (lane >> 2);
    const u8* gates = layer.gates + r * 4 + (lane & 3);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      gates0[h] = r + 8 * h < pixels ? gates[32 * h] : 0u;
      gates1[h] = r + 8 * h + 256 < pixels ? gates[32 * h + 1024] : 0u;
    }
    wgmma_wait<1>();
    wgmma_touch(d0);
    finish_backward<LAST, GUIDED>(layer, d0, t, warp, lane, gates0);
    wgmma_wait<0>();
    wgmma_touch(d1);
    if (two) finish_backward<LAST, GUIDED>(layer, d1, t + 4, warp, lane, gates1);
  }
}

// From the features' gradient [channel][pixel] to that of level 0 and, if `store`, of the others, which follow it with their
// frames. In the guided way ReLUs pass positive gradients only.
KERNEL __launch_bounds__(THREADS, 1)
encoder_backward(const bf16* features, const u8* gates, const uint4* packed, bf16* levels, long count, long guided,
                 long store) {
  int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, group = uniform(warp >> 2), picture = blockIdx.x;
  const uint4* weights = packed + PACKED_BACKWARD / 8;
  copy_layer(B_WEIGHTS, weights + 9 * LAYER_16, thread);
  copy_async_commit();
  const bf16* from = features + (size_t)picture * FEATURES;
  for (int k = thread; k < 4 * FEATURE_PIXELS; k += THREADS) {
    int p = k / FEATURE_PIXELS, pixel = k - p * FEATURE_PIXELS, y = pixel / 21, x = pixel - y * 21;
    const bf16* c = from + p * 8 * FEATURE_PIXELS + pixel;
    uint4 v;
    v.x = c[0] | ((u32)c[FEATURE_PIXELS] << 16);
    v.y = c[2 * FEATURE_PIXELS] | ((u32)c[3 * FEATURE_PIXELS] << 16);
    v.z = c[4 * FEATURE_PIXELS] | ((u32)c[5 * FEATURE_PIXELS] << 16);
    v.w = c[6 * FEATURE_PIXELS] | ((u32)c[7 * FEATURE_PIXELS] << 16);
    shared_16(B_ODD + (p * 529 + 2 + (y + 2) * 23 + x) * 16) = v;
  }
  zero_frame(B_ODD, 21, thread);
  copy_async_wait();
  fence_async();
  __syncthreads();
  int before = pixels_before(10);
#pragma unroll 1
  for (int l = 9; l >= 0; l--) {
    int step = 9 - l, W = FIRST_LEVEL - 2 * l;
    u32 in = (l & 1) ? B_ODD : B_EVEN;
    if (l == 0) {
      copy_layer(B_WEIGHTS, weights, thread);
      copy_async_commit();
      copy_async_wait();
      fence_async();
      __syncthreads();
    }
    if (l >= 2) {
      copy_layer((step & 1) ? B_WEIGHTS : B_WEIGHTS_OTHER, weights + (l - 1) * LAYER_16, thread);
      copy_async_commit();
    }
    before -= W * W;
    if (store && thread == 0) {  // level l + 1
      bulk_store(levels + (1681 * count + place(before, count, picture, W * W)) * 32, in, 4 * W * W * 16);
      bulk_store_commit();
    }
    BackwardLayer layer;
    layer.W = W;
    layer.out = (l & 1) ? B_EVEN : B_ODD;
    layer.plane = (W + 2) * (W + 2) * 16;
    layer.inverse = (1u << 20) / W + 1;
    layer.gates = gates + place(before, count, picture, W * W) * 4;
    layer.level = levels + (size_t)picture * 1681 * 32;
    if (l > 0) zero_frame(layer.out, W, thread);
    u32 a = matrix_descriptor(in, W * W), b = matrix_descriptor(l > 0 && (step & 1) ? B_WEIGHTS_OTHER : B_WEIGHTS, 32);
    if (l > 0) {
      if (guided) backward_layer<false, true>(layer, group, warp, lane, a, b);
      else backward_layer<false, false>(layer, group, warp, lane, a, b);
    } else {
      if (guided) backward_layer<true, true>(layer, group, warp, lane, a, b);
      else backward_layer<true, false>(layer, group, warp, lane, a, b);
    }
    if (store && thread == 0) bulk_store_wait_read();
    copy_async_wait();
    fence_async();
    __syncthreads();
  }
}

// ---------------------------------------------------------------- gradient of the image

#define P_THREADS 256
#define P_PLANE 640      // pixels: 15 rows of 42 and some
#define P_WEIGHTS 40960
#define P_SHARED 51200

// From level 0's gradient to the image's, float [channel][84][84]. The stride makes four kinds of pixels, by parity of
// row and column; each sees 2x2 pixels of the level, so this is a convolution of four taps with 4 x 9 outputs. Grid
// (pictures, 3): a block takes 14 rows of such windows, which see 15 rows of the level.
KERNEL __launch_bounds__(P_THREADS, 4) encoder_pixels(const bf16* level, const uint4* packed, float* gradient) {
  int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, picture = blockIdx.x, top = blockIdx.y * 14;
  const bf16* from = level + (size_t)picture * 1681 * 32;
  int first = top == 0 ? 1 : 0, rows = top == 28 ? 14 : 15;  // the rows outside of the level are zero
  for (int k = thread; k < 640; k += P_THREADS) copy_async(P_WEIGHTS + k * 16, packed + PACKED_PIXELS / 8 + k);
  int wide = (rows - first) * 41;
  for (int k = thread; k < 4 * wide; k += P_THREADS) {  // pitch 42, the pixel before each row zero
    int p = k / wide, r = k - p * wide, y = r / 41;
    copy_async((p * P_PLANE + 1 + (first + y) * 42 + r - y * 41) * 16,
               from + ((size_t)p * 1681 + (top - 1 + first) * 41 + r) * 8);
  }
  copy_async_commit();
  for (int k = thread; k < 4 * 16; k += P_THREADS) shared_16((k / 16 * P_PLANE + k % 16 * 42) * 16) = zeros_16();
  if (first || rows == 14)
    for (int k = thread; k < 4 * 42; k += P_THREADS)
      shared_16((k / 42 * P_PLANE + (first ? 0 : 14) * 42 + 1 + k % 42) * 16) = zeros_16();
  copy_async_wait();
  __syncthreads();
  float* to = gradient + (size_t)picture * PICTURE;
  for (int tile = warp; tile < 37; tile += 8) {
    float d[5][4];
#pragma unroll
    for (int n = 0; n < 5; n++)
      for (int e = 0; e < 4; e++) d[n][e] = 0.f;
#pragma unroll 1
    for (int tap = 0; tap < 4; tap++)
#pragma unroll
      for (int step = 0; step < 2; step++) {
        u32 a[4];
        int pixel = min(tile * 16 + (lane & 15), 587) + (tap >> 1) * 42 + (tap & 1);
        load_matrices(a, ((step * 2 + (lane >> 4)) * P_PLANE + pixel) * 16);
#pragma unroll
        for (int n = 0; n < 5; n++) {
          uint2 b = *(uint2*)(shared_memory + P_WEIGHTS + (((tap * 2 + step) * 5 + n) * 32 + lane) * 8);
          mma(d[n], a, b.x, b.y);
        }
      }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int r = tile * 16 + (lane >> 2) + 8 * h, y = r / 42, x = r - y * 42;
      if (r >= 588) continue;
#pragma unroll
      for (int n = 0; n < 5; n++) {  // this lane's two columns are the two parities of x
        int m = n * 4 + (lane & 3), channel = m % 9, py = m / 9;
        if (m >= 18) continue;
        float2 pair;
        pair.x = d[n][2 * h] * (1.f / 255.f);
        pair.y = d[n][2 * h + 1] * (1.f / 255.f);
        *(float2*)(to + channel * 7056 + (2 * (top + y) + py) * 84 + 2 * x) = pair;
      }
    }
  }
}

// ---------------------------------------------------------------- gradients of the weights

#define W_THREADS 192
#define W_STAGE 56320
#define W_BARRIERS 112640
#define W_SHARED 112768

// Adds a warp's sums of one layer and row of taps to global memory, and clears them.
DEVICE void flush(float (&sums)[3][2][4][4], float (&bias)[2][4], float* weights, float* biases, int l, int kh, int lane) {
#pragma unroll
  for (int kw = 0; kw < 3; kw++)
    for (int i = 0; i < 2; i++)
      for (int n = 0; n < 4; n++)
        for (int h = 0; h < 2; h++) {
          int ci = i * 16 + (lane >> 2) + 8 * h, co = n * 8 + (lane & 3) * 2;
          float* s = sums[kw][i][n] + 2 * h;
          add_pair(weights + ((l * 9 + kh * 3 + kw) * 32 + ci) * 32 + co, s[0], s[1]);
          s[0] = s[1] = 0.f;
        }
  for (int n = 0; n < 2; n++) {
    int tile = kh == 0 ? n : kh + 1;
    if ((kh == 0 || n == 0) && lane < 4) add_pair(biases + l * 32 + tile * 8 + lane * 2, bias[n][0], bias[n][1]);
    for (int e = 0; e < 4; e++) bias[n][e] = 0.f;
  }
}

// Starts to load rows of a level and of the next level's gradient: item = (layer, picture, first row, rows).
DEVICE void load_item(u32 stage, u32 barrier, int4 item, const bf16* levels, const bf16* gradients, long count, int thread) {
  int l = item.x, picture = item.y, row = item.z, rows = item.w, W = FIRST_LEVEL - 2 * l;
  int in = (rows + 2) * W, K = (rows * W + 15) / 16 * 16, before = pixels_before(l);
  u32 to = stage + (4 * in + 34) * 16;
  const bf16* x = levels + place(before, count, picture, W * W) * 32;
  const bf16* g = gradients + (1681 * count + place(before, count, picture, W * W)) * 32;
  if (thread == 0) barrier_expect(barrier, 4 * in * 16 + 4 * (rows * W - 2) * 16);
  if (thread < 4) bulk_load(stage + thread * in * 16, x + ((size_t)thread * W * W + row * W) * 8, in * 16, barrier);
  else if (thread < 8)  // rows with the frame's two zeros between them
    bulk_load(to + (thread - 4) * K * 16, g + ((size_t)(thread - 4) * W * W + 2 + (row + 2) * W) * 8, (rows * W - 2) * 16,
              barrier);
  int tail = K - rows * W + 2;
  for (int k = thread; k < 4 * tail; k += W_THREADS) shared_16(to + (k / tail * K + rows * W - 2 + k % tail) * 16) = zeros_16();
  if (thread < 34) shared_16(stage + (4 * in + thread) * 16) = zeros_16();
}

// Block b works through items[starts[b]] .. items[starts[b + 1]], loading one while it computes another. Six warps: three
// rows of taps, each by two halves of the pixels. The biases' gradient, sums of the gradient alone, is shared among them:
// output channels 0..15, 16..23, 24..31. weights: [10][tap][ci][co], biases: [10][32]; both are added to.
KERNEL __launch_bounds__(W_THREADS, 2)
encoder_weights(const bf16* levels, const bf16* gradients, const int4* items, const int* starts, float* weights,
                float* biases, long count) {
  int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, kh = warp % 3, half = warp / 3;
  const u32 ones[4] = {0x3F803F80u, 0x3F803F80u, 0x3F803F80u, 0x3F803F80u};
  float sums[3][2][4][4], bias[2][4];
#pragma unroll
  for (int k = 0; k < 3; k++)
    for (int i = 0; i < 2; i++)
      for (int n = 0; n < 4; n++)
        for (int e = 0; e < 4; e++) sums[k][i][n][e] = 0.f;
  for (int n = 0; n < 2; n++)
    for (int e = 0; e < 4; e++) bias[n][e] = 0.f;
  int begin = starts[blockIdx.x], end = starts[blockIdx.x + 1], current = -1;
  if (begin >= end) return;
  if (thread == 0) {
    barrier_init(W_BARRIERS);
    barrier_init(W_BARRIERS + 8);
  }
  __syncthreads();
  int4 item = items[begin];
  load_item(0, W_BARRIERS, item, levels, gradients, count, thread);
  __syncthreads();
  for (int index = begin; index < end; index++) {
    int odd = (index - begin) & 1;
    int4 next = item;
    if (index + 1 < end) {
      next = items[index + 1];
      load_item(odd ? 0 : W_STAGE, W_BARRIERS + (odd ? 0 : 8), next, levels, gradients, count, thread);
    }
    int l = item.x, rows = item.w, W = FIRST_LEVEL - 2 * l, in = (rows + 2) * W, K = (rows * W + 15) / 16 * 16;
    u32 stage = odd ? W_STAGE : 0;
    if (l != current) {
      if (current >= 0) flush(sums, bias, weights, biases, current, kh, lane);
      current = l;
    }
    barrier_wait(W_BARRIERS + 8 * odd, ((index - begin) >> 1) & 1);
    int from = half ? K / 32 : 0, to = half ? K / 16 : K / 32;
    u32 x = stage + (((lane >> 3) & 1) * in + (lane & 7) + (lane >> 4) * 8 + kh * W + from * 16) * 16;
    u32 g = stage + (4 * in + 34 + (lane >> 4) * K + (lane & 15) + from * 16) * 16;
#pragma unroll 2
    for (int k = from; k < to; k++) {
      u32 b0[4], b1[4];
      load_matrices_transposed(b0, g);
      load_matrices_transposed(b1, g + 2 * K * 16);
#pragma unroll
      for (int kw = 0; kw < 3; kw++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          u32 a[4];
          load_matrices_transposed(a, x + kw * 16 + i * 2 * in * 16);
          mma(sums[kw][i][0], a, b0[0], b0[1]);
          mma(sums[kw][i][1], a, b0[2], b0[3]);
          mma(sums[kw][i][2], a, b1[0], b1[1]);
          mma(sums[kw][i][3], a, b1[2], b1[3]);
        }
      if (kh == 0) {
        mma(bias[0], ones, b0[0], b0[1]);
        mma(bias[1], ones, b0[2], b0[3]);
      } else if (kh == 1) {
        mma(bias[0], ones, b1[0], b1[1]);
      } else {
        mma(bias[0], ones, b1[2], b1[3]);
      }
      x += 256;
      g += 256;
    }
    item = next;
    fence_async();
    __syncthreads();
  }
  flush(sums, bias, weights, biases, current, kh, lane);
}

#define W1_SHARED 90112

// The first layer's: items are halves of pictures. bytes: [pixel][channel], as the forward pass stored them.
// weights: [kh][kw, channel][co], biases: [32]; both are added to.
KERNEL __launch_bounds__(W_THREADS, 2)
encoder_first_weights(const u8* bytes, const bf16* level, float* weights, float* biases, long count) {
  int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const u32 ones[4] = {0x3F803F80u, 0x3F803F80u, 0x3F803F80u, 0x3F803F80u};
  float sums[6][4][4], bias[4][4];
#pragma unroll
  for (int m = 0; m < 6; m++)
    for (int n = 0; n < 4; n++)
      for (int e = 0; e < 4; e++) sums[m][n][e] = 0.f;
  for (int n = 0; n < 4; n++)
    for (int e = 0; e < 4; e++) bias[n][e] = 0.f;
  for (int item = blockIdx.x; item < 2 * count; item += gridDim.x) {
    int picture = item >> 1, row = (item & 1) ? 20 : 0, rows = (item & 1) ? 21 : 20, n = rows * 41, K = (n + 15) / 16 * 16;
    u32 image = 4 * K * 16;
    const bf16* g = level + (size_t)picture * 1681 * 32;
    const u8* from = bytes + (size_t)picture * PICTURE + row * 1512;
    for (int p = 0; p < 4; p++)
      for (int k = thread; k < K; k += W_THREADS) {
        if (k < n) copy_async((p * K + k) * 16, g + ((size_t)p * 1681 + row * 41 + k) * 8);
        else shared_16((p * K + k) * 16) = zeros_16();
      }
    int pieces = ((2 * rows + 1) * 756 + 15) / 16;
    for (int k = thread; k < pieces; k += W_THREADS) copy_async(image + k * 16, from + k * 16);
    if (thread < 3) shared_16(image + (pieces + thread) * 16) = zeros_16();
    copy_async_commit();
    copy_async_wait();
    __syncthreads();
#pragma unroll 1
    for (int k = warp; k < K / 16; k += 6) {
      u32 b0[4], b1[4], at = ((lane >> 4) * K + (lane & 15) + k * 16) * 16, corner[4];
      load_matrices_transposed(b0, at);
      load_matrices_transposed(b1, at + 2 * K * 16);
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int p = min(k * 16 + (lane & 3) * 2 + (e & 1) + (e >> 1) * 8, n - 1), y = p / 41;
        corner[e] = image + y * 1512 + (p - y * 41) * 18 + (lane >> 2);
      }
#pragma unroll
      for (int m = 0; m < 6; m++) {  // rows of A: 32 of (kw, channel) for each kh, 27 used
        u32 a[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
          u32 offset = (m >> 1) * 756 + (m & 1) * 16 + (e & 1) * 8;
          a[e] = bytes_to_bf16(shared_memory[corner[(e >> 1) * 2] + offset], shared_memory[corner[(e >> 1) * 2 + 1] + offset]);
        }
        mma(sums[m][0], a, b0[0], b0[1]);
        mma(sums[m][1], a, b0[2], b0[3]);
        mma(sums[m][2], a, b1[0], b1[1]);
        mma(sums[m][3], a, b1[2], b1[3]);
      }
      mma(bias[0], ones, b0[0], b0[1]);
      mma(bias[1], ones, b0[2], b0[3]);
      mma(bias[2], ones, b1[0], b1[1]);
      mma(bias[3], ones, b1[2], b1[3]);
    }
    __syncthreads();
  }
  float* total = (float*)shared_memory;  // [96][40] and [32]: the warps add one after another; 40 spreads the banks
  for (int w = 0; w < 6; w++) {
    if (warp == w) {
#pragma unroll
      for (int m = 0; m < 6; m++)
        for (int n = 0; n < 4; n++)
          for (int e = 0; e < 4; e++) {
            float* s = total + (m * 16 + (lane >> 2) + (e >> 1) * 8) * 40 + n * 8 + (lane & 3) * 2 + (e & 1);
            *s = (w ? *s : 0.f) + sums[m][n][e];
          }
      if (lane < 4)
        for (int n = 0; n < 4; n++)
          for (int e = 0; e < 2; e++) {
            float* s = total + 3840 + n * 8 + lane * 2 + e;
            *s = (w ? *s : 0.f) + bias[n][e];
          }
    }
    __syncthreads();
  }
  for (int k = thread; k < 1536; k += W_THREADS) {
    int r = k / 16, co = (k & 15) * 2;
    if ((r & 31) < 27)
      add_pair(weights + ((r >> 5) * 27 + (r & 31)) * 32 + co, total[r * 40 + co] * (1.f / 255.f),
               total[r * 40 + co + 1] * (1.f / 255.f));
  }
  if (thread < 16) add_pair(biases + thread * 2, total[3840 + thread * 2], total[3840 + thread * 2 + 1]);
}
