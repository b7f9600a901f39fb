// Passes over the points of a task that read each point once: both products are made while a core's first cache has it.
//
// WIDTH floats are a register, points are taken ROWS at a time. Weights sum to 0 over the classes, so that N-1 of them
// say everything: the last logit is minus the sum of the others.
#include <math.h>
#include <stdint.h>

#define WIDTH 8
#define ROWS 8
#define MOST 16  // classes
#define UNROLL _Pragma("GCC unroll 8")

typedef float vec __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef float rows __attribute__((vector_size(4 * ROWS), aligned(4), may_alias));
typedef int32_t irows __attribute__((vector_size(4 * ROWS), aligned(4), may_alias));

static inline float total(vec v) {
    float sum = 0;
    for (int i = 0; i < WIDTH; i++) sum += v[i];
    return sum;
}

// exp of numbers ≤ 0, to a few units in the last place; 0 below -87.
static inline rows exponential(rows x) {
    irows tiny = x < -87.0f;
    rows shifted = x * 1.44269504f + 12582912.0f;  // rounds to an integer in the low bits
    rows whole = shifted - 12582912.0f;
    rows r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    rows p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    irows power = (__builtin_convertvector(whole, irows) + 127) << 23;
    return (rows)(((irows)(p * (rows)power)) & ~tiny);
}

// Logits of two points for C classes; w is (C, D).
static inline __attribute__((always_inline)) void two_points(
    const int C, const float *a, const float *b, const float *w, int d, float (*z)[ROWS], int at) {
    vec left[5], right[5];
    UNROLL
    for (int c = 0; c < C; c++) left[c] = right[c] = (vec){0};
    int i = 0;
    for (; i + WIDTH <= d; i += WIDTH) {
        vec p = *(const vec *)(a + i), q = *(const vec *)(b + i);
        UNROLL
        for (int c = 0; c < C; c++) {
            vec v = *(const vec *)(w + (long)c * d + i);
            left[c] += p * v;
            right[c] += q * v;
        }
    }
    UNROLL
    for (int c = 0; c < C; c++) {
        float s = total(left[c]), t = total(right[c]);
        for (int j = i; j < d; j++) s += a[j] * w[(long)c * d + j], t += b[j] * w[(long)c * d + j];
        z[c][at] = s, z[c][at + 1] = t;
    }
}

// Logits (N, ROWS) of points whose addresses are x.
static void forward(const float **x, const float *w, const float *bias, int d, int n, float (*z)[ROWS]) {
    for (int begin = 0; begin < n - 1;) {
        int left = n - 1 - begin, parts = (left + 4) / 5, take = (left + parts - 1) / parts;
        const float *from = w + (long)begin * d;
        for (int r = 0; r < ROWS; r += 2) switch (take) {
            case 1: two_points(1, x[r], x[r + 1], from, d, z + begin, r); break;
            case 2: two_points(2, x[r], x[r + 1], from, d, z + begin, r); break;
            case 3: two_points(3, x[r], x[r + 1], from, d, z + begin, r); break;
            case 4: two_points(4, x[r], x[r + 1], from, d, z + begin, r); break;
            default: two_points(5, x[r], x[r + 1], from, d, z + begin, r);
        }
        begin += take;
    }
    rows last = {0};
    for (int c = 0; c < n - 1; c++) {
        *(rows *)z[c] += bias[c];
        last -= *(rows *)z[c];
    }
    *(rows *)z[n - 1] = last;
}

// grad (N-1, D) += residuals (N, ROWS) times points.
static void backward(const float **x, float (*slope)[ROWS], int d, int n, float *grad) {
    for (int c = 0; c < n - 1; c++) {
        float *restrict g = grad + (long)c * d;
        const float *s = slope[c], *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3], *x4 = x[4], *x5 = x[5], *x6 = x[6],
                    *x7 = x[7];
        float s0 = s[0], s1 = s[1], s2 = s[2], s3 = s[3], s4 = s[4], s5 = s[5], s6 = s[6], s7 = s[7];
        int i = 0;
        for (; i + WIDTH <= d; i += WIDTH) {
            vec one = *(vec *)(g + i) + s0 * *(const vec *)(x0 + i), two = s1 * *(const vec *)(x1 + i);
            one += s2 * *(const vec *)(x2 + i), two += s3 * *(const vec *)(x3 + i);
            one += s4 * *(const vec *)(x4 + i), two += s5 * *(const vec *)(x5 + i);
            one += s6 * *(const vec *)(x6 + i), two += s7 * *(const vec *)(x7 + i);
            *(vec *)(g + i) = one + two;
        }
        for (; i < d; i++)
            for (int r = 0; r < ROWS; r++) g[i] += s[r] * x[r][i];
    }
}

// Logits become probabilities; the log-sum-exp of each point.
static inline rows softmax(float (*z)[ROWS], int n, int want) {
    rows most = *(rows *)z[0], sum = {0};
    for (int c = 1; c < n; c++) {
        rows v = *(rows *)z[c];
        irows larger = v > most;
        most = (rows)(((irows)v & larger) | ((irows)most & ~larger));
    }
    for (int c = 0; c < n; c++) {
        rows e = exponential(*(rows *)z[c] - most);
        *(rows *)z[c] = e, sum += e;
    }
    rows scale = 1.0f / sum;
    for (int c = 0; c < n; c++) *(rows *)z[c] *= scale;
    if (want)
        for (int r = 0; r < ROWS; r++) most[r] += logf(sum[r]);
    return most;
}

static inline void fetch(const float *x, int d) {
    for (int i = 0; i < d; i += 16) __builtin_prefetch(x + i);
}

// Epochs of plain SGD of one task: points x (M, D), orders (E, M), weights (N-1, D) and biases (N-1), which are trained
// in place, and grad (N-1, D) of zeros to work in. Returns the mean loss of the last epoch.
float sgd_epochs(const float *x, const int32_t *labels, const int32_t *orders, float *weight, float *bias, float *grad,
                 int m, int d, int n, int epochs, int batch, float lr) {
    double loss = 0;
    for (int e = 0; e < epochs; e++) {
        const int32_t *order = orders + (long)e * m;
        for (int begin = 0; begin < m; begin += batch) {
            int end = begin + batch < m ? begin + batch : m;
            float shift[MOST] = {0};
            for (int i = begin; i < end; i += ROWS) {
                const float *at[ROWS];
                float z[MOST][ROWS];
                for (int r = 0; r < ROWS; r++) {
                    int j = i + r;
                    at[r] = x + (long)d * order[j < end ? j : i];
                    if (j + ROWS < m) fetch(x + (long)d * order[j + ROWS], d);
                }
                forward(at, weight, bias, d, n, z);
                float truth[ROWS];
                if (e == epochs - 1)
                    for (int r = 0; r < ROWS && i + r < end; r++) truth[r] = z[labels[order[i + r]]][r];
                rows sums = softmax(z, n, e == epochs - 1);
                for (int r = 0; r < ROWS; r++) {
                    if (i + r < end) {
                        z[labels[order[i + r]]][r] -= 1;
                        if (e == epochs - 1) loss += sums[r] - truth[r];
                    } else {
                        for (int c = 0; c < n; c++) z[c][r] = 0;
                    }
                }
                backward(at, z, d, n, grad);
                for (int c = 0; c < n - 1; c++)
                    for (int r = 0; r < ROWS; r++) shift[c] += z[c][r];
            }
            float rate = lr / (end - begin);
            for (long i = 0; i < (long)(n - 1) * d; i++) weight[i] -= rate * grad[i], grad[i] = 0;
            for (int c = 0; c < n - 1; c++) bias[c] -= rate * shift[c];
        }
    }
    return (float)(loss / m);
}

static inline rows take(const float *from, int size) {
    rows out = {0};
    if (size == ROWS) return *(const rows *)from;
    for (int r = 0; r < size; r++) out[r] = from[r];
    return out;
}

static inline void put(float *to, rows v, int size) {
    if (size == ROWS)
        *(rows *)to = v;
    else
        for (int r = 0; r < size; r++) to[r] = v[r];
}

// A look along a step of L-BFGS: points x (M, D), labels (M), logits (N, M) of which each point's own is 0.
// With a step (N-1, D) and shift (N-1) of the biases, how logits change along it (N, M) is written, else it is read.
// sums: of loss, slope and curvature at this length; grad (N, D+1): the gradient of the mean loss there. Both, and
// work (N-1, D), are zeros before.
void look_along(const float *x, const int32_t *labels, const float *logits, float *along, const float *step,
                const float *shift, float length, double *sums, float *grad, float *work, int m, int d, int n) {
    double shifts[MOST] = {0};
    for (int i = 0; i < m; i += ROWS) {
        const float *at[ROWS];
        float z[MOST][ROWS], a[MOST][ROWS];
        int size = m - i < ROWS ? m - i : ROWS;
        for (int r = 0; r < ROWS; r++) {
            at[r] = x + (long)d * (r < size ? i + r : i);
            if (i + ROWS + r < m) fetch(at[r] + (long)d * ROWS, d);
        }
        if (step) {
            rows own = {0};
            forward(at, step, shift, d, n, a);
            for (int r = 0; r < size; r++) own[r] = a[labels[i + r]][r];
            for (int c = 0; c < n; c++) put(along + (long)c * m + i, *(rows *)a[c] -= own, size);
        } else {
            for (int c = 0; c < n; c++) *(rows *)a[c] = take(along + (long)c * m + i, size);
        }
        for (int c = 0; c < n; c++) *(rows *)z[c] = take(logits + (long)c * m + i, size) + length * *(rows *)a[c];
        rows loss = softmax(z, n, 1), first = {0}, second = {0};
        for (int c = 0; c < n; c++) {
            rows part = *(rows *)z[c] * *(rows *)a[c];
            first += part, second += part * *(rows *)a[c];
        }
        second -= first * first;
        for (int r = 0; r < size; r++) {
            sums[0] += loss[r], sums[1] += first[r], sums[2] += second[r];
            z[labels[i + r]][r] -= 1;
        }
        for (int r = size; r < ROWS; r++)
            for (int c = 0; c < n; c++) z[c][r] = 0;
        backward(at, z, d, n, work);
        for (int c = 0; c < n - 1; c++)
            for (int r = 0; r < ROWS; r++) shifts[c] += z[c][r];
    }
    float *last = grad + (long)(n - 1) * (d + 1);
    for (int c = 0; c < n - 1; c++) {
        float *g = grad + (long)c * (d + 1);
        for (int i = 0; i < d; i++) g[i] = work[(long)c * d + i] / m, last[i] -= g[i];
        g[d] = (float)(shifts[c] / m), last[d] -= g[d];
    }
}

// Numbers of a table of 65536 picked by 16 random bits each, those of NumPy's SFC64 from this state on, which is left
// where the stream stands.
void pick(uint64_t *state, const float *table, float *out, long size) {
    uint64_t a = state[0], b = state[1], c = state[2], count = state[3];
    for (long i = 0; i < size; i += 4) {
        uint64_t bits = a + b + count++;
        a = b ^ (b >> 11), b = c + (c << 3), c = ((c << 24) | (c >> 40)) + bits;
        int some = size - i < 4 ? (int)(size - i) : 4;
        if (some == 4) {
            out[i] = table[(bits & 0xffff) ^ 0x8000], out[i + 1] = table[((bits >> 16) & 0xffff) ^ 0x8000];
            out[i + 2] = table[((bits >> 32) & 0xffff) ^ 0x8000], out[i + 3] = table[(bits >> 48) ^ 0x8000];
        } else {
            for (int j = 0; j < some; j++) out[i + j] = table[((bits >> (16 * j)) & 0xffff) ^ 0x8000];
        }
    }
    state[0] = a, state[1] = b, state[2] = c, state[3] = count;
}
