/* The loops of tiles.py for numbers of type REAL. Included by loops.c for each type. */

#define product NAME(product)
#define exponential NAME(exponential)
#define series NAME(series)
#define scores NAME(scores)
#define slopes NAME(slopes)
#define gradients NAME(gradients)
#define clear NAME(clear)
#define reach NAME(reach)
#define fades NAME(fades)
#define shares NAME(shares)
#define total NAME(total)
#define longest NAME(longest)
#define since NAME(since)
#define shift NAME(shift)
#define alive NAME(alive)

/* c = a b + beta c, all of them row by row; ta, tb: 'T' takes a, b transposed. m x n, over k. */
static void product(char ta, char tb, int64_t m, int64_t n, int64_t k, const REAL *a, int64_t lda, const REAL *b, int64_t ldb, REAL beta,
                    REAL *c, int64_t ldc) {
    const int M = (int)m, N = (int)n, K = (int)k, A = (int)most(lda, 1), B = (int)most(ldb, 1), C = (int)most(ldc, 1);
    const REAL one = 1;
    GEMM(&tb, &ta, &N, &M, &K, &one, b, &B, a, &A, &beta, c, &C);
}

/* exp of a strip, to one or two units of the last digit: 2^n times a Taylor series on [-ln 2 / 2, ln 2 / 2]. NaN stays NaN. */
static inline void exponential(REAL *restrict x) {
    for (int l = 0; l < STRIP; l++) {
        REAL y = x[l] > FAR ? FAR : x[l];
        y = y < -FAR ? -FAR : y;
        const REAL t = y * (REAL)1.4426950408889634 + MAGIC; /* the sum's last digits are the whole number nearest to y / ln 2 */
        const REAL n = t - MAGIC;
        REAL r = y - n * (REAL)0x1.62e4p-1;
        r = r - n * (REAL)(0.693147180559945309417232L - 0x1.62e4p-1L);
        REAL p = 1;
        for (int i = TERMS; i > 0; i--)
            p = 1 + p * r * (REAL)(1.0 / i);
        union { REAL real; INT bits; } at = {t}, zero = {MAGIC}, half, rest;
        const INT whole = at.bits - zero.bits, low = whole >> 1;
        half.bits = (low + BIAS) << MANTISSA;
        rest.bits = (whole - low + BIAS) << MANTISSA;
        x[l] = p * half.real * rest.real; /* in two steps, so that the largest are infinite and the smallest 0 */
    }
}

/* A polynomial, or exp, of a strip. */
static inline void series(const Series *s, const REAL *restrict x, REAL *restrict w) {
    if (s->terms < 0) {
        memcpy(w, x, STRIP * sizeof(REAL));
        exponential(w);
        return;
    }
    for (int l = 0; l < STRIP; l++)
        w[l] = 1;
    for (int64_t n = s->terms - 1; n >= 0; n--) {
        const REAL ratio = (REAL)s->ratios[n];
        for (int l = 0; l < STRIP; l++)
            w[l] = 1 + ratio * x[l] * w[l];
    }
    const REAL first = (REAL)s->first, root = (REAL)s->root;
    for (int l = 0; l < STRIP; l++)
        w[l] *= first;
    for (int64_t n = 0; n < s->low; n++)
        for (int l = 0; l < STRIP; l++)
            w[l] *= root * x[l];
}

/* q k^T of a tile. */
static void scores(const Tiles *c, const Part *p, REAL *X) {
    product('N', 'T', p->rows, p->width, c->d, (const REAL *)c->q + p->row * c->d, c->d, (const REAL *)c->k + p->key * c->d, c->d, 0, X,
            p->width);
}

/* dO v^T of a tile. */
static void slopes(const Tiles *c, const Part *p, REAL *Y) {
    product('N', 'T', p->rows, p->width, c->e, (const REAL *)c->grad + p->row * c->e, c->e, (const REAL *)c->v + p->key * c->e, c->e, 0, Y,
            p->width);
}

/* dv += X^T dO, dq += Y k, dk += Y^T q: what the weights X and the gradients Y of a tile's scores add. */
static void gradients(const Tiles *c, const Part *p, const REAL *X, const REAL *Y) {
    const REAL *q = (const REAL *)c->q + p->row * c->d, *k = (const REAL *)c->k + p->key * c->d;
    const REAL *grad = (const REAL *)c->grad + p->row * c->e;
    product('T', 'N', p->width, c->e, p->rows, X, p->width, grad, c->e, 1, (REAL *)c->dv + p->key * c->e, c->e);
    product('N', 'N', p->rows, c->d, p->width, Y, p->width, k, c->d, 1, (REAL *)c->dq + p->row * c->d, c->d);
    product('T', 'N', p->width, c->d, p->rows, Y, p->width, q, c->d, 1, (REAL *)c->dk + p->key * c->d, c->d);
}

/* 0 in a row outside of [a, b). */
static inline void clear(REAL *x, int64_t a, int64_t b, int64_t width) {
    memset(x, 0, a * sizeof(REAL));
    memset(x + b, 0, (width - b) * sizeof(REAL));
}

/* The keys that any query of a block sees and that have not faded for all of them: from p->j to what it returns. */
static int64_t reach(const Tiles *c, Part *p) {
    int64_t stop = 0;
    p->j = c->keys;
    for (int64_t t = p->i; t < p->i + p->rows; t++) {
        p->j = least(p->j, first_key(c, p->n, t));
        stop = most(stop, last_key(c, p->n, t));
    }
    if (c->cq) /* what has faded for the first of the queries has for all */
        p->j = later(c, p->n, p->j, stop, c->cq[p->n * c->queries + p->i], GONE);
    return stop;
}

/* exp(c_t - c_s) of a strip, 0 for padding; 1 where there is neither. */
static inline void fades(const Tiles *c, int64_t n, int64_t t, int64_t s, int64_t m, REAL *restrict f) {
    for (int l = 0; l < STRIP; l++)
        f[l] = 1;
    if (c->cq) {
        const double now = c->cq[n * c->queries + t], *ck = c->ck + n * c->keys + s;
        for (int64_t l = 0; l < m; l++)
            f[l] = (REAL)(now - ck[l] > 0 ? 0 : now - ck[l]);
        exponential(f);
    }
    if (c->keep) {
        const uint8_t *keep = c->keep + n * c->keys + s;
        for (int64_t l = 0; l < m; l++)
            f[l] = keep[l] ? f[l] : 0;
    }
}

/* A = sum_s D w(x) v and Z = sum_s D w(x). */
static int NAME(weighted_of)(const void *call, int64_t n) {
    const Tiles *c = call;
    REAL *X = aligned_alloc(64, ROWS * COLUMNS * sizeof(REAL));
    if (!X)
        return 1;
    const int faded = c->cq || c->keep;
    for (int64_t g = 0; g < c->group; g++)
        for (int64_t i = 0; i < c->queries; i += ROWS) {
            Part p = block(c, n, g, i);
            const int64_t stop = reach(c, &p);
            while (tile(c, &p, stop)) {
                scores(c, &p, X);
                for (int64_t r = 0; r < p.rows; r++) {
                    REAL *x = X + r * p.width, sums[STRIP] = {0};
                    int64_t a, b;
                    seen(c, &p, r, &a, &b);
                    clear(x, a, b, p.width);
                    for (int64_t s = a; s < b; s += STRIP) {
                        const int64_t m = least(STRIP, b - s);
                        REAL y[STRIP] = {0}, w[STRIP], f[STRIP];
                        memcpy(y, x + s, m * sizeof(REAL));
                        for (int l = 0; l < STRIP; l++)
                            y[l] = y[l] > (REAL)c->limit ? (REAL)c->limit : y[l];
                        series(&c->weight, y, w);
                        if (faded) {
                            fades(c, n, i + r, p.j + s, m, f);
                            for (int l = 0; l < STRIP; l++)
                                w[l] *= f[l];
                        }
                        memcpy(x + s, w, m * sizeof(REAL));
                        for (int64_t l = 0; l < m; l++)
                            sums[l] += w[l];
                    }
                    if (c->sums) {
                        REAL sum = 0;
                        for (int l = 0; l < STRIP; l++)
                            sum += sums[l];
                        ((REAL *)c->sums)[p.row + r] += sum;
                    }
                }
                product('N', 'N', p.rows, c->e, p.width, X, p.width, (const REAL *)c->v + p.key * c->e, c->e, 1,
                        (REAL *)c->out + p.row * c->e, c->e);
            }
        }
    free(X);
    return 0;
}

CALLED(weighted)

/* The gradients of the same; dones_s = sum_t D w gtotal. */
static int NAME(weighted_backward_of)(const void *call, int64_t n) {
    const Tiles *c = call;
    REAL *X = aligned_alloc(64, 2 * ROWS * COLUMNS * sizeof(REAL)), *Y = X + ROWS * COLUMNS;
    if (!X)
        return 1;
    const int faded = c->cq || c->keep, same = c->weight.terms < 0;
    for (int64_t g = 0; g < c->group; g++)
        for (int64_t i = 0; i < c->queries; i += ROWS) {
            Part p = block(c, n, g, i);
            const int64_t stop = reach(c, &p);
            while (tile(c, &p, stop)) {
                scores(c, &p, X);
                slopes(c, &p, Y);
                for (int64_t r = 0; r < p.rows; r++) {
                    REAL *x = X + r * p.width, *dx = Y + r * p.width;
                    const REAL dz = c->gtotal ? ((const REAL *)c->gtotal)[p.row + r] : 0;
                    int64_t a, b;
                    seen(c, &p, r, &a, &b);
                    clear(x, a, b, p.width);
                    clear(dx, a, b, p.width);
                    for (int64_t s = a; s < b; s += STRIP) {
                        const int64_t m = least(STRIP, b - s);
                        REAL given[STRIP] = {0}, y[STRIP], w[STRIP], slope[STRIP], f[STRIP], dw[STRIP] = {0};
                        memcpy(given, x + s, m * sizeof(REAL));
                        memcpy(dw, dx + s, m * sizeof(REAL));
                        for (int l = 0; l < STRIP; l++)
                            y[l] = given[l] > (REAL)c->limit ? (REAL)c->limit : given[l];
                        series(&c->weight, y, w);
                        if (same)
                            memcpy(slope, w, sizeof w);
                        else
                            series(&c->slope, y, slope);
                        for (int l = 0; l < STRIP; l++)
                            dw[l] = given[l] > (REAL)c->limit ? 0 : (dw[l] + dz) * slope[l];
                        if (faded) {
                            fades(c, n, i + r, p.j + s, m, f);
                            for (int l = 0; l < STRIP; l++)
                                w[l] *= f[l], dw[l] *= f[l];
                        }
                        memcpy(x + s, w, m * sizeof(REAL));
                        memcpy(dx + s, dw, m * sizeof(REAL));
                        if (c->dones) {
                            REAL *ones = (REAL *)c->dones + p.key + s;
                            for (int64_t l = 0; l < m; l++)
                                ones[l] += w[l] * dz;
                        }
                    }
                }
                gradients(c, &p, X, Y);
            }
        }
    free(X);
    return 0;
}

CALLED(weighted_backward)

/* The clock of the first query less those of the keys of a tile, if it falls so little until the last query that floats are exact enough;
   otherwise nothing. */
static const REAL *since(const Tiles *c, const Part *p, REAL *into) {
    if (!c->cq)
        return NULL;
    const double *cq = c->cq + p->n * c->queries + p->i, *ck = c->ck + p->key;
    if (!(cq[0] - cq[p->rows - 1] < CALM))
        return NULL;
    for (int64_t s = 0; s < p->width; s++)
        into[s] = (REAL)(cq[0] - ck[s]);
    return into;
}

/* softmax_s( x - bias + c_t - c_s ): the logits of the r-th row of a tile in place, columns [a, b), -inf for padding; returns the largest.
   past: what since() says. */
static REAL shift(const Tiles *c, const Part *p, int64_t r, int64_t a, int64_t b, const REAL *restrict past, REAL *restrict row) {
    REAL top = -INFINITY, *restrict x = row + a;
    const int64_t m = b - a;
    const double *cq = c->cq ? c->cq + p->n * c->queries + p->i : NULL;
    if (past) {
        const REAL after = (REAL)(cq[r] - cq[0]);
        for (int64_t l = 0; l < m; l++)
            x[l] += past[a + l] + after;
    } else if (c->cq) {
        const double now = cq[r], *ck = c->ck + p->key + a;
        for (int64_t l = 0; l < m; l++)
            x[l] += (REAL)(now - ck[l]);
    }
    if (c->bias) {
        const REAL *bias = (const REAL *)c->bias + p->key + a;
        for (int64_t l = 0; l < m; l++)
            x[l] -= bias[l];
    }
    if (c->keep) {
        const uint8_t *keep = c->keep + p->key + a;
        for (int64_t l = 0; l < m; l++)
            x[l] = keep[l] ? x[l] : -INFINITY;
    }
    REAL tops[STRIP];
    for (int l = 0; l < STRIP; l++)
        tops[l] = -INFINITY;
    int64_t l = 0;
    for (; l + STRIP <= m; l += STRIP)
        for (int i = 0; i < STRIP; i++)
            tops[i] = x[l + i] > tops[i] ? x[l + i] : tops[i];
    for (; l < m; l++)
        top = x[l] > top ? x[l] : top;
    for (int i = 0; i < STRIP; i++)
        top = tops[i] > top ? tops[i] : top;
    return top;
}

/* The sum of a row. */
static REAL total(const REAL *x, int64_t m) {
    REAL sums[STRIP] = {0}, sum = 0;
    int64_t s = 0;
    for (; s + STRIP <= m; s += STRIP)
        for (int l = 0; l < STRIP; l++)
            sums[l] += x[s + l];
    for (; s < m; s++)
        sum += x[s];
    for (int l = 0; l < STRIP; l++)
        sum += sums[l];
    return sum;
}

/* exp(x - top) in place; returns their sum. */
static REAL shares(REAL *restrict x, int64_t m, REAL top) {
    REAL sums[STRIP] = {0}, sum = 0;
    for (int64_t s = 0; s < m; s += STRIP) {
        const int64_t some = least(STRIP, m - s);
        REAL y[STRIP] = {0};
        memcpy(y, x + s, some * sizeof(REAL));
        for (int l = 0; l < STRIP; l++)
            y[l] -= top;
        exponential(y);
        memcpy(x + s, y, some * sizeof(REAL));
        for (int64_t l = 0; l < some; l++)
            sums[l] += y[l];
    }
    for (int l = 0; l < STRIP; l++)
        sum += sums[l];
    return sum;
}

/* The length of the longest key. */
static double longest(const Tiles *c, int64_t n) {
    double most_of_all = 0;
    for (int64_t s = 0; s < c->keys; s++) {
        const REAL *k = (const REAL *)c->k + (n * c->keys + s) * c->d;
        double sum = 0;
        for (int64_t l = 0; l < c->d; l++)
            sum += (double)k[l] * k[l];
        most_of_all = sum <= most_of_all || most_of_all != most_of_all ? most_of_all : sum; /* once NaN, it stays so */
    }
    return sqrt(most_of_all);
}

/* As reach; but a key has faded when its weight cannot be e^-FADED of its row, whatever its direction. A row's sum is at least the weight
   of its newest key, for which D = 1 (the clock stands still at padding, so also where that is not the last). With a bias on the keys
   nothing is left out. */
static int64_t alive(const Tiles *c, Part *p, double farthest) {
    const int64_t n = p->n;
    int64_t stop = 0;
    double latest = -INFINITY;
    p->j = c->keys;
    for (int64_t r = 0; r < p->rows; r++) {
        const int64_t last = last_key(c, n, p->i + r);
        p->j = least(p->j, first_key(c, n, p->i + r));
        stop = most(stop, last);
        if (c->cq && last > 0) {
            const REAL *q = (const REAL *)c->q + (p->row + r) * c->d, *k = (const REAL *)c->k + (n * c->keys + last - 1) * c->d;
            double size = 0, own = 0;
            for (int64_t l = 0; l < c->d; l++)
                size += (double)q[l] * q[l], own += (double)q[l] * k[l];
            const double highest = sqrt(size) * farthest;
            const double newest = c->ck[n * c->keys + last - 1] + highest - (c->keep ? -highest : own);
            latest = newest <= latest || latest != latest ? latest : newest; /* once NaN, it stays so */
        }
    }
    if (c->cq && !c->bias)
        p->j = later(c, n, p->j, stop, latest, -FADED);
    return stop;
}

/* O = softmax(x) v, and in total the log-sum-exp; a row that sees nothing has 0 and 0. */
static int NAME(softmax_of)(const void *call, int64_t n) {
    const Tiles *c = call;
    REAL *X = aligned_alloc(64, ROWS * COLUMNS * sizeof(REAL));
    if (!X)
        return 1;
    const double farthest = c->cq ? longest(c, n) : 0;
    for (int64_t g = 0; g < c->group; g++)
        for (int64_t i = 0; i < c->queries; i += ROWS) {
            Part p = block(c, n, g, i);
            const int64_t stop = alive(c, &p, farthest);
            REAL *out = (REAL *)c->out + p.row * c->e, *lse = (REAL *)c->sums + p.row, tops[ROWS], sums[ROWS], times[COLUMNS];
            for (int64_t r = 0; r < p.rows; r++)
                tops[r] = -INFINITY, sums[r] = 0;
            memset(out, 0, p.rows * c->e * sizeof(REAL));
            while (tile(c, &p, stop)) {
                scores(c, &p, X);
                const REAL *past = since(c, &p, times);
                for (int64_t r = 0; r < p.rows; r++) {
                    REAL *x = X + r * p.width;
                    int64_t a, b;
                    seen(c, &p, r, &a, &b);
                    clear(x, a, b, p.width);
                    REAL top = shift(c, &p, r, a, b, past, x);
                    top = top > tops[r] ? top : tops[r];
                    if (tops[r] != top && sums[r] != 0) { /* what is there was relative to a smaller one */
                        const REAL less = (REAL)exp((double)tops[r] - (double)top);
                        for (int64_t l = 0; l < c->e; l++)
                            out[r * c->e + l] *= less;
                        sums[r] *= less;
                    }
                    tops[r] = top;
                    sums[r] += shares(x + a, b - a, top > -INFINITY ? top : 0);
                }
                product('N', 'N', p.rows, c->e, p.width, X, p.width, (const REAL *)c->v + p.key * c->e, c->e, 1, out, c->e);
            }
            for (int64_t r = 0; r < p.rows; r++) {
                const int any = sums[r] != 0;
                const REAL part = any ? 1 / sums[r] : 0;
                lse[r] = any ? tops[r] + (REAL)log((double)sums[r]) : 0;
                for (int64_t l = 0; l < c->e; l++)
                    out[r * c->e + l] *= part;
            }
        }
    free(X);
    return 0;
}

CALLED(softmax)

/* The gradients of the same: total is the log-sum-exp, gtotal sum(dO O) less the gradient of the log-sum-exp. */
static int NAME(softmax_backward_of)(const void *call, int64_t n) {
    const Tiles *c = call;
    REAL *X = aligned_alloc(64, 2 * ROWS * COLUMNS * sizeof(REAL)), *Y = X + ROWS * COLUMNS;
    if (!X)
        return 1;
    const double farthest = c->cq ? longest(c, n) : 0;
    for (int64_t g = 0; g < c->group; g++)
        for (int64_t i = 0; i < c->queries; i += ROWS) {
            Part p = block(c, n, g, i);
            const int64_t stop = alive(c, &p, farthest);
            while (tile(c, &p, stop)) {
                scores(c, &p, X);
                slopes(c, &p, Y);
                REAL times[COLUMNS], columns[COLUMNS];
                const REAL *past = since(c, &p, times);
                memset(columns, 0, p.width * sizeof(REAL));
                for (int64_t r = 0; r < p.rows; r++) {
                    REAL *x = X + r * p.width, *dx = Y + r * p.width;
                    int64_t a, b;
                    seen(c, &p, r, &a, &b);
                    clear(x, a, b, p.width);
                    clear(dx, a, b, p.width);
                    shift(c, &p, r, a, b, past, x);
                    shares(x + a, b - a, ((const REAL *)c->sums)[p.row + r]);
                    const REAL delta = ((const REAL *)c->gtotal)[p.row + r];
                    for (int64_t s = a; s < b; s++)
                        dx[s] = (dx[s] - delta) * x[s];
                    if (c->dck) {
                        for (int64_t s = a; s < b; s++)
                            columns[s] += dx[s];
                        if (c->dcq)
                            c->dcq[n * c->queries + i + r] += total(dx + a, b - a);
                    }
                }
                for (int64_t s = 0; c->dck && s < p.width; s++)
                    c->dck[p.key + s] -= columns[s];
                gradients(c, &p, X, Y);
            }
        }
    free(X);
    return 0;
}

CALLED(softmax_backward)

#undef series
#undef scores
#undef slopes
#undef gradients
#undef clear
#undef reach
#undef fades
#undef since
#undef shift
#undef shares
#undef total
#undef longest
#undef alive
