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
    typedef float half __attribute__((vector_size(2 * WIDTH)));
    half h = (half){v[0], v[1], v[2], v[3]} + (half){v[4], v[5], v[6], v[7]};
    return (h[0] + h[2]) + (h[1] + h[3]);
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

// Logits of two points for C classes; w is (C, D). Meanwhile the points at `next` are fetched, two for two: asked for
// all at once they would have to be waited for.
static inline __attribute__((always_inline)) void two_points(
    const int C, const float **x, const float **next, const float *w, int d, float (*z)[ROWS], int at) {
    const float *a = x[at], *b = x[at + 1];
    vec left[5], right[5];
    UNROLL
    for (int c = 0; c < C; c++) left[c] = right[c] = (vec){0};
    int i = 0;
    for (; i + 2 * WIDTH <= d; i += 2 * WIDTH) {
        __builtin_prefetch(next[at] + i), __builtin_prefetch(next[at + 1] + i);
        UNROLL
        for (int j = i; j < i + 2 * WIDTH; j += WIDTH) {
            vec p = *(const vec *)(a + j), q = *(const vec *)(b + j);
            UNROLL
            for (int c = 0; c < C; c++) {
                vec v = *(const vec *)(w + (long)c * d + j);
                left[c] += p * v;
                right[c] += q * v;
            }
        }
    }
    UNROLL
    for (int c = 0; c < C; c++) {
        float s = total(left[c]), t = total(right[c]);
        for (int j = i; j < d; j++) s += a[j] * w[(long)c * d + j], t += b[j] * w[(long)c * d + j];
        z[c][at] = s, z[c][at + 1] = t;
    }
}

// How many of so many classes are taken together.
static inline int share(int left) {
    int parts = (left + 4) / 5;
    return (left + parts - 1) / parts;
}

// Logits (N, ROWS) of points whose addresses are x, while those whose addresses are `next` are fetched.
static void forward(const float **x, const float **next, const float *w, const float *bias, int d, int n,
                    float (*z)[ROWS]) {
    for (int begin = 0, take; begin < n - 1; begin += take) {
        const float *from = w + (long)begin * d;
        take = share(n - 1 - begin);
        for (int r = 0; r < ROWS; r += 2) switch (take) {
            case 1: two_points(1, x, next, from, d, z + begin, r); break;
            case 2: two_points(2, x, next, from, d, z + begin, r); break;
            case 3: two_points(3, x, next, from, d, z + begin, r); break;
            case 4: two_points(4, x, next, from, d, z + begin, r); break;
            default: two_points(5, x, next, from, d, z + begin, r);
        }
    }
    rows last = {0};
    for (int c = 0; c < n - 1; c++) {
        if (bias) *(rows *)z[c] += bias[c];
        last -= *(rows *)z[c];
    }
    *(rows *)z[n - 1] = last;
}

// grad (C, D) += residuals (C, ROWS) times points, two registers of features at a time.
static inline __attribute__((always_inline)) void two_registers(
    const int C, const float **x, float (*slope)[ROWS], int d, float *grad) {
    int i = 0;
    for (; i + 2 * WIDTH <= d; i += 2 * WIDTH) {
        vec left[5], right[5];
        UNROLL
        for (int c = 0; c < C; c++) {
            const float *g = grad + (long)c * d + i;
            left[c] = *(const vec *)g, right[c] = *(const vec *)(g + WIDTH);
        }
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            vec p = *(const vec *)(x[r] + i), q = *(const vec *)(x[r] + i + WIDTH);
            UNROLL
            for (int c = 0; c < C; c++) left[c] += slope[c][r] * p, right[c] += slope[c][r] * q;
        }
        UNROLL
        for (int c = 0; c < C; c++) {
            float *g = grad + (long)c * d + i;
            *(vec *)g = left[c], *(vec *)(g + WIDTH) = right[c];
        }
    }
    for (; i < d; i++)
        for (int c = 0; c < C; c++)
            for (int r = 0; r < ROWS; r++) grad[(long)c * d + i] += slope[c][r] * x[r][i];
}

// grad (N-1, D) += residuals (N, ROWS) times points.
static void backward(const float **x, float (*slope)[ROWS], int d, int n, float *grad) {
    for (int begin = 0, take; begin < n - 1; begin += take) {
        float *to = grad + (long)begin * d;
        take = share(n - 1 - begin);
        switch (take) {
            case 1: two_registers(1, x, slope + begin, d, to); break;
            case 2: two_registers(2, x, slope + begin, d, to); break;
            case 3: two_registers(3, x, slope + begin, d, to); break;
            case 4: two_registers(4, x, slope + begin, d, to); break;
            default: two_registers(5, x, slope + begin, d, to);
        }
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
                const float *at[ROWS], *next[ROWS];
                float z[MOST][ROWS];
                for (int r = 0; r < ROWS; r++) {
                    int j = i + r;
                    at[r] = x + (long)d * order[j < end ? j : i];
                    next[r] = x + (long)d * order[j + ROWS < m ? j + ROWS : i];
                }
                forward(at, next, weight, bias, d, n, z);
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
        const float *at[ROWS], *next[ROWS];
        float z[MOST][ROWS], a[MOST][ROWS];
        int size = m - i < ROWS ? m - i : ROWS;
        for (int r = 0; r < ROWS; r++) {
            at[r] = x + (long)d * (r < size ? i + r : i);
            next[r] = i + ROWS + r < m ? at[r] + (long)d * ROWS : at[r];
        }
        if (step) {
            rows own = {0};
            forward(at, next, step, shift, d, n, a);
            for (int r = 0; r < size; r++) own[r] = a[labels[i + r]][r];
            for (int c = 0; c < n; c++) put(along + (long)c * m + i, *(rows *)a[c] -= own, size);
        } else {
            for (int r = 0; r < ROWS; r++) fetch(next[r], d);
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

// The same for any number of classes where logits (N, M) and their change along the step (N, M) are known: sums, which
// are zeros before, and the probabilities p (N, M) at this length. Points are taken BLOCK at a time, for all classes.
#define GROUPS 8
#define BLOCK (GROUPS * ROWS)

static inline __attribute__((always_inline)) void look_block(
    const float *logits, const float *along, float length, double *sums, float *p, long m, int n, int size, int ahead) {
    rows most[GROUPS], sum[GROUPS], first[GROUPS], second[GROUPS];
    for (int c = 0; c < n; c++) {
        const float *z = logits + c * m, *a = along + c * m;
        for (int i = 0; i < ahead; i += 16) __builtin_prefetch(z + BLOCK + i), __builtin_prefetch(a + BLOCK + i);
        UNROLL
        for (int g = 0; g < GROUPS; g++) {
            int left = size - g * ROWS < ROWS ? size - g * ROWS : ROWS;
            if (left <= 0) break;
            rows v = take(z + g * ROWS, left) + length * take(a + g * ROWS, left);
            irows larger = v > most[g];
            most[g] = c ? (rows)(((irows)v & larger) | ((irows)most[g] & ~larger)) : v;
            put(p + c * m + g * ROWS, v, left);
        }
    }
    for (int g = 0; g < GROUPS; g++) sum[g] = first[g] = second[g] = (rows){0};
    for (int c = 0; c < n; c++) {
        UNROLL
        for (int g = 0; g < GROUPS; g++) {
            int left = size - g * ROWS < ROWS ? size - g * ROWS : ROWS;
            if (left <= 0) break;
            rows a = take(along + c * m + g * ROWS, left), e = exponential(take(p + c * m + g * ROWS, left) - most[g]);
            sum[g] += e, first[g] += e * a, second[g] += e * a * a;
            put(p + c * m + g * ROWS, e, left);
        }
    }
    for (int g = 0; g * ROWS < size; g++) {
        int left = size - g * ROWS < ROWS ? size - g * ROWS : ROWS;
        rows scale = 1.0f / sum[g], slope = first[g] * scale, bend = second[g] * scale - slope * slope;
        for (int r = 0; r < left; r++)
            sums[0] += most[g][r] + logf(sum[g][r]), sums[1] += slope[r], sums[2] += bend[r];
        sum[g] = scale;
    }
    for (int c = 0; c < n; c++)
        for (int g = 0; g * ROWS < size; g++) {
            int left = size - g * ROWS < ROWS ? size - g * ROWS : ROWS;
            float *at = p + c * m + g * ROWS;
            put(at, take(at, left) * sum[g], left);
        }
}

void look(const float *logits, const float *along, float length, double *sums, float *p, long m, int n) {
    long i = 0;
    for (; i + BLOCK <= m; i += BLOCK)
        look_block(logits + i, along + i, length, sums, p + i, m, n, BLOCK, i + 2 * BLOCK <= m ? BLOCK : 0);
    if (i < m) look_block(logits + i, along + i, length, sums, p + i, m, n, (int)(m - i), 0);
}

// out (N, stride) = weights (N-1, D), of which the last of N is minus the sum, times a symmetric matrix (D, D).
void times_symmetric(const float *matrix, const float *weight, float *out, int d, int n, int stride) {
    for (int i = 0; i < d; i += ROWS) {
        const float *at[ROWS], *next[ROWS];
        float z[MOST][ROWS];
        int size = d - i < ROWS ? d - i : ROWS;
        for (int r = 0; r < ROWS; r++) {
            at[r] = matrix + (long)d * (r < size ? i + r : i);
            next[r] = i + ROWS + r < d ? at[r] + (long)d * ROWS : at[r];
        }
        forward(at, next, weight, 0, d, n, z);
        for (int c = 0; c < n; c++) put(out + (long)c * stride + i, *(rows *)z[c], size);
    }
}

// Products with an upper triangle: TILE rows and two registers of columns at a time, CHUNK rows that stay in the second
// cache while all columns are made.
#define TILE 6
#define CHUNK (24 * TILE)

static inline __attribute__((always_inline)) void add_tile(
    float *out, const float *z, const float *panel, int d, int depth, int size, int columns) {
    const float *at[TILE];
    vec left[TILE], right[TILE];
    UNROLL
    for (int r = 0; r < TILE; r++) at[r] = z + (long)d * (r < size ? r : 0), left[r] = right[r] = (vec){0};
    for (int k = 0; k < depth; k++) {
        vec p = *(const vec *)(panel + 2 * WIDTH * k), q = *(const vec *)(panel + 2 * WIDTH * k + WIDTH);
        UNROLL
        for (int r = 0; r < TILE; r++) left[r] += at[r][k] * p, right[r] += at[r][k] * q;
    }
    UNROLL
    for (int r = 0; r < TILE; r++) {
        float *to = out + (long)d * r;
        if (r >= size) continue;
        if (columns == 2 * WIDTH)
            *(vec *)to += left[r], *(vec *)(to + WIDTH) += right[r];
        else
            for (int i = 0; i < columns; i++) to[i] += i < WIDTH ? left[r][i] : right[r][i - WIDTH];
    }
}

// out (M, D) += z (M, D) times an upper triangle (D, D), of which panels (⌈D/16⌉, D, 16) hold 16 columns each.
void add_triangular(float *out, const float *z, const float *panels, int m, int d) {
    for (int low = 0; low < m; low += CHUNK) {
        int high = m - low < CHUNK ? m : low + CHUNK;
        for (int j = 0; j < d; j += 2 * WIDTH) {
            int columns = d - j < 2 * WIDTH ? d - j : 2 * WIDTH;
            for (int r = low; r < high; r += TILE)
                add_tile(out + (long)d * r + j, z + (long)d * r, panels + (long)d * j, d, j + columns,
                         high - r < TILE ? high - r : TILE, columns);
        }
    }
}

// Points out (M, D) from noise that is there: root·out + along·Σout + mean + the shift (M) of each; without noise
// (fresh) what is there does not count, without a shift it is 0.
void finish_points(float *out, const float *mean, const float *shift, float root, float along, int fresh, long m,
                   int d) {
    for (long r = 0; r < m; r++, out += d) {
        float add = shift ? shift[r] : 0;
        int i = 0;
        if (fresh) {
            for (i = 0; i < d; i++) out[i] = mean[i] + add;
            continue;
        }
        vec one = {0}, two = {0};
        for (; i + 2 * WIDTH <= d; i += 2 * WIDTH) one += *(vec *)(out + i), two += *(vec *)(out + i + WIDTH);
        float sum = total(one + two);
        for (; i < d; i++) sum += out[i];
        add += along * sum;
        for (i = 0; i < d; i++) out[i] = root * out[i] + (mean[i] + add);
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
