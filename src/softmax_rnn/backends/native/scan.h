/* The loops of linear.py for numbers of type REAL, order 1 in chunks. Included by loops.c for each type. */

#define factors NAME(factors)
#define faded NAME(faded)
#define unfaded NAME(unfaded)
#define lower NAME(lower)
#define times NAME(times)

/* exp(sign (clock - middle)) of a chunk, one for each row or for each number; none without a clock. Whole strips of memory. */
static const REAL *factors(const double *clock, const double *middle, int64_t width, int64_t rows, double sign, REAL *into) {
    if (!clock)
        return NULL;
    const int64_t all = (rows * width + STRIP - 1) / STRIP * STRIP;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t l = 0; l < width; l++)
            into[r * width + l] = (REAL)(sign * (clock[r * width + l] - middle[l]));
    for (int64_t l = rows * width; l < all; l++)
        into[l] = 0;
    for (int64_t l = 0; l < all; l += STRIP)
        exponential(into + l);
    return into;
}

/* x (rows x d) times a factor for each row, or for each number; x itself where there is none. */
static const REAL *faded(const REAL *restrict x, const REAL *restrict factor, int64_t width, int64_t rows, int64_t d, REAL *restrict into) {
    if (!factor)
        return x;
    if (width == 1)
        for (int64_t r = 0; r < rows; r++) {
            const REAL f = factor[r];
            for (int64_t l = 0; l < d; l++)
                into[r * d + l] = x[r * d + l] * f;
        }
    else
        for (int64_t l = 0; l < rows * d; l++)
            into[l] = x[l] * factor[l];
    return into;
}

/* dx becomes the gradient of x without its factor; x grows with its clock, or falls with it (sign -1). */
static void unfaded(const REAL *restrict x, const REAL *restrict factor, int64_t width, int64_t rows, int64_t d, REAL sign,
                    REAL *restrict clock, REAL *restrict dx) {
    if (!factor)
        return;
    if (width != 1) {
        for (int64_t l = 0; l < rows * d; l++) {
            clock[l] += sign * x[l] * dx[l];
            dx[l] *= factor[l];
        }
        return;
    }
    for (int64_t r = 0; r < rows; r++, x += d, dx += d) {
        const REAL f = factor[r];
        REAL sums[16] = {0};
        int64_t l = 0;
        for (; l + 16 <= d; l += 16)
            for (int i = 0; i < 16; i++) {
                sums[i] += x[l + i] * dx[l + i];
                dx[l + i] *= f;
            }
        for (; l < d; l++) {
            sums[0] += x[l] * dx[l];
            dx[l] *= f;
        }
        for (int i = 1; i < 16; i++)
            sums[0] += sums[i];
        clock[r] += sign * sums[0];
    }
}

/* The upper triangle becomes 0. */
static void lower(REAL *x, int64_t rows) {
    for (int64_t r = 0; r < rows; r++)
        memset(x + r * rows + r + 1, 0, (rows - r - 1) * sizeof(REAL));
}

/* A state times a factor, or one for each of its rows. */
static void times(REAL *state, const REAL *factor, int64_t width, int64_t d, int64_t e) {
    if (factor)
        for (int64_t r = 0; r < d; r++)
            for (int64_t l = 0; l < e; l++)
                state[r * e + l] *= factor[width == 1 ? 0 : r];
}

/* W = tril(Q K^T), A = W V + Q S, S' = carry (S + K^T V), chunk by chunk; W and the states S are kept. */
static int NAME(scan_of)(const void *call, int64_t n) {
    const Scan *c = call;
    const int64_t C = c->chunk, d = c->d, e = c->e, T = c->tokens, wide = c->width, chunks = T / C;
    const int64_t strips = (C * most(wide, 1) + STRIP - 1) / STRIP * STRIP;
    REAL *lates = aligned_alloc(64, ((2 * strips + 2 * C * d) * sizeof(REAL) + 63) / 64 * 64), *earlies = lates + strips;
    REAL *Qs = earlies + strips, *Ks = Qs + C * d;
    if (!lates)
        return 1;
    REAL *states = (REAL *)c->states + n * (chunks + 1) * d * e;
    memcpy(states, (const REAL *)c->state + n * d * e, d * e * sizeof(REAL));
    times(states, c->first ? (const REAL *)c->first + n * wide : NULL, wide, d, e);
    for (int64_t i = 0; i < chunks; i++, states += d * e) {
        const int64_t t = n * T + i * C;
        const double *middle = c->middle ? c->middle + (n * chunks + i) * wide : NULL;
        const REAL *late = factors(c->ck ? c->ck + t * wide : NULL, middle, wide, C, -1, lates);
        const REAL *early = factors(c->cq ? c->cq + t * wide : NULL, middle, wide, C, 1, earlies);
        const REAL *K = faded((const REAL *)c->k + t * d, late, wide, C, d, Ks), *V = (const REAL *)c->v + t * e;
        for (int64_t g = 0; g < c->group; g++) {
            const int64_t at = (n * c->group + g) * T + i * C;
            const REAL *Q = faded((const REAL *)c->q + at * d, early, wide, C, d, Qs);
            REAL *W = (REAL *)c->scores + at * C, *out = (REAL *)c->out + at * e;
            product('N', 'T', C, C, d, Q, d, K, d, 0, W, C);
            lower(W, C);
            product('N', 'N', C, e, C, W, C, V, e, 0, out, e);
            product('N', 'N', C, e, d, Q, d, states, e, 1, out, e);
        }
        memcpy(states + d * e, states, d * e * sizeof(REAL));
        product('T', 'N', d, e, C, K, d, V, e, 1, states + d * e, e);
        times(states + d * e, c->carry ? (const REAL *)c->carry + (n * chunks + i) * wide : NULL, wide, d, e);
    }
    free(lates);
    return 0;
}

CALLED(scan)

/* The gradients of the same, from the last chunk to the first. dstate comes in as that of the last state, and leaves as that of the first. */
static int NAME(scan_backward_of)(const void *call, int64_t n) {
    const Scan *c = call;
    const int64_t C = c->chunk, d = c->d, e = c->e, T = c->tokens, wide = c->width, chunks = T / C;
    const int64_t strips = (C * most(wide, 1) + STRIP - 1) / STRIP * STRIP;
    REAL *lates = aligned_alloc(64, ((2 * strips + 2 * C * d + C * C) * sizeof(REAL) + 63) / 64 * 64), *earlies = lates + strips;
    REAL *Qs = earlies + strips, *Ks = Qs + C * d, *X = Ks + C * d;
    if (!lates)
        return 1;
    REAL *dS = (REAL *)c->dstate + n * d * e;
    for (int64_t i = chunks - 1; i >= 0; i--) {
        const int64_t t = n * T + i * C;
        const double *middle = c->middle ? c->middle + (n * chunks + i) * wide : NULL;
        const REAL *late = factors(c->ck ? c->ck + t * wide : NULL, middle, wide, C, -1, lates);
        const REAL *early = factors(c->cq ? c->cq + t * wide : NULL, middle, wide, C, 1, earlies);
        const REAL *K = faded((const REAL *)c->k + t * d, late, wide, C, d, Ks), *V = (const REAL *)c->v + t * e;
        const REAL *S = (const REAL *)c->states + (n * (chunks + 1) + i) * d * e;
        REAL *dV = (REAL *)c->dv + t * e, *dK = (REAL *)c->dk + t * d;
        times(dS, c->carry ? (const REAL *)c->carry + (n * chunks + i) * wide : NULL, wide, d, e); /* of S + K^T V */
        product('N', 'N', C, e, d, K, d, dS, e, 0, dV, e);
        product('N', 'T', C, d, e, V, e, dS, e, 0, dK, d);
        for (int64_t g = 0; g < c->group; g++) {
            const int64_t at = (n * c->group + g) * T + i * C;
            const REAL *Q = faded((const REAL *)c->q + at * d, early, wide, C, d, Qs);
            const REAL *W = (const REAL *)c->scores + at * C, *G = (const REAL *)c->grad + at * e;
            REAL *dQ = (REAL *)c->dq + at * d;
            product('T', 'N', C, e, C, W, C, G, e, 1, dV, e);
            product('N', 'T', C, C, e, G, e, V, e, 0, X, C);
            lower(X, C);
            product('N', 'N', C, d, C, X, C, K, d, 0, dQ, d);
            product('N', 'T', C, d, e, G, e, S, e, 1, dQ, d);
            product('T', 'N', C, d, C, X, C, Q, d, 1, dK, d);
            product('T', 'N', d, e, C, Q, d, G, e, 1, dS, e);
            unfaded(Q, early, wide, C, d, 1, (REAL *)c->clock_q + t * wide, dQ);
        }
        unfaded(K, late, wide, C, d, -1, (REAL *)c->clock_k + t * wide, dK);
    }
    times(dS, c->first ? (const REAL *)c->first + n * wide : NULL, wide, d, e);
    free(lates);
    return 0;
}

CALLED(scan_backward)

#undef product
#undef exponential
#undef factors
#undef faded
#undef unfaded
#undef lower
#undef times
#undef small
#undef few
#undef turned
#undef vector
#undef LANES
#undef BLOCK
