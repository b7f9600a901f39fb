// How far to go along a step of L-BFGS, a block for each task; the rule is that of heads/line_search.py.
//
// ROUNDS is defined before compilation. Of z = logits + t·along, both (n, m), and p = softmax(z) over n classes, a look at
// t needs means over points of log Σ exp z, of the mean of `along` under p, and of its variance. All looks are made here:
// the host would wait for each of them. z of a point's own class is 0.

__device__ void look(const float* logits, const float* along, int n, int m, float t, double* means) {
  float sums[3] = {0.f, 0.f, 0.f};
  for (int i = threadIdx.x; i < m; i += blockDim.x) {
    float top = 0.f, sum = 0.f, first = 0.f, second = 0.f;
#pragma unroll 4
    for (int c = 0; c < n; c++) {
      const float a = along[(long long)c * m + i], z = logits[(long long)c * m + i] + t * a;
      if (z > top) {  // sums are relative to the largest z so far
        const float less = expf(top - z);
        sum *= less;
        first *= less;
        second *= less;
        top = z;
      }
      const float e = expf(z - top);
      sum += e;
      first += e * a;
      second += e * a * a;
    }
    first /= sum;
    sums[0] += top + logf(sum);
    sums[1] += first;
    sums[2] += second / sum - first * first;
  }
  __shared__ float part[3][32];
  for (int i = 16; i; i /= 2)
    for (int k = 0; k < 3; k++) sums[k] += __shfl_xor_sync(~0u, sums[k], i);
  if (threadIdx.x % 32 == 0)
    for (int k = 0; k < 3; k++) part[k][threadIdx.x / 32] = sums[k];
  __syncthreads();
  if (threadIdx.x < 3) {
    float sum = 0.f;
    for (int i = 0; i < blockDim.x / 32; i++) sum += part[threadIdx.x][i];
    means[threadIdx.x] = (double)sum / m;
  }
  __syncthreads();
}

// `start` is the loss at 0, `slopes` (3, T) the slope there, of which the penalty has so much, and its curvature.
extern "C" __global__ void line_search(const float* logits, const float* along, const double* start, const double* slopes,
                                       float* lengths, double* losses, int n, int m, float curvature, float rounding) {
  const long long task = blockIdx.x, tasks = gridDim.x;
  logits += task * n * m;
  along += task * n * m;
  const double begun = start[task], slope = slopes[task], linear = slopes[tasks + task], bent = slopes[2 * tasks + task];
  const double infinite = 1e300;
  double low = 0., high = infinite, t = 1.;
  __shared__ double means[3];
  for (int round = 0;; round++) {  // every thread follows the same means to the same length
    look(logits, along, n, m, (float)t, means);
    const double loss = means[0], here = means[1] + linear + t * bent, bend = means[2] + bent;
    const bool downhill = loss - begun + t * linear + 0.5 * t * t * bent <= 1e-5 * begun + 1e-7;
    const bool flat = fabs(here) <= curvature * fabs(slope) || fabs(slope) <= rounding * (1 + begun);
    if (slope >= 0 || (downhill && flat) || round == ROUNDS - 1) {
      if (threadIdx.x == 0) {
        lengths[task] = (float)t;
        losses[task] = loss;
      }
      return;
    }
    if (here < 0 && downhill) low = t;
    if (here >= 0 || !downhill) high = t;
    const double newton = t - here / fmax(bend, 1e-20);
    if (downhill && newton > low && newton < high)
      t = fmin(newton, 1e4);
    else
      t = high == infinite ? 2 * t : low > 0 ? 0.5 * (low + high) : 0.1 * high;
    __syncthreads();  // all have read the means before the next look writes them
  }
}
