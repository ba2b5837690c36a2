/* Matrix products of numbers of type REAL. Included by loops.c for each type. */

#define product NAME(product)
#define small NAME(small)
#define few NAME(few)
#define turned NAME(turned)
#define vector NAME(vector)

/* c = a b + beta c, all of them row by row; ta, tb: 'T' takes a, b transposed. m x n, over k. */
static void product(char ta, char tb, int64_t m, int64_t n, int64_t k, const REAL *a, int64_t lda, const REAL *b, int64_t ldb, REAL beta,
                    REAL *c, int64_t ldc) {
    const int M = (int)m, N = (int)n, K = (int)k, A = (int)most(lda, 1), B = (int)most(ldb, 1), C = (int)most(ldc, 1);
    const REAL one = 1;
    GEMM(&tb, &ta, &N, &M, &K, &one, b, &B, a, &A, &beta, c, &C);
}

/* Heads of 16 or 32 channels are so small that calling BLAS, which packs its operands first, takes longer than multiplying. */

typedef REAL vector __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
#define LANES ((int64_t)(BYTES / sizeof(REAL)))

static inline int few(int64_t channels) { return BYTES > 16 && channels <= 32 && channels % LANES == 0; }

/* R rows and V vectors of c = a b, or of c += a b; a's rows and columns are ``down`` and ``along`` apart. All of c stays in registers. */
#define BLOCK(R, V) \
    { \
        vector sums[R][V]; \
        for (int r = 0; r < R; r++) \
            for (int l = 0; l < V; l++) \
                sums[r][l] = add ? *(const vector *)(c + (i + r) * ldc + j + l * LANES) : (vector){0}; \
        for (int64_t s = 0; s < k; s++) { \
            vector row[V]; \
            for (int l = 0; l < V; l++) \
                row[l] = *(const vector *)(b + s * ldb + j + l * LANES); \
            for (int r = 0; r < R; r++) \
                for (int l = 0; l < V; l++) \
                    sums[r][l] += a[(i + r) * down + s * along] * row[l]; \
        } \
        for (int r = 0; r < R; r++) \
            for (int l = 0; l < V; l++) \
                *(vector *)(c + (i + r) * ldc + j + l * LANES) = sums[r][l]; \
    }

/* m x n over k, where n is a multiple of LANES. */
static void small(int64_t m, int64_t n, int64_t k, const REAL *a, int64_t down, int64_t along, const REAL *b, int64_t ldb, int add, REAL *c,
                  int64_t ldc) {
    int64_t j = 0;
    for (; j + 2 * LANES <= n; j += 2 * LANES) {
        int64_t i = 0;
        for (; i + HIGH <= m; i += HIGH)
            BLOCK(HIGH, 2)
        for (; i < m; i++)
            BLOCK(1, 2)
    }
    for (; j < n; j += LANES) {
        int64_t i = 0;
        for (; i + HIGH <= m; i += HIGH)
            BLOCK(HIGH, 1)
        for (; i < m; i++)
            BLOCK(1, 1)
    }
}

/* The transpose of x (rows x columns), with ``wide`` columns, of which the last are 0; nothing if memory is short. */
static REAL *turned(const REAL *x, int64_t rows, int64_t columns, int64_t wide) {
    REAL *y = aligned_alloc(64, (columns * wide * sizeof(REAL) + 63) / 64 * 64);
    for (int64_t j = 0; y && j < columns; j++) {
        for (int64_t i = 0; i < rows; i++)
            y[j * wide + i] = x[i * columns + j];
        for (int64_t i = rows; i < wide; i++)
            y[j * wide + i] = 0;
    }
    return y;
}
