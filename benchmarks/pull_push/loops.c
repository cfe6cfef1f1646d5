// The bare loops that a table is measured against: the memory traffic of a pull and of a push, with
// neither hash, comparison, lock nor order of stripes.

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

// Floats of weights and of state in a row, bytes of an index line, and how many keys ahead the
// index line and the row are loaded: the fastest of those tried.
enum { DIM = 16, LINE = 64, INDEX_AHEAD = 64, ROW_AHEAD = 32 };

// Returns `bytes` bytes, zero, on huge pages where there are any, or NULL.
void* allocate(size_t bytes) {
  const size_t page = (size_t)1 << 21;
  char* const map =
      mmap(NULL, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return NULL;
  char* const start = map + (page - (uintptr_t)map % page) % page;
#ifdef MADV_HUGEPAGE
  madvise(start, bytes, MADV_HUGEPAGE);
#endif
  return start;
}

static void adagrad(float* restrict w, float* restrict a, const float* restrict g) {
  for (int d = 0; d < DIM; ++d) {
    a[d] += g[d] * g[d];
    w[d] -= 0.05f * g[d] / (sqrtf(a[d]) + 1e-6f);
  }
}

// For each of n keys: reads index line lines[i], the row number that stands first in it, and that
// row's weights to out [n, DIM]. A row is weights [DIM], state [DIM].
void pull(const char* index, const uint32_t* lines, const float* rows, size_t n, float* out) {
  const float* ring[ROW_AHEAD];
  for (size_t step = 0; step < n + INDEX_AHEAD; ++step) {
    if (step < n) __builtin_prefetch(index + (size_t)lines[step] * LINE);
    if (step >= INDEX_AHEAD) {
      const size_t i = step - INDEX_AHEAD;
      memcpy(out + i * DIM, ring[i % ROW_AHEAD], DIM * sizeof(float));
    }
    const size_t i = step - (INDEX_AHEAD - ROW_AHEAD);
    if (step >= INDEX_AHEAD - ROW_AHEAD && i < n) {
      uint32_t row;
      memcpy(&row, index + (size_t)lines[i] * LINE, sizeof(row));
      ring[i % ROW_AHEAD] = rows + (size_t)row * 2 * DIM;
      __builtin_prefetch(ring[i % ROW_AHEAD]);
    }
  }
}

// The same, with a step of Adagrad on the row, weights and state, by gradients [n, DIM].
void find_and_push(const char* index, const uint32_t* lines, float* rows, size_t n,
                   const float* gradients) {
  float* ring[ROW_AHEAD];
  for (size_t step = 0; step < n + INDEX_AHEAD; ++step) {
    if (step < n) __builtin_prefetch(index + (size_t)lines[step] * LINE);
    if (step >= INDEX_AHEAD) {
      const size_t i = step - INDEX_AHEAD;
      float* const row = ring[i % ROW_AHEAD];
      adagrad(row, row + DIM, gradients + i * DIM);
    }
    const size_t i = step - (INDEX_AHEAD - ROW_AHEAD);
    if (step >= INDEX_AHEAD - ROW_AHEAD && i < n) {
      uint32_t row;
      memcpy(&row, index + (size_t)lines[i] * LINE, sizeof(row));
      float* const first = rows + (size_t)row * 2 * DIM;
      ring[i % ROW_AHEAD] = first;
      __builtin_prefetch(first);
      __builtin_prefetch(first + DIM);
    }
  }
}

// A step of Adagrad on rows row[i], which are known: no index.
void push(const uint32_t* row, float* rows, size_t n, const float* gradients) {
  for (size_t i = 0; i < n; ++i) {
    if (i + ROW_AHEAD < n) {
      const float* const next = rows + (size_t)row[i + ROW_AHEAD] * 2 * DIM;
      __builtin_prefetch(next);
      __builtin_prefetch(next + DIM);
    }
    float* const first = rows + (size_t)row[i] * 2 * DIM;
    adagrad(first, first + DIM, gradients + i * DIM);
  }
}
