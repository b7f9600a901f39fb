// Points (T, S, n, D) from their parts in one pass, a warp for each; see factor_gaussian.py.
//
// D, a multiple of 4, is defined before compilation. out = root·out + along·Σout + mean + shift + made, where what is null
// is left out: without root what is there is taken as it is, or not at all if `fresh`.

#define PARTS ((D + 127) / 128)

extern "C" __global__ void finish_points(float* out, const unsigned short* made, const float* mean, const float* root,
                                         const float* along, const float* shift, int rows, int s, int n, int task_stride,
                                         int fresh) {
  const long long row = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  const long long task = row / (s * n), point = row / n;
  out += task * task_stride + (row - task * s * n) * D;
  float4 v[PARTS];
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < PARTS; i++) {
    const int at = i * 128 + lane * 4;
    v[i] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (at < D && !fresh) v[i] = *(const float4*)(out + at);
    sum += v[i].x + v[i].y + v[i].z + v[i].w;
  }
  float times = 1.f, plus = shift ? shift[row] : 0.f;
  if (root) {
    for (int i = 16; i; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    times = root[point];
    plus += along[point] * sum;
  }
#pragma unroll
  for (int i = 0; i < PARTS; i++) {
    const int at = i * 128 + lane * 4;
    if (at >= D) continue;
    float4 r = make_float4(times * v[i].x + plus, times * v[i].y + plus, times * v[i].z + plus, times * v[i].w + plus);
    if (mean) {
      const float4 c = *(const float4*)(mean + point * D + at);
      r.x += c.x; r.y += c.y; r.z += c.z; r.w += c.w;
    }
    if (made) {
      const uint2 c = *(const uint2*)(made + row * D + at);
      r.x += __uint_as_float(c.x << 16);
      r.y += __uint_as_float(c.x & 0xffff0000u);
      r.z += __uint_as_float(c.y << 16);
      r.w += __uint_as_float(c.y & 0xffff0000u);
    }
    *(float4*)(out + at) = r;
  }
}
