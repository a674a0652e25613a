// The small steps between the large products, each in one pass over its data. Any GPU with bf16 (compute capability 8.0).
//
// `long` parameters for a float hold its bits.
#include "common.cuh"

DEVICE float float_of(long bits) { return as_float((u32)bits); }
DEVICE long global_thread() { return (long)blockIdx.x * blockDim.x + threadIdx.x; }
DEVICE long global_threads() { return (long)gridDim.x * blockDim.x; }

// ---------------------------------------------------------------- projection: layer norm and tanh

#define PER_LANE 8  // up to 256 columns: a warp holds a row
#define HUGE_NUMBER 1125899906842624.f  // 2^50

// x + bias (float [rows][pitch]) -> tanh(gamma normalised + beta); keeps the normalised values and 1 / deviation. Rows of
// huge numbers are scaled by a power of two before they are squared.
KERNEL norm_tanh_forward(const float* x, const float* bias, const float* gamma, const float* beta, float* out,
                         float* normalised, float* scale, long rows, long columns, long pitch, long epsilon) {
  int row = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (row >= rows) return;
  float v[PER_LANE], sum = 0.f, squares = 0.f, largest = 0.f;
#pragma unroll
  for (int k = 0; k < PER_LANE; k++) {
    int j = lane + 32 * k;
    v[k] = j < columns ? x[row * pitch + j] + bias[j] : 0.f;
    largest = fmaxf(largest, fabsf(v[k]));
  }
  largest = warp_max(largest);
  float factor = largest > HUGE_NUMBER ? 1.f / HUGE_NUMBER : 1.f;
#pragma unroll
  for (int k = 0; k < PER_LANE; k++) {
    v[k] *= factor;
    sum += v[k];
  }
  float mean = warp_sum(sum) / columns;
#pragma unroll
  for (int k = 0; k < PER_LANE; k++) {
    float d = lane + 32 * k < columns ? v[k] - mean : 0.f;
    squares += d * d;
  }
  float s = 1.f / sqrtf(warp_sum(squares) / columns + float_of(epsilon) * factor * factor);
#pragma unroll
  for (int k = 0; k < PER_LANE; k++) {
    int j = lane + 32 * k;
    if (j >= columns) continue;
    float n = (v[k] - mean) * s;
    if (normalised) normalised[row * columns + j] = n;
    out[row * columns + j] = tanhf(n * gamma[j] + beta[j]);
  }
  if (scale && lane == 0) scale[row] = s * factor;
}

// d_out -> d_x, bf16 [rows][padded columns], the padding zero. The gradients of bias, gamma and beta, [3][columns], are
// added to, or left out. Shared memory: 3 * 256 floats.
KERNEL norm_tanh_backward(const float* d_out, const float* out, const float* normalised, const float* scale,
                          const float* gamma, bf16* d_x, float* d_parameters, long rows, long columns, long padded) {
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  float bias[PER_LANE], gains[PER_LANE], shifts[PER_LANE];
#pragma unroll
  for (int k = 0; k < PER_LANE; k++) bias[k] = gains[k] = shifts[k] = 0.f;
  for (long row = blockIdx.x * warps + warp; row < rows; row += gridDim.x * warps) {
    float d[PER_LANE], n[PER_LANE], sum = 0.f, along = 0.f;
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
      int j = lane + 32 * k;
      d[k] = n[k] = 0.f;
      if (j >= columns) continue;
      float z = out[row * columns + j], before_tanh = d_out[row * columns + j] * (1.f - z * z);
      n[k] = normalised[row * columns + j];
      gains[k] += before_tanh * n[k];
      shifts[k] += before_tanh;
      d[k] = before_tanh * gamma[j];
      sum += d[k];
      along += d[k] * n[k];
    }
    sum = warp_sum(sum) / columns;
    along = warp_sum(along) / columns;
    float s = scale[row];
#pragma unroll
    for (int k = 0; k < PER_LANE; k++) {
      int j = lane + 32 * k;
      float g = j < columns ? s * (d[k] - sum - n[k] * along) : 0.f;
      if (j < padded) d_x[row * padded + j] = to_bf16(g);
      bias[k] += g;
    }
  }
  if (!d_parameters) return;
  float* total = (float*)shared_memory;
  for (int w = 0; w < warps; w++) {
    if (warp == w)
      for (int k = 0; k < PER_LANE; k++) {
        int j = lane + 32 * k;
        total[j] = (w ? total[j] : 0.f) + bias[k];
        total[256 + j] = (w ? total[256 + j] : 0.f) + gains[k];
        total[512 + j] = (w ? total[512 + j] : 0.f) + shifts[k];
      }
    __syncthreads();
  }
  for (int j = threadIdx.x; j < 3 * columns; j += blockDim.x) atomicAdd(d_parameters + j, total[j / columns * 256 + j % columns]);
}

// ---------------------------------------------------------------- multilayer perceptrons

// [a | b | zeros]: float [rows][wide] and [rows][narrow] to bf16 [rows][padded]
KERNEL join(const float* a, const float* b, bf16* out, long rows, long wide, long narrow, long padded) {
  for (long i = global_thread(); i < rows * padded; i += global_threads()) {
    long row = i / padded, j = i - row * padded;
    float v = 0.f;
    if (j < wide) v = a[row * wide + j];
    else if (j < wide + narrow) v = b[row * narrow + j - wide];
    out[i] = to_bf16(v);
  }
}

// The last layer of value heads. x: bf16 [heads][rows][width], the second layer's products; becomes relu(x + bias).
// values [heads][rows] = x . last + last_bias. A warp takes one row of one head.
KERNEL value_forward(bf16* x, const float* bias, const float* last, const float* last_bias, float* values, long rows,
                     long heads, long width) {
  long index = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
  int lane = threadIdx.x & 31;
  if (index >= rows * heads) return;
  long head = index / rows;
  uint4* v = (uint4*)(x + index * width);
  const float *w = last + head * width, *b = bias + head * width;
  float sum = 0.f;
  for (int k = lane; k < width / 8; k += 32) {
    uint4 eight = v[k];
    u32 pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int j = k * 8 + 2 * e;
      pairs[e] = pack_bf16(fmaxf(low_half(pairs[e]) + b[j], 0.f), fmaxf(high_half(pairs[e]) + b[j + 1], 0.f));
      sum += low_half(pairs[e]) * w[j] + high_half(pairs[e]) * w[j + 1];
    }
    eight.x = pairs[0], eight.y = pairs[1], eight.z = pairs[2], eight.w = pairs[3];
    v[k] = eight;
  }
  sum = warp_sum(sum);
  if (lane == 0) values[index] = sum + last_bias[head];
}

// d_values [heads][rows] -> d_x [heads][rows][width], through the last layer and its ReLU. The gradients of `last` and
// `bias`, [heads][width] each, and of the last bias, [heads], are added to, or left out. Grid (heads * width / 128, parts
// of the rows).
KERNEL value_backward(const bf16* x, const float* last, const float* d_values, bf16* d_x, float* d_last, float* d_bias,
                      float* d_last_bias, long rows, long width, long guided) {
  long column = blockIdx.x * 128 + threadIdx.x, head = column / width, j = column - head * width;
  long part = (rows + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * part, end = min(begin + part, rows);
  float w = last[column], sum = 0.f, products = 0.f, values = 0.f;
#pragma unroll 4
  for (long row = begin; row < end; row++) {
    long i = (head * rows + row) * width + j;
    float h = to_float(x[i]), g = d_values[head * rows + row], d = h > 0.f ? g * w : 0.f;
    if (guided) d = fmaxf(d, 0.f);
    d_x[i] = to_bf16(d);
    products += g * h;
    sum += d;
    values += g;
  }
  if (d_last) {
    atomicAdd(d_last + column, products);
    atomicAdd(d_bias + column, sum);
    if (j == 0) atomicAdd(d_last_bias + head, values);
  }
}

// Through a ReLU: d bf16 [heads][rows][width] -> out bf16 [rows][heads * width] where x, bf16 [rows][x_pitch], is
// positive. The gradient of the bias, [heads * width], is added to, or left out. `out` may be `d` of one head. Grid as above.
KERNEL relu_backward(const bf16* d, const bf16* x, bf16* out, float* d_bias, long rows, long heads, long width,
                     long x_pitch, long guided) {
  long column = blockIdx.x * 128 + threadIdx.x, head = column / width, j = column - head * width;
  long part = (rows + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * part, end = min(begin + part, rows);
  if (column >= heads * width) return;
  float sum = 0.f;
#pragma unroll 4
  for (long row = begin; row < end; row++) {
    float g = to_float(d[(head * rows + row) * width + j]);
    g = to_float(x[row * x_pitch + column]) > 0.f ? g : 0.f;
    if (guided) g = fmaxf(g, 0.f);
    out[row * heads * width + column] = to_bf16(g);
    sum += g;
  }
  if (d_bias) atomicAdd(d_bias + column, sum);
}

// ---------------------------------------------------------------- squashed Gaussian

DEVICE float softplus(float x) { return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))); }

// raw: float [rows][2 A], mean and raw log sigma. low, high: bounds of log sigma. One thread a row.
KERNEL gaussian_forward(const float* raw, const float* noise, float* mean, float* action, float* log_prob, float* log_std,
                        long rows, long A, long low, long high) {
  float base = float_of(low), half = 0.5f * (float_of(high) - base);
  for (long row = global_thread(); row < rows; row += global_threads()) {
    float total = 0.f;
    for (long k = 0; k < A; k++) {
      float mu = raw[row * 2 * A + k], s = base + half * (tanhf(raw[row * 2 * A + A + k]) + 1.f), e = noise[row * A + k];
      float u = mu + expf(s) * e;
      total += -0.5f * e * e - s - 0.91893853320467274f - 2.f * (0.69314718055994531f - u - softplus(-2.f * u));
      mean[row * A + k] = tanhf(mu);
      action[row * A + k] = tanhf(u);
      log_std[row * A + k] = s;
    }
    log_prob[row] = total;
  }
}
// d_action [rows][A] and d_log_prob [rows], either may be missing -> d_raw
KERNEL gaussian_backward(const float* raw, const float* noise, const float* action, const float* d_action,
                         const float* d_log_prob, float* d_raw, long rows, long A, long low, long high) {
  float base = float_of(low), half = 0.5f * (float_of(high) - base);
  for (long i = global_thread(); i < rows * A; i += global_threads()) {
    long row = i / A, k = i - row * A;
    float t = tanhf(raw[row * 2 * A + A + k]), sigma = expf(base + half * (t + 1.f)), a = action[i];
    float dl = d_log_prob ? d_log_prob[row] : 0.f;
    // log pi holds -log(1 - tanh(u)^2), whose derivative is 2 tanh(u)
    float du = (d_action ? d_action[i] * (1.f - a * a) : 0.f) + dl * 2.f * a;
    d_raw[row * 2 * A + k] = du;
    d_raw[row * 2 * A + A + k] = (du * noise[i] * sigma - dl) * half * (1.f - t * t);
  }
}

// ---------------------------------------------------------------- pictures

// Crops each image, uint8 [channels][rows][columns]: out [channels][height][width] from (top, left), edge pixels
// continued. Four pixels a thread; grid (parts, pictures); width divides by 4.
KERNEL window(const u8* pictures, const long long* top, const long long* left, u8* out, long channels, long rows,
              long columns, long height, long width) {
  int picture = blockIdx.y, y0 = (int)top[picture], x0 = (int)left[picture], across = (int)width / 4;
  u32 quads = (u32)(channels * height) * across;
  const u8* from = pictures + (size_t)picture * channels * rows * columns;
  u32* to = (u32*)(out + (size_t)picture * channels * height * width);
#pragma unroll 2
  for (u32 i = (u32)global_thread(); i < quads; i += (u32)global_threads()) {
    int line = i / (u32)across, x = (int)(i - line * across) * 4 + x0, channel = (u32)line / (u32)height;
    int y = min(max(line - channel * (int)height + y0, 0), (int)rows - 1);
    const u8* source = from + ((size_t)channel * rows + y) * columns;
    u32 word = 0;
    if (x >= 0 && x + 7 < columns && columns % 4 == 0) {  // two whole words hold the four pixels
      const u32* words = (const u32*)source + (x >> 2);
      word = (u32)((((u64)words[1] << 32) | words[0]) >> (8 * (x & 3)));
    } else {
#pragma unroll
      for (int p = 0; p < 4; p++) word |= (u32)source[min(max(x + p, 0), (int)columns - 1)] << (8 * p);
    }
    to[i] = word;
  }
}

// (1 - alpha) picture + alpha bank[index], rounded; uint8, the bank's three channels on every frame of the picture.
// frame: bytes of three channels. Grid (parts, pictures).
KERNEL blend(const u8* pictures, const u8* bank, const long long* index, u8* out, long frame, long frames, long alpha_bits) {
  float alpha = float_of(alpha_bits);
  const u32* over = (const u32*)(bank + (size_t)index[blockIdx.y] * frame);
  size_t offset = (size_t)blockIdx.y * frames * frame / 4;
  const u32* from = (const u32*)pictures + offset;
  u32* to = (u32*)out + offset;
  int words = (int)frame / 4;
  for (int i = (int)global_thread(); i < words * (int)frames; i += (int)global_threads()) {
    u32 a = from[i], b = over[i % words], word = 0;
#pragma unroll
    for (int p = 0; p < 4; p++) {
      float v = (1.f - alpha) * (float)((a >> (8 * p)) & 255u) + alpha * (float)((b >> (8 * p)) & 255u);
      word |= (u32)(v + 0.5f) << (8 * p);
    }
    to[i] = word;
  }
}

// (1 - alpha) image + alpha bank[index], rounded; all uint8, frames of three channels [height][width], width divides by
// 4. Frame k of an image shows the bank's image k (down, right) pixels further, its edge pixels continued; index, alpha,
// down and right are one per image. Four pixels a thread; grid (parts, images).
KERNEL moving_blend(const u8* images, const u8* bank, const long long* index, const float* alpha, const long long* down,
                    const long long* right, u8* out, long frames, long height, long width) {
  int image = blockIdx.y, across = (int)width / 4, lines = 3 * (int)height, quads = lines * across;
  float weight = alpha[image];
  const u8* over = bank + (size_t)index[image] * lines * width;
  const u32* from = (const u32*)images + (size_t)image * frames * quads;
  u32* to = (u32*)out + (size_t)image * frames * quads;
  for (int i = (int)global_thread(); i < (int)frames * quads; i += (int)global_threads()) {
    int frame = i / quads, line = (i - frame * quads) / across, x = (i - (i / across) * across) * 4;
    int channel = line / (int)height, y = line - channel * (int)height;
    int row = min(max(y + frame * (int)down[image], 0), (int)height - 1), shift = x + frame * (int)right[image];
    const u8* source = over + (size_t)(channel * (int)height + row) * width;
    u32 a = from[i], word = 0;
#pragma unroll
    for (int p = 0; p < 4; p++) {
      float b = (float)source[min(max(shift + p, 0), (int)width - 1)];
      word |= (u32)((1.f - weight) * (float)((a >> (8 * p)) & 255u) + weight * b + 0.5f) << (8 * p);
    }
    to[i] = word;
  }
}

// The colours of every pixel times the image's matrix [3][4], whose last column is added; clamped and rounded, uint8.
// plane: pixels of a channel, divides by 4. Four pixels of all three channels a thread; grid (parts, images).
KERNEL recolor(const u8* images, const float* matrix, u8* out, long frames, long plane) {
  int image = blockIdx.y, quads = (int)plane / 4;
  const float* m = matrix + (size_t)image * 12;
  const u32* from = (const u32*)images + (size_t)image * frames * 3 * quads;
  u32* to = (u32*)out + (size_t)image * frames * 3 * quads;
  for (int i = (int)global_thread(); i < (int)frames * quads; i += (int)global_threads()) {
    int frame = i / quads, start = frame * 3 * quads + (i - frame * quads);
    u32 r = from[start], g = from[start + quads], b = from[start + 2 * quads];
#pragma unroll
    for (int c = 0; c < 3; c++) {
      u32 word = 0;
#pragma unroll
      for (int p = 0; p < 4; p++) {
        float v = m[4 * c] * (float)((r >> (8 * p)) & 255u) + m[4 * c + 1] * (float)((g >> (8 * p)) & 255u) +
                  m[4 * c + 2] * (float)((b >> (8 * p)) & 255u) + m[4 * c + 3];
        word |= (u32)(fminf(fmaxf(v, 0.f), 255.f) + 0.5f) << (8 * p);
      }
      to[start + c * quads] = word;
    }
  }
}

// mask ? picture : value, the value (one float) rounded; all uint8, count divides by 16.
KERNEL fill_unmasked(const uint4* pictures, const uint4* mask, const float* value, uint4* out, long count) {
  u32 fill = (u32)(fminf(fmaxf(value[0], 0.f), 255.f) + 0.5f) * 0x01010101u;
  for (long i = global_thread(); i < count / 16; i += global_threads()) {
    uint4 v = pictures[i], m = mask[i];  // the mask's bytes are 0 or 1
    v.x = (v.x & (m.x * 255u)) | (fill & ~(m.x * 255u));
    v.y = (v.y & (m.y * 255u)) | (fill & ~(m.y * 255u));
    v.z = (v.z & (m.z * 255u)) | (fill & ~(m.z * 255u));
    v.w = (v.w & (m.w * 255u)) | (fill & ~(m.w * 255u));
    out[i] = v;
  }
}

// Bytes to floats, four a thread.
KERNEL bytes_to_floats(const u32* from, float4* to, long count) {
  for (long i = global_thread(); i < count / 4; i += global_threads()) {
    u32 v = from[i];
    float4 f;
    f.x = (float)(v & 255u), f.y = (float)((v >> 8) & 255u), f.z = (float)((v >> 16) & 255u), f.w = (float)(v >> 24);
    to[i] = f;
  }
}

// range[0] = min(range[0], least byte), range[1] = max(range[1], greatest); count divides by 16.
KERNEL byte_range(const uint4* bytes, int* range, long count) {
  u32 least = 255u, greatest = 0u;
  for (long i = global_thread(); i < count / 16; i += global_threads()) {
    uint4 v = bytes[i];
    u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int k = 0; k < 16; k++) {
      u32 b = (words[k >> 2] >> (8 * (k & 3))) & 255u;
      least = min(least, b), greatest = max(greatest, b);
    }
  }
  for (int lanes = 16; lanes; lanes >>= 1) {  // exact: bytes as floats
    least = min(least, (u32)shuffle_xor((float)least, lanes));
    greatest = max(greatest, (u32)shuffle_xor((float)greatest, lanes));
  }
  if ((threadIdx.x & 31) == 0) {
    atomicMin(range, (int)least);
    atomicMax(range + 1, (int)greatest);
  }
}

// The sum over the block, for its first thread; shared memory: a float for each warp. One atomic addition a block is enough
// then: those to one address wait for each other.
DEVICE float block_sum(float x) {
  float* of_warp = (float*)shared_memory;
  x = warp_sum(x);
  if ((threadIdx.x & 31) == 0) of_warp[threadIdx.x >> 5] = x;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int w = 1; w < (int)blockDim.x >> 5; w++) x += of_warp[w];
  return x;
}

// total += the number of ones among bytes of 0 or 1; times `each`. count divides by 16.
KERNEL share_of_ones(const uint4* bytes, float* total, long count, long each) {
  int ones = 0;
  for (long i = global_thread(); i < count / 16; i += global_threads()) {
    uint4 v = bytes[i];  // a product with 0x01010101 adds up four bytes
    ones += (int)(((v.x + v.y + v.z + v.w) * 0x01010101u) >> 24);
  }
  float sum = block_sum((float)ones);
  if (threadIdx.x == 0) atomicAdd(total, sum * float_of(each));
}

// ---------------------------------------------------------------- masks

#define MASK_THREADS 512
#define MASK_QUADS 4  // of pixels: up to 8192 a frame

// One block a frame, float [3][pixels]: magnitude is the largest absolute value over the colours. mask [3][pixels] is 1 at
// or above the `kept`-th largest magnitude. A frame with a NaN is masked out whole. `pixels` divides by 4.
//
// The bits of non-negative floats are ordered like the floats, so the threshold is found bit by bit from the top; exactly
// `kept` values at or above a candidate end the search early. Shared memory: 2 * 16 + 1 ints.
KERNEL __launch_bounds__(MASK_THREADS) quantile(const float* map, u8* mask, long pixels, long kept) {
  int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  long quads = pixels / 4;
  const float4* from = (const float4*)map + (size_t)blockIdx.x * 3 * quads;
  u32* to = (u32*)mask + (size_t)blockIdx.x * 3 * quads;
  int* counts = (int*)shared_memory;
  u32 v[MASK_QUADS][4];
  int bad = 0;
#pragma unroll
  for (int k = 0; k < MASK_QUADS; k++) {
    long j = thread + MASK_THREADS * k;
    v[k][0] = v[k][1] = v[k][2] = v[k][3] = 0u;
    if (j >= quads) continue;
    float4 r = from[j], g = from[quads + j], b = from[2 * quads + j];
    float colours[4][3] = {{r.x, g.x, b.x}, {r.y, g.y, b.y}, {r.z, g.z, b.z}, {r.w, g.w, b.w}};
#pragma unroll
    for (int p = 0; p < 4; p++) {
      float x = colours[p][0], y = colours[p][1], z = colours[p][2];
      if (x != x || y != y || z != z) bad = 1;
      v[k][p] = as_bits(fmaxf(fabsf(x), fmaxf(fabsf(y), fabsf(z))));
    }
  }
  // Values beyond the frame are 0, like the least magnitude: no candidate is 0, so they are never counted.
  u32 threshold = 0u;
  bad = warp_sum(bad);
  if (lane == 0) counts[warp] = bad;
  __syncthreads();
  bad = 0;
  for (int w = 0; w < MASK_THREADS / 32; w++) bad += counts[w];
  __syncthreads();
#pragma unroll 1
  for (int bit = 30; bit >= 0; bit--) {
    u32 candidate = threshold | (1u << bit);
    int count = 0;
#pragma unroll
    for (int k = 0; k < MASK_QUADS * 4; k++) count += v[k >> 2][k & 3] >= candidate ? 1 : 0;
    count = warp_sum(count);
    int* slot = counts + (bit & 1) * 16;
    if (lane == 0) slot[warp] = count;
    __syncthreads();
    count = 0;
    for (int w = 0; w < MASK_THREADS / 32; w++) count += slot[w];
    if (count >= kept) threshold = candidate;
    if (count == kept) break;
  }
#pragma unroll
  for (int k = 0; k < MASK_QUADS; k++) {
    long j = thread + MASK_THREADS * k;
    if (j >= quads) continue;
    u32 four = 0u;
#pragma unroll
    for (int p = 0; p < 4; p++) four |= (v[k][p] >= threshold && !bad ? 1u : 0u) << (8 * p);
    to[j] = to[quads + j] = to[2 * quads + j] = four;
  }
}

// ---------------------------------------------------------------- mask prediction

// loss += the mean binary cross-entropy of logits (bf16) with a mask (bytes of 0 or 1); eight a thread.
KERNEL bce_forward(const uint4* logits, const uint2* mask, float* loss, long count) {
  float sum = 0.f;
  for (long i = global_thread(); i < count / 8; i += global_threads()) {
    uint4 eight = logits[i];
    uint2 bits = mask[i];
    u32 pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int k = 0; k < 8; k++) {
      float x = k & 1 ? high_half(pairs[k >> 1]) : low_half(pairs[k >> 1]);
      float target = (float)(((k < 4 ? bits.x : bits.y) >> (8 * (k & 3))) & 1u);
      sum += fmaxf(x, 0.f) - x * target + fast_log(1.f + fast_exp(-fabsf(x)));
    }
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) atomicAdd(loss, sum / (float)count);
}
// total += the share of logits that are positive where the mask is 1, and only there.
KERNEL agreement(const uint4* logits, const uint2* mask, float* total, long count) {
  int agree = 0;
  for (long i = global_thread(); i < count / 8; i += global_threads()) {
    uint4 eight = logits[i];
    uint2 bits = mask[i];
    u32 pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int k = 0; k < 8; k++) {
      float x = k & 1 ? high_half(pairs[k >> 1]) : low_half(pairs[k >> 1]);
      agree += (x > 0.f ? 1u : 0u) == (((k < 4 ? bits.x : bits.y) >> (8 * (k & 3))) & 1u) ? 1 : 0;
    }
  }
  float sum = block_sum((float)agree);
  if (threadIdx.x == 0) atomicAdd(total, sum / (float)count);
}
// The gradient of the mean binary cross-entropy, times scale[0].
KERNEL bce_backward(const uint4* logits, const uint2* mask, const float* scale, uint4* gradient, long count) {
  float each = scale[0] / (float)count;
  for (long i = global_thread(); i < count / 8; i += global_threads()) {
    uint4 eight = logits[i];
    uint2 bits = mask[i];
    u32 pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int k = 0; k < 4; k++) {
      u32 two = (k < 2 ? bits.x : bits.y) >> (16 * (k & 1));
      float d[2];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float x = h ? high_half(pairs[k]) : low_half(pairs[k]), target = (float)((two >> (8 * h)) & 1u);
        float e = fast_exp(-fabsf(x)), r = fast_reciprocal(1.f + e);
        d[h] = ((x >= 0.f ? r : e * r) - target) * each;
      }
      pairs[k] = pack_bf16(d[0], d[1]);
    }
    eight.x = pairs[0], eight.y = pairs[1], eight.z = pairs[2], eight.w = pairs[3];
    gradient[i] = eight;
  }
}

// ---------------------------------------------------------------- weights

// table [segments][7]: addresses of a float source and its destination, rows, columns, the destination's pitch, whether it
// is bf16, and g: where not 0, row a * g + b goes to row b * rows / g + a. Grid (parts, segments).
KERNEL convert(const long long* table) {
  const long long* row = table + blockIdx.y * 7;
  const float* from = (const float*)row[0];
  u32 rows = (u32)row[2], columns = (u32)row[3], pitch = (u32)row[4], count = rows * columns;
  u32 group = (u32)row[6], groups = group ? rows / group : 0, first = (u32)global_thread(), step = (u32)global_threads();
  bf16* half = (bf16*)row[1];
  float* full = (float*)row[1];
  if (row[5] && columns % 4 == 0 && pitch % 4 == 0 && !group) {
    for (u32 i = first; i < count / 4; i += step) {
      float4 v = ((const float4*)from)[i];
      uint2 pairs;
      pairs.x = pack_bf16(v.x, v.y);
      pairs.y = pack_bf16(v.z, v.w);
      u32 r = i * 4 / columns;
      *(uint2*)(half + r * pitch + (i * 4 - r * columns)) = pairs;
    }
    return;
  }
#pragma unroll 4
  for (u32 i = first; i < count; i += step) {
    u32 r = i / columns, to = group ? r % group * groups + r / group : r, at = to * pitch + (i - r * columns);
    if (row[5]) half[at] = to_bf16(from[i]);
    else full[at] = from[i];
  }
}

// ---------------------------------------------------------------- decoder
//
// A 3x3 convolution after nearest upsampling is, on the small map, a 2x2 convolution with four times the outputs: pixel
// (2 i + py, 2 j + px) of the large map is output (2 py + px) of the window at (i + py, j + px). "Windows" below are that
// convolution's results, bf16 [picture][size + 1][size + 1][4][channels] for a map of size x size.

struct DecoderLayers {  // three of them: the first on its own map, the others after upsampling
  long filters[3], channels[3], outputs[3];  // outputs: of the small convolution, 4 * filters and some of zeros
  const float* large[3];                     // [filters][channels][3][3]
  bf16* small[3];                            // [filters][3][3][channels], or [outputs][2][2][channels]
  float* d_large[3];
};
// Which of two small pixels tap `tap` of three meets, for the large pixels of a parity.
DEVICE int small_tap(int parity, int tap) { return parity ? tap >> 1 : (tap + 1) >> 1; }

// The weights as the small convolutions want them. A thread takes the nine taps of a filter and a channel; grid (parts, 3).
KERNEL decoder_weights(TABLE(DecoderLayers) layers) {
  int l = blockIdx.y, F = (int)layers.filters[l], C = (int)layers.channels[l], N = (int)layers.outputs[l];
  bf16* to = layers.small[l];
  int total = (l == 0 ? F : N - 3 * F) * C;  // the last filters and those of zeros
  for (int i = (int)global_thread(); i < total; i += (int)global_threads()) {
    int f = i / C, c = i - f * C;
    if (l == 0) {
      for (int t = 0; t < 9; t++) to[(f * 9 + t) * C + c] = to_bf16(layers.large[0][i * 9 + t]);
      continue;
    }
    if (f >= F) {
      for (int t = 0; t < 4; t++) to[((3 * F + f) * 4 + t) * C + c] = to_bf16(0.f);
      continue;
    }
    float w[9];
#pragma unroll
    for (int t = 0; t < 9; t++) w[t] = layers.large[l][i * 9 + t];
#pragma unroll
    for (int parity = 0; parity < 4; parity++) {
      float sums[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
      for (int t = 0; t < 9; t++) sums[small_tap(parity >> 1, t / 3) * 2 + small_tap(parity & 1, t % 3)] += w[t];
#pragma unroll
      for (int t = 0; t < 4; t++) to[((parity * F + f) * 4 + t) * C + c] = to_bf16(sums[t]);
    }
  }
}
// The other way, for gradients: those of `small` to those of `large`, float.
KERNEL decoder_weight_gradients(TABLE(DecoderLayers) layers) {
  int l = blockIdx.y, F = (int)layers.filters[l], C = (int)layers.channels[l];
  const bf16* from = layers.small[l];
  for (int i = (int)global_thread(); i < F * C; i += (int)global_threads()) {
    int f = i / C, c = i - f * C;
    float w[9];
#pragma unroll
    for (int t = 0; t < 9; t++) w[t] = l == 0 ? to_float(from[(f * 9 + t) * C + c]) : 0.f;
    if (l > 0) {
#pragma unroll
      for (int parity = 0; parity < 4; parity++) {
        float d[4];
#pragma unroll
        for (int t = 0; t < 4; t++) d[t] = to_float(from[((parity * F + f) * 4 + t) * C + c]);
#pragma unroll
        for (int t = 0; t < 9; t++) w[t] += d[small_tap(parity >> 1, t / 3) * 2 + small_tap(parity & 1, t % 3)];
      }
    }
#pragma unroll
    for (int t = 0; t < 9; t++) layers.d_large[l][i * 9 + t] = w[t];
  }
}

// x = relu(x + bias), bf16 [rows][width], in place; eight channels a thread. Without `rectify`, x + bias.
KERNEL bias_relu(uint4* x, const float* bias, long rows, long width, long rectify) {
  long eighths = width / 8;
  float least = rectify ? 0.f : -3.4e38f;
  for (long i = global_thread(); i < rows * eighths; i += global_threads()) {
    const float* b = bias + i % eighths * 8;
    uint4 v = x[i];
    v.x = pack_bf16(fmaxf(low_half(v.x) + b[0], least), fmaxf(high_half(v.x) + b[1], least));
    v.y = pack_bf16(fmaxf(low_half(v.y) + b[2], least), fmaxf(high_half(v.y) + b[3], least));
    v.z = pack_bf16(fmaxf(low_half(v.z) + b[4], least), fmaxf(high_half(v.z) + b[5], least));
    v.w = pack_bf16(fmaxf(low_half(v.w) + b[6], least), fmaxf(high_half(v.w) + b[7], least));
    x[i] = v;
  }
}

DEVICE uint4 add_rectify(uint4 v, const float* bias) {
  v.x = pack_bf16(fmaxf(low_half(v.x) + bias[0], 0.f), fmaxf(high_half(v.x) + bias[1], 0.f));
  v.y = pack_bf16(fmaxf(low_half(v.y) + bias[2], 0.f), fmaxf(high_half(v.y) + bias[3], 0.f));
  v.z = pack_bf16(fmaxf(low_half(v.z) + bias[4], 0.f), fmaxf(high_half(v.z) + bias[5], 0.f));
  v.w = pack_bf16(fmaxf(low_half(v.w) + bias[6], 0.f), fmaxf(high_half(v.w) + bias[7], 0.f));
  return v;
}
DEVICE u32 gate(u32 d, u32 x) { return (low_half(x) > 0.f ? d & 0xffffu : 0u) | (high_half(x) > 0.f ? d & 0xffff0000u : 0u); }
// Adds eight channels to their sums.
DEVICE void add_eight(float (&sums)[8], uint4 v) {
  sums[0] += low_half(v.x), sums[1] += high_half(v.x), sums[2] += low_half(v.y), sums[3] += high_half(v.y);
  sums[4] += low_half(v.z), sums[5] += high_half(v.z), sums[6] += low_half(v.w), sums[7] += high_half(v.w);
}
// The block's sums of eight channels a thread, to global memory by way of shared memory: [channels] floats.
DEVICE void flush_eight(const float (&sums)[8], int channel, float* to, int channels) {
  float* total = (float*)shared_memory;
  for (int k = threadIdx.x; k < channels; k += blockDim.x) total[k] = 0.f;
  __syncthreads();
  for (int k = 0; k < 8; k++) atomicAdd(total + channel + k, sums[k]);
  __syncthreads();
  for (int k = threadIdx.x; k < channels; k += blockDim.x) atomicAdd(to + k, total[k]);
}

// Through a ReLU, in place: d, bf16 [rows][width], where x is positive (everywhere without x; in the guided way positive
// gradients alone). The bias's gradient, [width], is added to, or left out. Eight channels a thread, width / 8 divides 256;
// shared memory: width floats.
KERNEL gate_sums(uint4* d, const uint4* x, float* d_bias, long rows, long width, long guided) {
  long eighths = width / 8, total = rows * eighths;
  float sums[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
  for (long i = global_thread(); i < total; i += global_threads()) {
    uint4 v = d[i];
    if (x) {
      uint4 a = x[i];
      v.x = gate(v.x, a.x), v.y = gate(v.y, a.y), v.z = gate(v.z, a.z), v.w = gate(v.w, a.w);
      if (guided)
        v.x = max_bf16x2(v.x, 0u), v.y = max_bf16x2(v.y, 0u), v.z = max_bf16x2(v.z, 0u), v.w = max_bf16x2(v.w, 0u);
      d[i] = v;
    }
    add_eight(sums, v);
  }
  if (d_bias) flush_eight(sums, (int)(global_thread() % eighths) * 8, d_bias, (int)width);
}

// Windows to the large map, relu(window + bias), bf16 [picture][2 size][2 size][channels]; eight channels a thread.
KERNEL upsample_forward(const uint4* windows, const float* bias, uint4* out, long count, long size, long channels) {
  int eighths = (int)channels / 8, large = 2 * (int)size;
  int total = (int)count * large * large * eighths;
  for (int i = (int)global_thread(); i < total; i += (int)global_threads()) {
    int pixel = i / eighths, c = i - pixel * eighths, line = pixel / large, x = pixel - line * large;
    int picture = line / large, y = line - picture * large, py = y & 1, px = x & 1;
    int at = ((picture * ((int)size + 1) + (y >> 1) + py) * ((int)size + 1) + (x >> 1) + px) * 4 + py * 2 + px;
    out[i] = add_rectify(windows[(long)at * eighths + c], bias + c * 8);
  }
}
// The large map's gradient to that of the windows, through the ReLU; bias gradients [channels] are added to. Eight channels
// of one parity a thread, channels / 2 divides the block; shared memory: channels floats.
KERNEL upsample_backward(const uint4* d_out, const uint4* out, uint4* d_windows, float* d_bias, long count, long size,
                         long channels) {
  int eighths = (int)channels / 8, each = 4 * eighths, side = (int)size + 1, large = 2 * (int)size;
  int own = threadIdx.x % each, parity = own / eighths, c = own - parity * eighths, py = parity >> 1, px = parity & 1;
  int total = (int)count * side * side;
  float sums[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
  for (int w = (int)(global_thread() / each); w < total; w += (int)(global_threads() / each)) {
    int line = w / side, j = w - line * side - px, picture = line / side, i = line - picture * side - py;
    uint4 d = zeros_16();
    if (i >= 0 && i < size && j >= 0 && j < size) {
      long at = (((long)picture * large + 2 * i + py) * large + 2 * j + px) * eighths + c;
      uint4 x = out[at];
      d = d_out[at];
      d.x = gate(d.x, x.x), d.y = gate(d.y, x.y), d.z = gate(d.z, x.z), d.w = gate(d.w, x.w);
      add_eight(sums, d);
    }
    d_windows[(long)w * each + own] = d;
  }
  flush_eight(sums, c * 8, d_bias, (int)channels);
}

// Windows [picture][size + 1][size + 1][pitch], of which the first 4 * channels count, to logits [picture][channel]
// [2 size][2 size], bias added. A thread takes the two pixels of a row that share j, in all channels.
KERNEL logits_forward(const bf16* windows, const float* bias, bf16* logits, long count, long size, long channels,
                      long pitch) {
  int large = 2 * (int)size, side = (int)size + 1, half = (int)size, C = (int)channels, total = (int)count * large * half;
  for (int i = (int)global_thread(); i < total; i += (int)global_threads()) {
    int line = i / half, j = i - line * half, picture = line / large, y = line - picture * large, py = y & 1;
    const bf16* window = windows + ((long)(picture * side + (y >> 1) + py) * side + j) * pitch + py * 2 * C;
    u32* to = (u32*)(logits + ((long)picture * C * large + y) * large) + j;
    for (int c = 0; c < C; c++)
      to[(long)c * large * half] = pack_bf16(to_float(window[c]) + bias[c], to_float(window[pitch + C + c]) + bias[c]);
  }
}
// The other way, zeros where there is no pixel; bias gradients [C] are added to. A thread takes a window; shared memory:
// C floats. C channels are padded to PITCH.
template <int C, int PITCH>
DEVICE void logits_backward_of(const bf16* d_logits, uint4* d_windows, float* d_bias, long count, long size) {
  int large = 2 * (int)size, side = (int)size + 1, total = (int)count * side * side;
  float sums[C], *shared = (float*)shared_memory;
#pragma unroll
  for (int c = 0; c < C; c++) sums[c] = 0.f;
  for (int k = threadIdx.x; k < C; k += blockDim.x) shared[k] = 0.f;
  __syncthreads();
  for (int w = (int)global_thread(); w < total; w += (int)global_threads()) {
    int line = w / side, X = w - line * side, picture = line / side, Y = line - picture * side;
    const bf16* from = d_logits + (long)picture * C * large * large;
    u32 pairs[PITCH / 2];
#pragma unroll
    for (int k = 0; k < PITCH / 2; k++) pairs[k] = 0u;
#pragma unroll
    for (int parity = 0; parity < 4; parity++) {
      int y = 2 * Y - (parity >> 1), x = 2 * X - (parity & 1);  // 2 i + py with i = Y - py
      bool inside = y >= 0 && y < large && x >= 0 && x < large;
#pragma unroll
      for (int c = 0; c < C; c++) {
        u32 d = inside ? from[(c * large + y) * large + x] : 0u;
        sums[c] += as_float(d << 16);
        pairs[(parity * C + c) >> 1] |= d << (16 * ((parity * C + c) & 1));
      }
    }
#pragma unroll
    for (int k = 0; k < PITCH / 8; k++) {
      uint4 v;
      v.x = pairs[4 * k], v.y = pairs[4 * k + 1], v.z = pairs[4 * k + 2], v.w = pairs[4 * k + 3];
      d_windows[(long)w * (PITCH / 8) + k] = v;
    }
  }
#pragma unroll
  for (int c = 0; c < C; c++) {
    float sum = warp_sum(sums[c]);
    if ((threadIdx.x & 31) == 0) atomicAdd(shared + c, sum);
  }
  __syncthreads();
  for (int k = threadIdx.x; k < C; k += blockDim.x) atomicAdd(d_bias + k, shared[k]);
}
KERNEL logits_backward_3(const bf16* d_logits, uint4* d_windows, float* d_bias, long count, long size) {
  logits_backward_of<3, 16>(d_logits, d_windows, d_bias, count, size);
}
KERNEL logits_backward_6(const bf16* d_logits, uint4* d_windows, float* d_bias, long count, long size) {
  logits_backward_of<6, 24>(d_logits, d_windows, d_bias, count, size);
}
KERNEL logits_backward_9(const bf16* d_logits, uint4* d_windows, float* d_bias, long count, long size) {
  logits_backward_of<9, 40>(d_logits, d_windows, d_bias, count, size);
}

// ---------------------------------------------------------------- Adam

#define MOST_SEGMENTS 48  // a table of them fits the 4 KB of a kernel's parameters
#define ADAM_CHUNK 4096

struct AdamTable {  // of `count` tensors
  long count;
  long first_block[MOST_SEGMENTS + 1];  // a block takes ADAM_CHUNK elements of one tensor
  long size[MOST_SEGMENTS];
  float* parameter[MOST_SEGMENTS];
  const float* gradient[MOST_SEGMENTS];
  float* mean[MOST_SEGMENTS];
  float* square[MOST_SEGMENTS];
  const float* step[MOST_SEGMENTS];
  void* copy[MOST_SEGMENTS];     // of the new values, or null: rows of `columns`
  long columns[MOST_SEGMENTS];
  long pitch[MOST_SEGMENTS];     // of the copy's rows; negative if it is bf16, else it is float
};

struct AdamNumbers {
  float rate, root;                      // corrected for the moments' start at zero
  float keep1, keep2, take1, take2;      // beta and 1 - beta, which float32 would round badly
  float epsilon;
};

DEVICE void adam_element(float& p, float g, float& m, float& v, const AdamNumbers& n) {
  m = n.keep1 * m + n.take1 * g;
  v = n.keep2 * v + n.take2 * g * g;
  p -= n.rate * m / (sqrtf(v) * n.root + n.epsilon);
}

DEVICE void put_copy(void* copy, float value, long i, long columns, long pitch) {
  long row = i / columns, column = i - row * columns;
  if (pitch < 0) ((bf16*)copy)[column - row * pitch] = to_bf16(value);
  else ((float*)copy)[column + row * pitch] = value;
}

// One step; each tensor's step count has been advanced already. The rate rises to its value in `warmup` steps.
KERNEL adam(TABLE(AdamTable) table, long rate, long warmup, long keep1, long keep2, long take1, long take2, long epsilon) {
  int t = 0;
  while (t + 1 < table.count && (long)blockIdx.x >= table.first_block[t + 1]) t++;
  AdamNumbers n;
  float step = *table.step[t];
  n.keep1 = float_of(keep1), n.keep2 = float_of(keep2), n.take1 = float_of(take1), n.take2 = float_of(take2);
  float share = step < float_of(warmup) ? step / float_of(warmup) : 1.f;
  n.rate = float_of(rate) * share / (1.f - powf(n.keep1, step));
  n.root = 1.f / sqrtf(1.f - powf(n.keep2, step));
  n.epsilon = float_of(epsilon);
  long begin = (blockIdx.x - table.first_block[t]) * ADAM_CHUNK, end = min(begin + ADAM_CHUNK, table.size[t]);
  float *p = table.parameter[t], *m = table.mean[t], *v = table.square[t];
  long columns = table.columns[t], pitch = table.pitch[t];
  const float* g = table.gradient[t];
  if (table.size[t] % 4 == 0 && (((u64)p | (u64)m | (u64)v | (u64)g) & 15) == 0) {
    for (long i = begin / 4 + threadIdx.x; i < end / 4; i += blockDim.x) {
      float4 P = ((float4*)p)[i], G = ((const float4*)g)[i], M = ((float4*)m)[i], V = ((float4*)v)[i];
      adam_element(P.x, G.x, M.x, V.x, n);
      adam_element(P.y, G.y, M.y, V.y, n);
      adam_element(P.z, G.z, M.z, V.z, n);
      adam_element(P.w, G.w, M.w, V.w, n);
      ((float4*)p)[i] = P;
      ((float4*)m)[i] = M;
      ((float4*)v)[i] = V;
      if (!table.copy[t]) continue;
      if (pitch < 0 && columns % 4 == 0 && pitch % 4 == 0) {
        long row = i * 4 / columns;
        uint2 pairs;
        pairs.x = pack_bf16(P.x, P.y), pairs.y = pack_bf16(P.z, P.w);
        *(uint2*)((bf16*)table.copy[t] - row * pitch + (i * 4 - row * columns)) = pairs;
      } else {
        float four[4] = {P.x, P.y, P.z, P.w};
        for (int k = 0; k < 4; k++) put_copy(table.copy[t], four[k], i * 4 + k, columns, pitch);
      }
    }
    return;
  }
  for (long i = begin + threadIdx.x; i < end; i += blockDim.x) {
    adam_element(p[i], g[i], m[i], v[i], n);
    if (table.copy[t]) put_copy(table.copy[t], p[i], i, columns, pitch);
  }
}

// ---------------------------------------------------------------- losses

// loss = the sum over pairs of rows, a_i and b_i, of the mean squared difference; [pairs][count] differences times
// 2 / count are kept. One block of 256; shared memory: 8 floats. b_i may be one row for all.
KERNEL squared_errors(const float* a0, const float* a1, const float* b0, const float* b1, float* kept, float* loss,
                      long pairs, long count) {
  float sum = 0.f;
  for (long i = threadIdx.x; i < pairs * count; i += blockDim.x) {
    long k = i % count;
    float d = i < count ? a0[k] - b0[k] : a1[k] - b1[k];
    kept[i] = 2.f * d / (float)count;
    sum += d * d;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) loss[0] = sum / (float)count;
}

// reward + discount * (min(q0, q1) - exp(log_alpha) * log_pi)
KERNEL soft_target(const float* reward, const float* discount, const float* q0, const float* q1, const float* log_pi,
                   const float* alpha, float* out, long count) {
  for (long i = global_thread(); i < count; i += global_threads())
    out[i] = reward[i] + discount[i] * (fminf(q0[i], q1[i]) - alpha[0] * log_pi[i]);
}
