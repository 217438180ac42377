/* engine/serve/host_names.c - the list of --allowed-host, and the names and addresses of this machine.
 *
 * Addresses are compared as addresses: [::ffff:127.0.0.1] is 127.0.0.1.  The machine's addresses may change while the
 * server runs, so they are read at each request that names an address other than those of the loopback. */
#include "engine/serve/host_names.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define MOST_NAMES 64
#define NAME_BYTES 256

struct eng_host_names {
    char *text, *listen;
    const char *name[MOST_NAMES]; /* [n] in text */
    int n;
    bool any;
    char machine[NAME_BYTES]; /* "": unknown */
};

/* ---- addresses ------------------------------------------------------------------------------- */

/* Reads an address as IPv6; an IPv4 address is mapped. */
static bool read_address(const char *text, struct in6_addr *out)
{
    struct in_addr four;
    if (inet_pton(AF_INET6, text, out) == 1)
        return true;
    if (inet_pton(AF_INET, text, &four) != 1)
        return false;
    *out = (struct in6_addr){ .s6_addr = { [10] = 0xff, [11] = 0xff } };
    memcpy(&out->s6_addr[12], &four, sizeof four);
    return true;
}

static bool is_loopback(const struct in6_addr *a)
{
    return IN6_IS_ADDR_LOOPBACK(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127);
}

static bool is_of_interface(const struct in6_addr *a, const struct sockaddr *other)
{
    if (other && other->sa_family == AF_INET6)
        return !memcmp(a, &((const struct sockaddr_in6 *)(const void *)other)->sin6_addr, sizeof *a);
    return other && other->sa_family == AF_INET && IN6_IS_ADDR_V4MAPPED(a) &&
           !memcmp(&a->s6_addr[12], &((const struct sockaddr_in *)(const void *)other)->sin_addr, 4);
}

static bool is_of_machine(const struct in6_addr *a)
{
    struct ifaddrs *all;
    bool found = false;
    if (is_loopback(a))
        return true;
    if (getifaddrs(&all))
        return false;
    for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next)
        found = is_of_interface(a, i->ifa_addr);
    freeifaddrs(all);
    return found;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Copies the name or address of a Host header: without a port, brackets and a last dot. */
static bool copy_name(char *out, size_t size, const char *host)
{
    size_t n = host[0] == '[' ? strcspn(++host, "]") : strcspn(host, ":");
    n -= n && host[n - 1] == '.';
    if (n == 0 || n >= size)
        return false;
    memcpy(out, host, n);
    out[n] = 0;
    return true;
}

static bool equal(const char *name, const char *other)
{
    struct in6_addr a, b;
    return !strcasecmp(name, other) || (read_address(name, &a) && read_address(other, &b) && !memcmp(&a, &b, sizeof a));
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n > m && !strcasecmp(name + n - m, end);
}

static bool is_name_of_machine(const struct eng_host_names *h, const char *name)
{
    size_t whole = strlen(h->machine), first = strcspn(h->machine, ".");
    if (whole == 0 || strncasecmp(name, h->machine, first) != 0)
        return false;
    return !name[first] || !strcasecmp(name + first, ".local") || !strcasecmp(name, h->machine);
}

bool eng_host_names_has(const struct eng_host_names *h, const char *host)
{
    struct in6_addr a;
    char name[NAME_BYTES];
    if (!host || h->any)
        return true;
    if (!copy_name(name, sizeof name, host))
        return false;
    if (!strcasecmp(name, "localhost") || ends_with(name, ".localhost") || equal(name, h->listen) ||
        is_name_of_machine(h, name))
        return true;
    for (int i = 0; i < h->n; i++)
        if (equal(name, h->name[i]))
            return true;
    return read_address(name, &a) && is_of_machine(&a);
}

/* ---- open and close -------------------------------------------------------------------------- */

/* Adds an entry of --allowed-host, without its brackets. */
static int add_name(struct eng_host_names *h, char *name)
{
    struct in6_addr a;
    size_t n = strlen(name);
    bool bracketed = n > 2 && name[0] == '[' && name[n - 1] == ']';
    if (bracketed) {
        name[n - 1] = 0;
        name++;
    }
    bool is_address = read_address(name, &a);
    if (!name[0] || h->n == MOST_NAMES || bracketed > is_address || (!is_address && strpbrk(name, " \t/:[]@")))
        return kn_fail(KN_EINVAL,
                       "--allowed-host takes up to %d comma separated names or addresses without http:// and without "
                       "a port, or *, not '%s'",
                       MOST_NAMES, name);
    h->any = h->any || !strcmp(name, "*");
    h->name[h->n++] = name;
    return 0;
}

int eng_host_names_open(struct eng_host_names **out, const char *listen, const char *allowed)
{
    struct eng_host_names *h = kn_calloc(1, sizeof *h);
    int error = 0;
    if (!h || !(h->listen = kn_strdup(listen)) || !(h->text = kn_strdup(allowed ? allowed : ""))) {
        eng_host_names_close(h);
        return kn_fail(KN_ENOMEM, "no memory for the server");
    }
    if (gethostname(h->machine, sizeof h->machine - 1))
        h->machine[0] = 0;
    char *left = allowed ? h->text : NULL;
    for (char *name; !error && (name = strsep(&left, ","));)
        error = add_name(h, name);
    if (error) {
        eng_host_names_close(h);
        return error;
    }
    *out = h;
    return 0;
}

void eng_host_names_close(struct eng_host_names *h)
{
    if (!h)
        return;
    kn_free(h->text);
    kn_free(h->listen);
    kn_free(h);
}
