/* tests/emulated/clocks.h - vector clocks: which operation happened before which, and accesses of one piece of memory that nothing
 * orders.
 *
 * An actor is the host, with all its threads, or a queue.  Each counts its own steps.  A clock says of every actor up to which step
 * its work is known to be done; an operation may touch memory if its clock has the last writes there, and to write, the last reads,
 * too.  So a missing event is found in every order in which the operations happen to run.
 *
 * Memory is kept in pages, each a list of runs of bytes with the same last accesses, exact to the byte. */
#ifndef TESTS_EMULATED_CLOCKS_H
#define TESTS_EMULATED_CLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core.h"

#define CLOCK_ACTORS  64
#define CLOCK_READERS 8 /* actors that read a byte and that nothing orders, at most */
#define CLOCK_PAGE    4096

struct clock {
    uint32_t at[CLOCK_ACTORS];
};

static inline void clock_join(struct clock *c, const struct clock *other)
{
    for (int i = 0; i < CLOCK_ACTORS; i++)
        c->at[i] = c->at[i] > other->at[i] ? c->at[i] : other->at[i];
}

/* The last accesses of some bytes: steps of actors; 0: none. */
struct clock_last {
    uint32_t write, read[CLOCK_READERS];
    uint8_t writer, reader[CLOCK_READERS];
};

struct clock_run {
    uint32_t end; /* in the page; the run begins where the one before ends */
    struct clock_last last;
};

struct clock_page {
    uintptr_t number;
    int n, room;
    struct clock_run *run;
};

struct clock_memory {
    struct clock_page **table; /* [room], found by address */
    size_t n, room;
};

static struct clock_page **clock_find(const struct clock_memory *m, uintptr_t number)
{
    size_t i = kn_mix(number) % m->room;
    while (m->table[i] && m->table[i]->number != number)
        i = (i + 1) % m->room;
    return &m->table[i];
}

static void clock_make_room(struct clock_memory *m)
{
    struct clock_memory old = *m;
    if (2 * m->n < m->room)
        return;
    m->room = 4 * m->room + 1024;
    m->table = calloc(m->room, sizeof *m->table);
    for (size_t i = 0; i < old.room; i++)
        if (old.table[i])
            *clock_find(m, old.table[i]->number) = old.table[i];
    free(old.table);
}

/* The page; NULL: it was never touched, and `make` is false. */
static struct clock_page *clock_page_of(struct clock_memory *m, uintptr_t number, bool make)
{
    if (!make && !m->room)
        return NULL;
    clock_make_room(m);
    struct clock_page **at = clock_find(m, number);
    if (*at || !make)
        return *at;
    *at = calloc(1, sizeof **at);
    **at = (struct clock_page){ .number = number, .n = 1, .room = 4, .run = calloc(4, sizeof *(*at)->run) };
    (*at)->run[0].end = CLOCK_PAGE;
    m->n++;
    return *at;
}

/* Returns the number of the run that begins at this offset; cuts one in two if none does. */
static int clock_cut(struct clock_page *p, uint32_t offset)
{
    int i = 0;
    while (i < p->n && p->run[i].end <= offset)
        i++;
    if (i == p->n || offset == (i ? p->run[i - 1].end : 0))
        return i;
    if (p->n == p->room)
        p->run = realloc(p->run, (size_t)(p->room *= 2) * sizeof *p->run);
    memmove(p->run + i + 1, p->run + i, (size_t)(p->n - i) * sizeof *p->run);
    p->n++;
    p->run[i].end = offset;
    return i + 1;
}

static void clock_join_runs(struct clock_page *p)
{
    int n = 0;
    for (int i = 1; i < p->n; i++)
        if (memcmp(&p->run[n].last, &p->run[i].last, sizeof p->run[n].last) == 0)
            p->run[n].end = p->run[i].end;
        else
            p->run[++n] = p->run[i];
    p->n = n + 1;
}

static bool clock_has(const struct clock *c, int actor, uint32_t step) { return step <= c->at[actor]; }

/* Notes a read by the actor; those that it has seen need no longer be known. */
static void clock_note_read(struct clock_last *l, int actor, const struct clock *c)
{
    struct clock_last kept = { .write = l->write, .writer = l->writer };
    int n = 0;
    for (int i = 0; i < CLOCK_READERS && l->read[i]; i++)
        if (l->reader[i] != actor && !clock_has(c, l->reader[i], l->read[i])) {
            kept.read[n] = l->read[i];
            kept.reader[n++] = l->reader[i];
        }
    if (n == CLOCK_READERS)
        abort();
    kept.read[n] = c->at[actor];
    kept.reader[n] = (uint8_t)actor;
    *l = kept;
}

static bool clock_note(struct clock_last *l, bool writes, int actor, const struct clock *c)
{
    bool ordered = clock_has(c, l->writer, l->write);
    if (!writes) {
        clock_note_read(l, actor, c);
        return ordered;
    }
    for (int i = 0; i < CLOCK_READERS; i++)
        ordered &= clock_has(c, l->reader[i], l->read[i]);
    *l = (struct clock_last){ .write = c->at[actor], .writer = (uint8_t)actor };
    return ordered;
}

/* Notes an access by the actor, whose clock is c.  Without `make` pages that were never touched are left out.  False: an earlier
 * access that conflicts with it is not known to be done. */
static inline bool clock_access(struct clock_memory *m, const void *from, size_t bytes, bool writes, int actor,
                                const struct clock *c, bool make)
{
    bool ordered = true;
    for (uintptr_t at = (uintptr_t)from, end = at + bytes, next; at < end; at = next) {
        struct clock_page *p = clock_page_of(m, at / CLOCK_PAGE, make);
        next = (at / CLOCK_PAGE + 1) * CLOCK_PAGE;
        next = next < end ? next : end;
        if (!p)
            continue;
        int i = clock_cut(p, (uint32_t)(at % CLOCK_PAGE)), last = clock_cut(p, (uint32_t)((next - 1) % CLOCK_PAGE + 1));
        for (; i < last; i++)
            ordered &= clock_note(&p->run[i].last, writes, actor, c);
        clock_join_runs(p);
    }
    return ordered;
}

/* Accesses of the memory are noted from now on, also without `make`. */
static inline void clock_watch(struct clock_memory *m, const void *from, size_t bytes)
{
    for (uintptr_t p = (uintptr_t)from / CLOCK_PAGE; bytes && p <= ((uintptr_t)from + bytes - 1) / CLOCK_PAGE; p++)
        clock_page_of(m, p, true);
}

/* The pages are closed; their next accesses are the first. */
static inline void clock_forget(struct clock_memory *m, const void *from, size_t bytes)
{
    for (uintptr_t p = (uintptr_t)from / CLOCK_PAGE; p < ((uintptr_t)from + bytes) / CLOCK_PAGE; p++) {
        struct clock_page *page = clock_page_of(m, p, false);
        if (page) {
            page->n = 1;
            page->run[0] = (struct clock_run){ .end = CLOCK_PAGE };
        }
    }
}

static inline void clock_free(struct clock_memory *m)
{
    for (size_t i = 0; i < m->room; i++)
        if (m->table[i]) {
            free(m->table[i]->run);
            free(m->table[i]);
        }
    free(m->table);
    *m = (struct clock_memory){ 0 };
}

#endif
