// Loss, slope and curvature along a step, a block for each task; see heads/lbfgs.py.
//
// N is defined before compilation. Of z = logits + length·along, both (N, m), and p = softmax(z) over classes: sums over
// points of log Σ exp z, of the mean of `along` under p, and of its variance.

extern "C" __global__ void line_search(const float* logits, const float* along, const float* length, float* out, int m) {
  const long long task = blockIdx.x;
  logits += task * N * m;
  along += task * N * m;
  const float t = length[task];
  float loss = 0.f, slope = 0.f, bend = 0.f;
  for (int i = threadIdx.x; i < m; i += blockDim.x) {
    float a[N], z[N], top = -1e30f, sum = 0.f, first = 0.f, second = 0.f;
#pragma unroll
    for (int c = 0; c < N; c++) {
      a[c] = along[c * m + i];
      z[c] = logits[c * m + i] + t * a[c];
      top = fmaxf(top, z[c]);
    }
#pragma unroll
    for (int c = 0; c < N; c++) {
      const float e = expf(z[c] - top);
      sum += e;
      first += e * a[c];
      second += e * a[c] * a[c];
    }
    first /= sum;
    loss += top + logf(sum);
    slope += first;
    bend += second / sum - first * first;
  }
  __shared__ float part[3][8];
  for (int i = 16; i; i /= 2) {
    loss += __shfl_xor_sync(~0u, loss, i);
    slope += __shfl_xor_sync(~0u, slope, i);
    bend += __shfl_xor_sync(~0u, bend, i);
  }
  if (threadIdx.x % 32 == 0) {
    part[0][threadIdx.x / 32] = loss;
    part[1][threadIdx.x / 32] = slope;
    part[2][threadIdx.x / 32] = bend;
  }
  __syncthreads();
  if (threadIdx.x < 3) {
    float sum = 0.f;
    for (int i = 0; i < blockDim.x / 32; i++) sum += part[threadIdx.x][i];
    out[task * 3 + threadIdx.x] = sum;
  }
}
