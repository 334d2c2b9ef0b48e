/* The tree edit distance of Zhang and Shasha over nodes in postorder. The plain Python form is
   `plain_distance` of tidemill.monitors.decoders.tree_distance.

   kind, label   what a node is: equal labels cost nothing, equal kinds cost `soft`, anything else `hard`
   first         the first node of each node's subtree
   roots         the nodes at which a subproblem begins, in order
*/
#include <stdint.h>
#include <stdlib.h>

typedef struct {
    int32_t size, root_count;
    const int64_t *kind, *label;
    const int32_t *first, *roots;
} Tree;

#define LEAST(a, b) ((a) < (b) ? (a) : (b))

/* Returns the distance, or -1 if there is no memory. */
double tree_distance(int32_t n, int32_t n_roots, const int64_t *kind1, const int64_t *label1, const int32_t *first1,
                     const int32_t *roots1, int32_t m, int32_t m_roots, const int64_t *kind2, const int64_t *label2,
                     const int32_t *first2, const int32_t *roots2, double soft, double hard)
{
    if (n == 0 || m == 0)
        return (double)(n + m);
    double *trees = malloc(sizeof(double) * n * m);
    double *forest = malloc(sizeof(double) * (n + 1) * (m + 1));
    if (!trees || !forest) {
        free(trees);
        free(forest);
        return -1.0;
    }
    for (int32_t a = 0; a < n_roots; a++) {
        for (int32_t b = 0; b < m_roots; b++) {
            const int32_t i = roots1[a], j = roots2[b], li = first1[i], lj = first2[j];
            const int32_t rows = i - li + 1, columns = j - lj + 1, width = columns + 1;
            forest[0] = 0.0;
            for (int32_t y = 1; y <= columns; y++)
                forest[y] = (double)y;
            for (int32_t x = 1; x <= rows; x++) {
                const int32_t p = li + x - 1, fp = first1[p];
                double *row = forest + (size_t)x * width;
                const double *above = row - width;
                const double *split = forest + (size_t)(fp - li) * width;
                double *known = trees + (size_t)p * m;
                row[0] = (double)x;
                for (int32_t y = 1; y <= columns; y++) {
                    const int32_t q = lj + y - 1, fq = first2[q];
                    const double change = LEAST(above[y], row[y - 1]) + 1.0;
                    if (fp == li && fq == lj) {
                        const double rename = label1[p] == label2[q] ? 0.0 : kind1[p] == kind2[q] ? soft : hard;
                        const double both = above[y - 1] + rename;
                        row[y] = LEAST(change, both);
                        known[q] = row[y];
                    } else {
                        const double both = split[fq - lj] + known[q];
                        row[y] = LEAST(change, both);
                    }
                }
            }
        }
    }
    const double distance = trees[(size_t)n * m - 1];
    free(trees);
    free(forest);
    return distance;
}
