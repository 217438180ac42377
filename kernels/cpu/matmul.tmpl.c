/* kernels/cpu/matmul.tmpl.c - y = W x for 16 weight rows at a time.
 *
 * Input: panels (formats.h) and activation rows.  Output: y rows, with the bits that reference_matmul.c
 * gives.  One lane is one weight row, so no sum crosses lanes; an activation is broadcast from memory
 * to all lanes.
 *
 * A panel is read once for a group of activation rows.  If the group is more than one tile, expensive
 * unpacking is done once for the group, into a few KiB that stay in the L1 cache.
 *
 * Bytes against operations.  One row of Q4_K: 144 bytes for 256 products, so memory is the bound.  A
 * core reaches its full read rate (17 GB/s where this was measured) only with software prefetch,
 * because its out-of-order window is shorter than a block.  Many rows: 64 instructions of 64 products
 * for a block and activation row, two per cycle, and half as many again for scales, so 3 GHz allow 250
 * GMAC/s.  Memory is idle while a panel is read again from the cache.  So a tile is as large as
 * registers allow, and several tiles go through a few KiB of the panel before the next part is
 * prefetched. */
#include "kernels/cpu/simd_matmul.h"

/* Panels are the outermost loop, so that a panel is read from memory once and from the cache for
 * further groups of rows. */
void KN_FN(kn_matmul)(const struct kn_matmul *m, int panel0, int panel1)
{
    const struct kn_format_info *info = kn_format_info(m->w.format);
    const int n_panel = info->act == KN_ACT_F32 ? FLOAT_PANELS : 1;
    const int group = info->act == KN_ACT_Q256 ? GROUP_256 : GROUP;
    struct job j;

    j.format = m->w.format;
    j.panel_bytes = KN_PANEL * kn_row_bytes(m->w.format, m->w.n_in);
    j.n_in = m->w.n_in;
    j.n_block = m->w.n_in / kn_panel_values(info);
    j.scale = m->w.scale;
    kn_assert(j.panel_bytes > 0 && panel0 >= 0 && panel1 <= kn_ceil_div(m->w.n_out, KN_PANEL));
    kn_assert(info->act == KN_ACT_F32 || ((uintptr_t)m->x | m->x_stride) % 16 == 0);
    for (int panel = panel0; panel < panel1; panel += j.n_panel) {
        j.n_panel = kn_min(n_panel, panel1 - panel);
        j.w = (const uint8_t *)m->w.data + (size_t)panel * j.panel_bytes;
        j.n_lane = kn_min(KN_PANEL * j.n_panel, m->w.n_out - panel * KN_PANEL);
        for (int row = 0; row < m->n_row; row += group) {
            j.n = kn_min(group, m->n_row - row);
            for (int i = 0; i < j.n; i++) {
                int from = m->x_row ? m->x_row[row + i] : row + i;
                int to = m->y_row ? m->y_row[row + i] : row + i;

                j.x[i] = (const uint8_t *)m->x + (size_t)from * m->x_stride;
                j.y[i] = m->y + (size_t)to * m->y_stride + (size_t)panel * KN_PANEL;
            }
            if (info->act == KN_ACT_Q256)
                KN_FN(kn_job_256)(&j);
            else if (info->act == KN_ACT_Q32)
                KN_FN(kn_job_32)(&j);
            else
                KN_FN(kn_job_floats)(&j);
        }
    }
}
