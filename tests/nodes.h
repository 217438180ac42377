/* tests/nodes.h - simulates NUMA nodes on any machine: the node of each processor is set through the replaceable
 * system calls, and the requested placement of memory is recorded. The system's answer does not matter: memory
 * bound to a node that does not exist stays anywhere.
 *
 *     nodes_set(2);        CPU i is on node i % 2; the nodes are numbered 3 and 5
 *     ...                  nodes_of(p, bytes): the node's number, -1: bound to none, -2: to several
 *     nodes_set(1);        the real machine; kn_io_set() has been called */
#ifndef TESTS_NODES_H
#define TESTS_NODES_H

#include <pthread.h>

#include "kernels/core.h"

#define NODES_RANGE   4096
#define NODES_NAME(i) (3 + 2 * (i))

static struct {
    int n_node, n;
    pthread_mutex_t lock;
    struct {
        const uint8_t *begin, *end;
        int node;
    } range[NODES_RANGE];
} nodes = { .lock = PTHREAD_MUTEX_INITIALIZER };

static inline void nodes_note(const void *p, size_t bytes, int node)
{
    pthread_mutex_lock(&nodes.lock);
    kn_assert(nodes.n < NODES_RANGE);
    nodes.range[nodes.n].begin = p;
    nodes.range[nodes.n].end = (const uint8_t *)p + bytes;
    nodes.range[nodes.n++].node = node;
    pthread_mutex_unlock(&nodes.lock);
}

static inline void nodes_bind(void *p, size_t bytes, int node) { nodes_note(p, bytes, node); }

static inline void *nodes_map(size_t bytes, int node)
{
    void *p = kn_io_system.map(bytes, -1);
    if (p)
        nodes_note(p, bytes, node);
    return p;
}

static inline void nodes_cpu(int *node, int n_cpu)
{
    for (int cpu = 0; cpu < n_cpu; cpu++)
        node[cpu] = NODES_NAME(cpu % nodes.n_node);
}

static inline void nodes_set(int n_node)
{
    static struct kn_io io;
    io = kn_io_system;
    io.map = nodes_map;
    io.bind = nodes_bind;
    io.cpu_nodes = nodes_cpu;
    nodes.n_node = n_node;
    nodes.n = 0;
    kn_io_set(n_node > 1 ? &io : NULL);
}

/* The last request for each byte counts. */
static inline int nodes_of(const void *p, size_t bytes)
{
    int found = -3;
    for (const uint8_t *at = p, *end = at + bytes; at < end; at += 4096 - (uintptr_t)at % 4096) {
        int node = -1;
        for (int i = 0; i < nodes.n; i++)
            if (nodes.range[i].begin <= at && at < nodes.range[i].end)
                node = nodes.range[i].node;
        found = found == -3 || found == node ? node : -2;
    }
    return found;
}

#endif
