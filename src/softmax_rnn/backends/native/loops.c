/* The loops over tiles of tiles.py and over chunks of linear.py, for float and for double. Built by __init__.py when first needed.

   Matrix products are those of the BLAS inside torch, handed over by its addresses, or for small heads those of products.h; here is what
   happens between them, in one pass over a tile instead of one for each operation, and without Python's lock. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

typedef void (*gemm_s)(const char *, const char *, const int *, const int *, const int *, const float *, const float *, const int *,
                       const float *, const int *, const float *, float *, const int *);
typedef void (*gemm_d)(const char *, const char *, const int *, const int *, const int *, const double *, const double *, const int *,
                       const double *, const int *, const double *, double *, const int *);
static gemm_s sgemm;
static gemm_d dgemm;

void products(void *single, void *twice) {
    sgemm = (gemm_s)single;
    dgemm = (gemm_d)twice;
}

/* c0 (1 + r1 x (1 + r2 x (...))) x^low, scaled so that neither powers nor coefficients leave the range; exp if terms < 0. */
typedef struct {
    int64_t low, terms;
    double first, root;
    const double *ratios;
} Series;

/* One call of an operator; a null pointer stands for what is not there. See tiles.py for the meaning of each. */
typedef struct {
    const void *q, *k, *v, *grad, *gtotal, *bias;
    const double *cq, *ck;
    const int64_t *lo, *hi;
    const uint8_t *keep;
    void *out, *sums, *dq, *dk, *dv, *dones;
    double *dcq, *dck;
    int64_t group, queries, keys, d, e, bounds, causal;
    double limit;
    Series weight, slope;
} Tiles;

/* One call of the operator of linear.py; clocks are (N, T, width), their middles (N, chunks, width), width 1 or d. */
typedef struct {
    const void *q, *k, *v, *state, *grad, *carry, *first;
    const double *cq, *ck, *middle;
    void *out, *states, *scores, *dq, *dk, *dv, *dstate, *clock_q, *clock_k;
    int64_t group, tokens, chunk, d, e, width;
} Scan;

/* Denormal numbers make a processor a hundred times slower, and below 1e-38 nothing here matters. */
static unsigned flush(void) {
#if defined(__SSE__)
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    return before;
#else
    return 0;
#endif
}

static void unflush(unsigned before) {
#if defined(__SSE__)
    _mm_setcsr(before);
#else
    (void)before;
#endif
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* A loop for one sequence; 1 if memory is short. */
typedef int (*Loop)(const void *call, int64_t n);

static int one(Loop loop, const void *call, int64_t n) {
    const unsigned before = flush();
    const int failed = loop(call, n);
    unflush(before);
    return failed;
}

/* The sequences between the threads that torch has already: others would compete with these for the processor. With one thread there is
   no parallel region, not even of one: inside it the products would start threads of their own, anew each time. */
static int divided(Loop loop, const void *call, int64_t sequences, int threads) {
    int failed = 0;
    if (threads == 1) {
        for (int64_t n = 0; n < sequences; n++)
            failed |= one(loop, call, n);
        return failed;
    }
#pragma omp parallel for schedule(dynamic) num_threads(threads) reduction(| : failed)
    for (int64_t n = 0; n < sequences; n++)
        failed |= one(loop, call, n);
    return failed;
}

/* What Python calls: name_float and name_double. */
#define CALLED(name) \
    int NAME(name)(const void *call, int64_t sequences, int threads) { return divided(NAME(name##_of), call, sequences, threads); }

/* 1 / n!: the series of exp. */
static const double FACTORS[] = {1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880,
                                 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};

#define ROWS 64   /* queries of a tile */
#define COLUMNS 1024 /* keys of a tile: with 64 queries 256 KB of scores, which stay in the cache of a core */
#define STRIP 64  /* numbers that are turned into weights at a time, in registers */
#if defined(__AVX512F__)
#define BYTES 64 /* of a vector */
#define HIGH 8   /* rows of a product that are computed at a time, of two vectors each */
#elif defined(__AVX2__)
#define BYTES 32
#define HIGH 4
#else
#define BYTES 16 /* products are left to BLAS */
#define HIGH 4
#endif

/* A block of queries of one head, and a tile of the keys that they see. */
typedef struct {
    int64_t n, i, rows, row; /* queries [i, i + rows) of sequence n; row is the place of the first among all */
    int64_t j, width, key;   /* keys [j, j + width); key is the place of the first among all */
    int64_t stride;          /* from one row of the tile to the next: whole strips */
} Part;

static inline int64_t strips(int64_t numbers) { return (numbers + STRIP - 1) / STRIP * STRIP; }

/* The block of queries from i on of the g-th head that shares the keys of sequence n; no tile yet. */
static inline Part block(const Tiles *c, int64_t n, int64_t g, int64_t i) {
    return (Part){.n = n, .i = i, .rows = least(ROWS, c->queries - i), .row = (n * c->group + g) * c->queries + i};
}

/* The next tile, from p->j on at first; 0 if there is none before stop. */
static inline int tile(const Tiles *c, Part *p, int64_t stop) {
    p->j += p->width;
    p->width = least(COLUMNS, stop - p->j);
    p->key = p->n * c->keys + p->j;
    p->stride = strips(p->width);
    return p->width > 0;
}

/* What a query sees of the keys: [first, last). */
static inline int64_t first_key(const Tiles *c, int64_t n, int64_t t) { return c->lo ? c->lo[n * c->bounds + t] : 0; }

static inline int64_t last_key(const Tiles *c, int64_t n, int64_t t) {
    return c->hi ? c->hi[n * c->bounds + t] : c->causal ? c->keys - c->queries + t + 1 : c->keys;
}

/* The first key in [a, b) whose clock is above past: the clock falls, so that all before it have faded. NaN is above everything. */
static int64_t later(const Tiles *c, int64_t n, int64_t a, int64_t b, double now, double past) {
    const double *ck = c->ck + n * c->keys;
    while (a < b) {
        const int64_t middle = (a + b) / 2;
        if (now - ck[middle] <= past)
            a = middle + 1;
        else
            b = middle;
    }
    return a;
}

/* What the r-th query of a block sees of a tile: its columns [a, b). */
static inline void seen(const Tiles *c, const Part *p, int64_t r, int64_t *a, int64_t *b) {
    *a = least(most(first_key(c, p->n, p->i + r) - p->j, 0), p->width);
    *b = most(least(last_key(c, p->n, p->i + r) - p->j, p->width), *a);
}

#define REAL float
#define INT int32_t
#define NAME(x) x##_float
#define GEMM sgemm
#define TERMS 8
#define MAGIC 12582912.0f
#define BIAS 127
#define MANTISSA 23
#define FAR 150.0f
#define GONE -110.0
#define FADED 20.0
#define CALM 32.0
#include "products.h"
#include "tiles.h"
#include "scan.h"
#undef REAL
#undef INT
#undef NAME
#undef GEMM
#undef TERMS
#undef MAGIC
#undef BIAS
#undef MANTISSA
#undef FAR
#undef GONE
#undef FADED
#undef CALM

#define REAL double
#define INT int64_t
#define NAME(x) x##_double
#define GEMM dgemm
#define TERMS 14
#define MAGIC 6755399441055744.0
#define BIAS 1023
#define MANTISSA 52
#define FAR 1400.0
#define GONE -800.0
#define FADED 40.0
#define CALM 1e6
#include "products.h"
#include "tiles.h"
#include "scan.h"
