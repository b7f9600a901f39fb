// Epochs of mini-batch SGD for softmax regression, one block for each task; see fused_sgd.py.
//
// D, N, ROWS are defined before compilation. A tile of ROWS points is fetched while the one before it is worked on, and is
// read from memory once for both products: logits of the batch (points × weights) and gradient (residuals × points).
// Weights stay in registers in float32 throughout; products are of bfloat16 and add up in float32.

#define WARPS 8
#define DP ((D + 127) / 128 * 128)          // features, padded so that each warp has as many
#define STRIDE (DP + 8)                     // of a row in shared memory: no two rows begin in the same bank
#define GROUPS (ROWS / 16)                  // groups of 16 points
#define SPLITS (WARPS / GROUPS)             // warps that share the features of a group
#define STEPS (DP / 16 / SPLITS)            // steps of 16 features in a warp's part of the logits
#define TILES (DP / 16 / WARPS)             // blocks of 16 features whose gradient a warp holds
#define EACH (ROWS / WARPS)                 // points that a warp fetches
#define S_STRIDE (ROWS + 8)
#define SUMMED (ROWS < 32 ? 32 : ROWS)      // threads that add up residuals: whole warps

typedef unsigned int u32;
typedef unsigned short u16;

__device__ __forceinline__ u32 address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ u32 pack(float low, float high) {
  u32 out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 1)
sgd_epochs(const u16* x, const int* order, const int* labels, float* weight, float* bias, float* loss, int m, int epochs,
           int batch, float rate, int last) {
  extern __shared__ __align__(128) unsigned char memory[];
  u16* tiles = (u16*)memory;                                  // 2 × ROWS × STRIDE
  u16* shared_w = tiles + 2 * ROWS * STRIDE;                  // 8 × STRIDE
  u16* shared_s = shared_w + 8 * STRIDE;                      // 8 × S_STRIDE, residuals of a tile
  float* partial = (float*)(shared_s + 8 * S_STRIDE);         // SPLITS × ROWS × 8, parts of the logits
  int* truth = (int*)(partial + SPLITS * ROWS * 8);           // 2 × ROWS
  float* shared_b = (float*)(truth + 2 * ROWS);               // 8
  float* sums = shared_b + 8;                                 // (SUMMED / 32) × 8

  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, q = lane % 4;
  const long long task = blockIdx.x;
  x += task * m * D;
  order += task * epochs * m;
  labels += task * m;
  weight += task * N * D;
  bias += task * N;

  for (int i = thread; i < 2 * ROWS * STRIDE / 2; i += WARPS * 32) ((u32*)tiles)[i] = 0;
  for (int i = thread; i < 8 * STRIDE / 2; i += WARPS * 32) ((u32*)shared_w)[i] = 0;
  if (thread < 8) shared_b[thread] = thread < N ? bias[thread] : 0.f;

  // Weights and gradient: feature g and g + 8 of each block, classes 2q and 2q + 1.
  float w[TILES][4], grad[TILES][4];
#pragma unroll
  for (int i = 0; i < TILES; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      int f = (warp * TILES + i) * 16 + g + (j / 2) * 8, c = 2 * q + j % 2;
      w[i][j] = f < D && c < N ? weight[c * D + f] : 0.f;
      grad[i][j] = 0.f;
    }
  float own[N], total = 0.f;  // of the thread's row: sum of residuals, loss
#pragma unroll
  for (int c = 0; c < N; c++) own[c] = 0.f;

  // The place of the next tile to fetch: epoch, first point of its batch, first point of the tile within it.
  int fetch_e = 0, fetch_b = 0, fetch_r = 0, slot = 0;
  auto fetch = [&]() {
    if (fetch_e < epochs) {
      int size = min(batch, m - fetch_b), row = warp * EACH + lane, index = 0;
      if (lane < EACH && fetch_r + row < size) index = order[fetch_e * m + fetch_b + fetch_r + row];
#pragma unroll
      for (int j = 0; j < EACH; j++) {
        const u16* from = x + (long long)__shfl_sync(~0u, index, j) * D;
        u32 to = address(tiles + (slot * ROWS + warp * EACH + j) * STRIDE);
        for (int i = lane; i < D / 8; i += 32)
          asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i * 16), "l"(from + i * 8));
      }
      if (lane < EACH) truth[slot * ROWS + row] = fetch_r + row < size ? labels[index] : -1;
      fetch_r += ROWS;
      if (fetch_r >= size) {
        fetch_r = 0;
        fetch_b += batch;
        if (fetch_b >= m) { fetch_b = 0; fetch_e++; }
      }
    }
    asm volatile("cp.async.commit_group;");
    slot ^= 1;
  };
  __syncthreads();
  fetch();

  int now = 0;
  const int group = warp / SPLITS, split = warp % SPLITS;
  for (int e = 0; e < epochs; e++)
    for (int begin = 0; begin < m; begin += batch) {
      const int size = min(batch, m - begin);
#pragma unroll
      for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
          u32 both = pack(w[i][j], 0.f);
          shared_w[(2 * q + j % 2) * STRIDE + (warp * TILES + i) * 16 + g + (j / 2) * 8] = (u16)both;
        }
      __syncthreads();
      u32 b[STEPS][2];
#pragma unroll
      for (int k = 0; k < STEPS; k++) {
        const u16* p = shared_w + g * STRIDE + (split * STEPS + k) * 16 + 2 * q;
        b[k][0] = *(const u32*)p;
        b[k][1] = *(const u32*)(p + 8);
      }
      for (int r = 0; r < size; r += ROWS) {
        asm volatile("cp.async.wait_group 0;");
        __syncthreads();
        fetch();
        const u16* tile = tiles + now * ROWS * STRIDE;
        // Logits of 16 points, over this warp's share of the features.
        float even[4] = {0.f, 0.f, 0.f, 0.f}, odd[4] = {0.f, 0.f, 0.f, 0.f};
        u32 from = address(tile + (group * 16 + lane % 16) * STRIDE + split * STEPS * 16 + (lane / 16) * 8);
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
          u32 a[4];
          asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                       : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(from + k * 32));
          if (k % 2) multiply(odd, a, b[k][0], b[k][1]);
          else multiply(even, a, b[k][0], b[k][1]);
        }
        float* z = partial + (split * ROWS + group * 16 + g) * 8 + 2 * q;
        z[0] = even[0] + odd[0];
        z[1] = even[1] + odd[1];
        z[64] = even[2] + odd[2];
        z[65] = even[3] + odd[3];
        __syncthreads();
        // Softmax less truth, a point for each thread.
        if (thread < ROWS) {
          float v[N], top = -1e30f, sum = 0.f;
          const int y = truth[now * ROWS + thread];
#pragma unroll
          for (int c = 0; c < N; c++) {
            v[c] = shared_b[c];
#pragma unroll
            for (int k = 0; k < SPLITS; k++) v[c] += partial[(k * ROWS + thread) * 8 + c];
            top = fmaxf(top, v[c]);
          }
#pragma unroll
          for (int c = 0; c < N; c++) { v[c] = __expf(v[c] - top); sum += v[c]; }
#pragma unroll
          for (int c = 0; c < 8; c++) {
            float s = 0.f;
            if (c < N && y >= 0) {
              s = v[c < N ? c : 0] / sum;
              if (c == y) {
                if (last && e == epochs - 1) total -= logf(fmaxf(s, 1e-37f));
                s -= 1.f;
              }
              own[c < N ? c : 0] += s;
            }
            shared_s[c * S_STRIDE + thread] = (u16)pack(s, 0.f);
          }
        }
        __syncthreads();
        // Gradient of this warp's features.
        u32 base = address(tile + (lane % 8 + lane / 16 * 8) * STRIDE + warp * TILES * 16 + lane / 8 % 2 * 8);
#pragma unroll
        for (int k = 0; k < ROWS / 16; k++) {
          const u16* p = shared_s + g * S_STRIDE + k * 16 + 2 * q;
          u32 s0 = *(const u32*)p, s1 = *(const u32*)(p + 8);
#pragma unroll
          for (int i = 0; i < TILES; i++) {
            u32 a[4];
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                         : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(base + (k * 16 * STRIDE + i * 16) * 2));
            multiply(grad[i], a, s0, s1);
          }
        }
        now ^= 1;
      }
      const float step = rate / size;
#pragma unroll
      for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) { w[i][j] -= step * grad[i][j]; grad[i][j] = 0.f; }
      if (thread < SUMMED) {
#pragma unroll
        for (int c = 0; c < N; c++) {
          float s = own[c];
          for (int i = 16; i; i /= 2) s += __shfl_xor_sync(~0u, s, i);
          if (!lane) sums[warp * 8 + c] = s;
          own[c] = 0.f;
        }
      }
      __syncthreads();
      if (thread < N) {
        float s = 0.f;
        for (int i = 0; i < SUMMED / 32; i++) s += sums[i * 8 + thread];
        shared_b[thread] -= step * s;
      }
    }
#pragma unroll
  for (int i = 0; i < TILES; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      int f = (warp * TILES + i) * 16 + g + (j / 2) * 8, c = 2 * q + j % 2;
      if (f < D && c < N) weight[c * D + f] = w[i][j];
    }
  if (thread < N) bias[thread] = shared_b[thread];
  if (last) {
    if (thread < SUMMED) {
      for (int i = 16; i; i /= 2) total += __shfl_xor_sync(~0u, total, i);
      if (!lane) sums[warp * 8] = total;
    }
    __syncthreads();
    if (!thread) {
      float s = 0.f;
      for (int i = 0; i < SUMMED / 32; i++) s += sums[i * 8];
      loss[task] = s / m;
    }
  }
}
