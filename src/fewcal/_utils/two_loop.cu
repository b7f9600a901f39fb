// The recursion of L-BFGS on inner products, a warp for each task; the algebra is that of heads/two_loop.py.
//
// MEMORY, at most 32, is defined before compilation. `fresh` (2·MEMORY, 2) are products of s and of P·y with the newest y
// and with the gradient, `products` (2, MEMORY, MEMORY) those with all y, in which the newest take their place.

extern "C" __global__ void two_loop(const float* fresh, const float* squares, const bool* active, double* products,
                                    float* weights, float* scales, double* slopes, int used) {
  const long long task = blockIdx.x;
  const int lane = threadIdx.x, newest = (used - 1) % MEMORY, h = used < MEMORY ? used : MEMORY;
  fresh += task * 4 * MEMORY;
  products += task * 2 * MEMORY * MEMORY;
  weights += task * 2 * MEMORY;
  double *steps = products, *changes = products + MEMORY * MEMORY;  // ⟨s_i, y_j⟩ and ⟨P·y_i, y_j⟩
  if (lane < MEMORY) {
    steps[lane * MEMORY + newest] = fresh[2 * lane];
    changes[lane * MEMORY + newest] = changes[newest * MEMORY + lane] = fresh[2 * (MEMORY + lane)];
  }
  __shared__ double r[MEMORY][MEMORY + 1], q[MEMORY][MEMORY + 1];
  __syncwarp();
  // Lane i has the i-th of the h pairs, from the oldest to the newest.
  const int own = (used - h + lane) % MEMORY;
  const bool here = lane < h;
  if (here)
    for (int j = 0; j < h; j++) {
      const int other = (used - h + j) % MEMORY;
      r[lane][j] = steps[own * MEMORY + other];
      q[lane][j] = changes[own * MEMORY + other];
    }
  __syncwarp();
  const double curvature = here ? r[lane][lane] : 0.;
  const bool good = curvature > 1e-12;  // pairs of no curvature are left out
  const double with_s = here ? fresh[2 * own + 1] : 0., with_y = here ? fresh[2 * (MEMORY + own) + 1] : 0.;
  double rest = good ? with_s : 0., alpha = 0., beta = 0.;
  for (int j = h - 1; j >= 0; j--) {
    const double top = __shfl_sync(~0u, good ? rest / curvature : 0., j);
    if (lane == j) alpha = top;
    if (good && lane < j) rest -= r[lane][j] * top;
  }
  const double ends = __shfl_sync(~0u, curvature, h - 1);
  const double scale = ends > 1e-12 ? ends / fmax(q[h - 1][h - 1], 1e-30) : 1.;
  double pushed = with_y;
  for (int j = 0; j < h; j++) {
    const double other = __shfl_sync(~0u, alpha, j);
    if (here) pushed -= q[lane][j] * other;
  }
  rest = good ? curvature * alpha - scale * pushed : 0.;
  for (int j = 0; j < h; j++) {
    const double top = __shfl_sync(~0u, good ? rest / curvature : 0., j);
    if (lane == j) beta = top;
    if (good && lane > j) rest -= r[j][lane] * top;
  }
  double slope = here ? scale * alpha * with_y - beta * with_s : 0.;
  for (int i = 16; i; i /= 2) slope += __shfl_xor_sync(~0u, slope, i);
  const double square = squares[task];
  slope -= scale * square;
  const bool downhill = slope < 0, moves = downhill && active[task];
  if (lane < MEMORY) weights[lane] = weights[MEMORY + lane] = 0.f;
  __syncwarp();
  if (here && moves) {
    weights[own] = (float)-beta;
    weights[MEMORY + own] = (float)(scale * alpha);
  }
  if (lane == 0) {
    scales[task] = active[task] ? (float)(downhill ? -scale : -1.) : 0.f;
    slopes[task] = active[task] ? (downhill ? slope : -square) : 0.;
  }
}
