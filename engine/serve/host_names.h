/* engine/serve/host_names.h - the host names that the server answers for.  Internal to engine.
 *
 * A page of another site can make a browser send requests to this server by letting the site's own name resolve to this
 * machine (DNS rebinding).  The browser then takes the server for a part of that site, and its pages may read the
 * answers.  Such a request carries the site's name in its Host header.  So the server answers only for
 *
 *   - localhost and names that end with .localhost, this machine's host name, alone or with .local behind it
 *   - addresses of this machine
 *   - the name that it listens on (--host), and the names of --allowed-host */
#ifndef ENGINE_SERVE_HOST_NAMES_H
#define ENGINE_SERVE_HOST_NAMES_H

#include "kernels/core.h"

struct eng_host_names;

/* listen: the value of --host.  allowed: that of --allowed-host, comma separated names or addresses without a port, or
 * "*" for all; or NULL. */
int eng_host_names_open(struct eng_host_names **out, const char *listen, const char *allowed);
void eng_host_names_close(struct eng_host_names *h);

/* host: a valid value of a Host header, with or without a port; or NULL, for a request of HTTP/1.0 without that header,
 * which no browser sends: true. */
bool eng_host_names_has(const struct eng_host_names *h, const char *host);

#endif
