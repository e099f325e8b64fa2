/* The masked-weight operator's loops, each one pass over the weights; the formulas are in masked_weight.py.
 *
 * Built once per dtype: REAL is float or double, INT the integer of the same width. A weight is seen as [G][A][R][C]
 * and its threshold as t[g][r]: one threshold per row of a matrix is G = A = 1, a weight stored with its outputs last
 * is C = 1, a grouped transposed convolution uses all four. Operations are in the order of the eager loops and built
 * without contraction, so that P and dW agree with them to the bit; dt is a sum and agrees to rounding. LANES partial
 * sums let the compiler vectorise that sum, which it must not reorder.
 */
#include <stdint.h>

#define LANES 16
#define ABS(x) (sizeof(REAL) == 4 ? (REAL)__builtin_fabsf((float)(x)) : (REAL)__builtin_fabs((double)(x)))

/* What a magnitude must exceed to stay: a threshold at or below zero masks nothing. */
static inline REAL effective_threshold(REAL t) { return t <= 0 ? (REAL)-1 : t; }

static inline REAL estimate(REAL q, int long_tail) {
    const REAL d = ABS(q);
    REAL h = (REAL)2 + d * (REAL)-4;
    h = h < (REAL)0.4 ? (REAL)0.4 : h;
    h = long_tail ? h : (REAL)1;
    return d <= 1 ? h : (REAL)0;
}

/* One weight: store its P, return whether it stays. */
static inline INT mask(REAL w, REAL least, REAL *restrict p) {
    const INT keep = ABS(w) > least;
    *p = w * (REAL)keep;
    return keep;
}

/* One weight: store its dW, add its part of dt. */
static inline void backward_one(REAL g, REAL w, REAL t, REAL least, int long_tail, REAL *restrict dw,
                                REAL *restrict dt) {
    const REAL m = ABS(w);
    const REAL s = estimate(m - t, long_tail) * g;
    *dw = s * m + g * (m > least ? (REAL)1 : (REAL)0);
    *dt -= s * w;
}

/* Store P, return how many weights stay. */
int64_t forward(const REAL *restrict w, const REAL *restrict t, REAL *restrict p, int64_t G, int64_t A, int64_t R,
                int64_t C) {
    int64_t kept = 0;
    for (int64_t g = 0; g < G; g++, t += R)
        for (int64_t a = 0; a < A; a++, w += R * C, p += R * C)
            if (C == 1) {
                INT row = 0;
                for (int64_t r = 0; r < R; r++) row += mask(w[r], effective_threshold(t[r]), p + r);
                kept += row;
            } else {
                for (int64_t r = 0; r < R; r++) {
                    const REAL least = effective_threshold(t[r]);
                    INT row = 0;
                    for (int64_t c = r * C; c < (r + 1) * C; c++) row += mask(w[c], least, p + c);
                    kept += row;
                }
            }
    return kept;
}

/* Return how many weights stay. */
int64_t count(const REAL *restrict w, const REAL *restrict t, int64_t G, int64_t A, int64_t R, int64_t C) {
    int64_t kept = 0;
    for (int64_t g = 0; g < G; g++, t += R)
        for (int64_t a = 0; a < A; a++, w += R * C)
            for (int64_t r = 0; r < R; r++) {
                const REAL least = effective_threshold(t[r]);
                INT row = 0;
                for (int64_t c = r * C; c < (r + 1) * C; c++) row += ABS(w[c]) > least;
                kept += row;
            }
    return kept;
}

/* Store dW, and dt summed over each row; inlined once per estimator, so that the choice is made outside the loops. */
static inline __attribute__((always_inline)) void
backward_weight(const REAL *restrict g, const REAL *restrict w, const REAL *restrict t, REAL *restrict dw,
                REAL *restrict dt, int64_t G, int64_t A, int64_t R, int64_t C, const int long_tail) {
    for (int64_t i = 0; i < G * R; i++) dt[i] = 0;
    for (int64_t group = 0; group < G; group++, t += R, dt += R)
        for (int64_t a = 0; a < A; a++, g += R * C, w += R * C, dw += R * C)
            if (C == 1) {
                for (int64_t r = 0; r < R; r++)
                    backward_one(g[r], w[r], t[r], effective_threshold(t[r]), long_tail, dw + r, dt + r);
            } else {
                for (int64_t r = 0; r < R; r++) {
                    const REAL least = effective_threshold(t[r]);
                    REAL lanes[LANES] = {0}, sum = 0;
                    int64_t c = r * C;
                    for (; c + LANES <= (r + 1) * C; c += LANES)
                        for (int64_t l = 0; l < LANES; l++)
                            backward_one(g[c + l], w[c + l], t[r], least, long_tail, dw + c + l, lanes + l);
                    for (; c < (r + 1) * C; c++) backward_one(g[c], w[c], t[r], least, long_tail, dw + c, &sum);
                    for (int64_t l = 0; l < LANES; l++) sum += lanes[l];
                    dt[r] += sum;
                }
            }
}

void backward(const REAL *restrict g, const REAL *restrict w, const REAL *restrict t, REAL *restrict dw,
              REAL *restrict dt, int64_t G, int64_t A, int64_t R, int64_t C, int long_tail) {
    if (long_tail)
        backward_weight(g, w, t, dw, dt, G, A, R, C, 1);
    else
        backward_weight(g, w, t, dw, dt, G, A, R, C, 0);
}

/* All weights of a group in one call. places[i] is the start of weight i's thresholds, and its G, A, R, C. */
void forward_all(int64_t n, const REAL *const *w, const REAL *t, REAL *const *p, const int64_t (*places)[5],
                 int64_t *kept) {
    for (int64_t i = 0; i < n; i++) {
        const int64_t *at = places[i];
        kept[i] = forward(w[i], t + at[0], p[i], at[1], at[2], at[3], at[4]);
    }
}

void backward_all(int64_t n, const REAL *const *g, const REAL *const *w, const REAL *t, REAL *const *dw, REAL *dt,
                  const int64_t (*places)[5], int long_tail) {
    for (int64_t i = 0; i < n; i++) {
        const int64_t *at = places[i];
        backward(g[i], w[i], t + at[0], dw[i], dt + at[0], at[1], at[2], at[3], at[4], long_tail);
    }
}
