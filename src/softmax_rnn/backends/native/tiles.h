/* The loops of tiles.py for numbers of type REAL. Included by loops.c for each type. */

#define exponential NAME(exponential)
#define room NAME(room)
#define leave NAME(leave)
#define between NAME(between)
#define along_rows NAME(along_rows)
#define along_columns NAME(along_columns)
#define span NAME(span)
#define folded NAME(folded)
#define highest NAME(highest)
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

/* exp of a strip, to one or two units of the last digit: 2^n times a Taylor series on [-ln 2 / 2, ln 2 / 2]. NaN stays NaN. */
static inline void exponential(REAL *restrict x) {
    for (int l = 0; l < STRIP; l++) {
        REAL y = x[l] > FAR ? FAR : x[l];
        y = y < -FAR ? -FAR : y;
        const REAL t = y * (REAL)1.4426950408889634 + MAGIC; /* the sum's last digits are the whole number nearest to y / ln 2 */
        const REAL n = t - MAGIC;
        REAL r = y - n * (REAL)0x1.62e4p-1;
        r = r - n * (REAL)(0.693147180559945309417232L - 0x1.62e4p-1L);
        REAL p = (REAL)FACTORS[TERMS - 1];
        for (int i = TERMS - 2; i >= 0; i--)
            p = p * r + (REAL)FACTORS[i];
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

/* What is multiplied with every tile of a sequence: the keys and, for the gradients, the values, turned if they have few channels. */
typedef struct {
    REAL *k, *v;
    int64_t wide;
} NAME(Turned);
#define Turned NAME(Turned)

/* Room for ``many`` tiles of scores; nothing if memory is short. */
static REAL *room(const Tiles *c, int64_t n, int many, Turned *t) {
    REAL *X = aligned_alloc(64, many * ROWS * COLUMNS * sizeof(REAL));
    *t = (Turned){.wide = strips(c->keys) + STRIP}; /* a tile begins anywhere and is whole strips wide */
    if (X && few(c->d))
        t->k = turned((const REAL *)c->k + n * c->keys * c->d, c->keys, c->d, t->wide);
    if (X && c->grad && few(c->e))
        t->v = turned((const REAL *)c->v + n * c->keys * c->e, c->keys, c->e, t->wide);
    return X;
}

static void leave(REAL *X, Turned *t) {
    free(X);
    free(t->k);
    free(t->v);
}

/* Queries times keys, or what stands in their place: m x channels times the transpose of a tile's width x channels. */
static void between(const Part *p, int64_t channels, const REAL *q, const REAL *k, const REAL *turned_k, int64_t wide, REAL *X) {
    if (turned_k)
        small(p->rows, p->stride, channels, q, channels, 1, turned_k + p->j, wide, 0, X, p->stride);
    else
        product('N', 'T', p->rows, p->width, channels, q, channels, k, channels, 0, X, p->stride);
}

/* q k^T of a tile. */
static void scores(const Tiles *c, const Part *p, const Turned *t, REAL *X) {
    between(p, c->d, (const REAL *)c->q + p->row * c->d, (const REAL *)c->k + p->key * c->d, t->k, t->wide, X);
}

/* dO v^T of a tile. */
static void slopes(const Tiles *c, const Part *p, const Turned *t, REAL *Y) {
    between(p, c->e, (const REAL *)c->grad + p->row * c->e, (const REAL *)c->v + p->key * c->e, t->v, t->wide, Y);
}

/* to += X from, for the rows of a tile. */
static void along_rows(const Part *p, int64_t channels, const REAL *X, const REAL *from, REAL *to) {
    if (few(channels))
        small(p->rows, channels, p->width, X, p->stride, 1, from, channels, 1, to, channels);
    else
        product('N', 'N', p->rows, channels, p->width, X, p->stride, from, channels, 1, to, channels);
}

/* to += X^T from, for its columns. */
static void along_columns(const Part *p, int64_t channels, const REAL *X, const REAL *from, REAL *to) {
    if (few(channels))
        small(p->width, channels, p->rows, X, 1, p->stride, from, channels, 1, to, channels);
    else
        product('T', 'N', p->width, channels, p->rows, X, p->stride, from, channels, 1, to, channels);
}

/* dv += X^T dO, dq += Y k, dk += Y^T q: what the weights X and the gradients Y of a tile's scores add. */
static void gradients(const Tiles *c, const Part *p, const REAL *X, const REAL *Y) {
    const int64_t d = c->d, e = c->e;
    along_columns(p, e, X, (const REAL *)c->grad + p->row * e, (REAL *)c->dv + p->key * e);
    along_rows(p, d, Y, (const REAL *)c->k + p->key * d, (REAL *)c->dq + p->row * d);
    along_columns(p, d, Y, (const REAL *)c->q + p->row * d, (REAL *)c->dk + p->key * d);
}

/* What a row sees of a tile, its columns [a, b), and the whole strips around that, [from, to). */
typedef struct {
    int64_t a, b, from, to;
} NAME(Span);
#define Span NAME(Span)

static inline Span span(const Tiles *c, const Part *p, int64_t r) {
    Span s;
    seen(c, p, r, &s.a, &s.b);
    s.from = s.a / STRIP * STRIP;
    s.to = s.a < s.b ? strips(s.b) : s.from;
    return s;
}

/* 0 in a row outside of what it sees. */
static inline void clear(REAL *x, const Span *s, int64_t stride) {
    memset(x, 0, s->a * sizeof(REAL));
    memset(x + s->b, 0, (stride - s->b) * sizeof(REAL));
}

/* The sum of a strip, which it destroys. */
static inline REAL folded(REAL *restrict x) {
    for (int half = STRIP / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            x[l] += x[l + half];
    return x[0];
}

/* The sum of strips. */
static REAL total(const REAL *x, int64_t m) {
    REAL sums[STRIP] = {0};
    for (int64_t s = 0; s < m; s += STRIP)
        for (int l = 0; l < STRIP; l++)
            sums[l] += x[s + l];
    return folded(sums);
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
    Turned t;
    REAL *X = room(c, n, 1, &t);
    if (!X)
        return 1;
    const int faded = c->cq || c->keep;
    for (int64_t g = 0; g < c->group; g++)
        for (int64_t i = 0; i < c->queries; i += ROWS) {
            Part p = block(c, n, g, i);
            const int64_t stop = reach(c, &p);
            while (tile(c, &p, stop)) {
                scores(c, &p, &t, X);
                for (int64_t r = 0; r < p.rows; r++) {
                    REAL *row = X + r * p.stride;
                    const Span at = span(c, &p, r);
                    for (int64_t s = at.from; s < at.to; s += STRIP) {
                        REAL *restrict x = row + s, y[STRIP], w[STRIP], f[STRIP];
                        for (int l = 0; l < STRIP; l++)
                            y[l] = x[l] > (REAL)c->limit ? (REAL)c->limit : x[l];
                        series(&c->weight, y, w);
                        if (faded) {
                            fades(c, n, i + r, p.j + s, least(STRIP, p.width - s), f);
                            for (int l = 0; l < STRIP; l++)
                                w[l] *= f[l];
                        }
                        memcpy(x, w, sizeof w);
                    }
                    clear(row, &at, p.stride);
                    if (c->sums)
                        ((REAL *)c->sums)[p.row + r] += total(row + at.from, at.to - at.from);
                }
                along_rows(&p, c->e, X, (const REAL *)c->v + p.key * c->e, (REAL *)c->out + p.row * c->e);
            }
        }
    leave(X, &t);
    return 0;
}

CALLED(weighted)

/* The gradients of the same; dones_s = sum_t D w gtotal. */
static int NAME(weighted_backward_of)(const void *call, int64_t n) {
    const Tiles *c = call;
    Turned t;
    REAL *X = room(c, n, 2, &t), *Y = X + ROWS * COLUMNS;
    if (!X)
        return 1;
    const int faded = c->cq || c->keep, same = c->weight.terms < 0;
    for (int64_t g = 0; g < c->group; g++)
        for (int64_t i = 0; i < c->queries; i += ROWS) {
            Part p = block(c, n, g, i);
            const int64_t stop = reach(c, &p);
            while (tile(c, &p, stop)) {
                scores(c, &p, &t, X);
                slopes(c, &p, &t, Y);
                for (int64_t r = 0; r < p.rows; r++) {
                    REAL *row = X + r * p.stride, *drow = Y + r * p.stride;
                    const REAL dz = c->gtotal ? ((const REAL *)c->gtotal)[p.row + r] : 0;
                    const Span at = span(c, &p, r);
                    for (int64_t s = at.from; s < at.to; s += STRIP) {
                        REAL *restrict x = row + s, *restrict dx = drow + s, y[STRIP], w[STRIP], slope[STRIP], f[STRIP];
                        for (int l = 0; l < STRIP; l++)
                            y[l] = x[l] > (REAL)c->limit ? (REAL)c->limit : x[l];
                        series(&c->weight, y, w);
                        if (same)
                            memcpy(slope, w, sizeof w);
                        else
                            series(&c->slope, y, slope);
                        for (int l = 0; l < STRIP; l++)
                            dx[l] = x[l] > (REAL)c->limit ? 0 : (dx[l] + dz) * slope[l];
                        if (faded) {
                            fades(c, n, i + r, p.j + s, least(STRIP, p.width - s), f);
                            for (int l = 0; l < STRIP; l++)
                                w[l] *= f[l], dx[l] *= f[l];
                        }
                        memcpy(x, w, sizeof w);
                    }
                    clear(row, &at, p.stride);
                    clear(drow, &at, p.stride);
                    if (c->dones) {
                        REAL *ones = (REAL *)c->dones + p.key;
                        for (int64_t s = at.a; s < at.b; s++)
                            ones[s] += row[s] * dz;
                    }
                }
                gradients(c, &p, X, Y);
            }
        }
    leave(X, &t);
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

/* softmax_s( x - bias + c_t - c_s ): the logits of the r-th row of a tile in place, -inf for padding and in the rest of its strips.
   past: what since() says. */
static void shift(const Tiles *c, const Part *p, int64_t r, const Span *at, const REAL *restrict past, REAL *restrict row) {
    REAL *restrict x = row + at->a;
    const int64_t m = at->b - at->a, key = p->key + at->a;
    const double *cq = c->cq ? c->cq + p->n * c->queries + p->i : NULL;
    if (past) {
        const REAL after = (REAL)(cq[r] - cq[0]);
        for (int64_t l = 0; l < m; l++)
            x[l] += past[at->a + l] + after;
    } else if (c->cq) {
        const double now = cq[r], *ck = c->ck + key;
        for (int64_t l = 0; l < m; l++)
            x[l] += (REAL)(now - ck[l]);
    }
    if (c->bias) {
        const REAL *bias = (const REAL *)c->bias + key;
        for (int64_t l = 0; l < m; l++)
            x[l] -= bias[l];
    }
    if (c->keep) {
        const uint8_t *keep = c->keep + key;
        for (int64_t l = 0; l < m; l++)
            x[l] = keep[l] ? x[l] : -INFINITY;
    }
    for (int64_t s = at->from; s < at->a; s++)
        row[s] = -INFINITY;
    for (int64_t s = at->b; s < at->to; s++)
        row[s] = -INFINITY;
}

/* The largest number in strips. */
static REAL highest(const REAL *x, int64_t m) {
    REAL tops[STRIP];
    for (int l = 0; l < STRIP; l++)
        tops[l] = -INFINITY;
    for (int64_t s = 0; s < m; s += STRIP)
        for (int l = 0; l < STRIP; l++)
            tops[l] = x[s + l] > tops[l] ? x[s + l] : tops[l];
    for (int half = STRIP / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            tops[l] = tops[l + half] > tops[l] ? tops[l + half] : tops[l];
    return tops[0];
}

/* exp(x - top) of strips in place. */
static void shares(REAL *restrict x, int64_t m, REAL top) {
    for (int64_t s = 0; s < m; s += STRIP) {
        for (int l = 0; l < STRIP; l++)
            x[s + l] -= top;
        exponential(x + s);
    }
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
    Turned t;
    REAL *X = room(c, n, 1, &t);
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
                scores(c, &p, &t, X);
                const REAL *past = since(c, &p, times);
                for (int64_t r = 0; r < p.rows; r++) {
                    REAL *x = X + r * p.stride;
                    const Span at = span(c, &p, r);
                    shift(c, &p, r, &at, past, x);
                    REAL top = highest(x + at.from, at.to - at.from);
                    top = top > tops[r] ? top : tops[r];
                    if (tops[r] != top && sums[r] != 0) { /* what is there was relative to a smaller one */
                        const REAL less = (REAL)exp((double)tops[r] - (double)top);
                        for (int64_t l = 0; l < c->e; l++)
                            out[r * c->e + l] *= less;
                        sums[r] *= less;
                    }
                    tops[r] = top;
                    shares(x + at.from, at.to - at.from, top > -INFINITY ? top : 0);
                    clear(x, &at, p.stride);
                    sums[r] += total(x + at.from, at.to - at.from);
                }
                along_rows(&p, c->e, X, (const REAL *)c->v + p.key * c->e, out);
            }
            for (int64_t r = 0; r < p.rows; r++) {
                const int any = sums[r] != 0;
                const REAL part = any ? 1 / sums[r] : 0;
                lse[r] = any ? tops[r] + (REAL)log((double)sums[r]) : 0;
                for (int64_t l = 0; l < c->e; l++)
                    out[r * c->e + l] *= part;
            }
        }
    leave(X, &t);
    return 0;
}

CALLED(softmax)

/* The gradients of the same: total is the log-sum-exp, gtotal sum(dO O) less the gradient of the log-sum-exp. */
static int NAME(softmax_backward_of)(const void *call, int64_t n) {
    const Tiles *c = call;
    Turned t;
    REAL *X = room(c, n, 2, &t), *Y = X + ROWS * COLUMNS;
    if (!X)
        return 1;
    const double farthest = c->cq ? longest(c, n) : 0;
    for (int64_t g = 0; g < c->group; g++)
        for (int64_t i = 0; i < c->queries; i += ROWS) {
            Part p = block(c, n, g, i);
            const int64_t stop = alive(c, &p, farthest);
            while (tile(c, &p, stop)) {
                scores(c, &p, &t, X);
                slopes(c, &p, &t, Y);
                REAL times[COLUMNS], columns[COLUMNS];
                const REAL *past = since(c, &p, times);
                memset(columns, 0, p.width * sizeof(REAL));
                for (int64_t r = 0; r < p.rows; r++) {
                    REAL *restrict x = X + r * p.stride, *restrict dx = Y + r * p.stride;
                    const Span at = span(c, &p, r);
                    shift(c, &p, r, &at, past, x);
                    shares(x + at.from, at.to - at.from, ((const REAL *)c->sums)[p.row + r]);
                    clear(x, &at, p.stride);
                    const REAL delta = ((const REAL *)c->gtotal)[p.row + r];
                    for (int64_t s = at.from; s < at.to; s++)
                        dx[s] = (dx[s] - delta) * x[s];
                    clear(dx, &at, p.stride);
                    if (c->dck) {
                        for (int64_t s = at.a; s < at.b; s++)
                            columns[s] += dx[s];
                        if (c->dcq)
                            c->dcq[n * c->queries + i + r] += total(dx + at.from, at.to - at.from);
                    }
                }
                for (int64_t s = 0; c->dck && s < p.width; s++)
                    c->dck[p.key + s] -= columns[s];
                gradients(c, &p, X, Y);
            }
        }
    leave(X, &t);
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
#undef room
#undef leave
#undef between
#undef along_rows
#undef along_columns
#undef span
#undef folded
#undef highest
#undef Turned
#undef Span
