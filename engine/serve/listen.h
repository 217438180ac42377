/* engine/serve/listen.h - the socket that the server listens on.  Internal to engine. */
#ifndef ENGINE_SERVE_LISTEN_H
#define ENGINE_SERVE_LISTEN_H

#include "kernels/core.h"

/* Listens on the first address of the host that works.  number: of the port; 0: any.  Sets *out to the socket, *bound to the
 * port's number, and *loopback if only this machine can reach it. */
int eng_listen(const char *host, int number, int *out, int *bound, bool *loopback);

#endif
