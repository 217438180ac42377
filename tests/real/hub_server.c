/* tests/real/hub_server.c - the tests' hub on the loopback as a program, for other tools (tests/real/hub.sh).
 * Usage: hub_server PORT FILE...  It serves the files as repository Org/Tiny until its input ends. */
#include "tests/engine/hub/hub_server.h"

#define LARGE 100000 /* bytes from which a file is served as a large one */

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    for (int i = 2; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        const char *slash = strrchr(argv[i], '/');
        if (!f || fseek(f, 0, SEEK_END) < 0)
            return 1;
        size_t n = (size_t)ftell(f);
        char *bytes = malloc(n + 1);
        rewind(f);
        if (!bytes || fread(bytes, 1, n, f) != n)
            return 1;
        fclose(f);
        hub_server_add(slash ? slash + 1 : argv[i], bytes, n, n >= LARGE);
        free(bytes);
    }
    hub_server_start("Org/Tiny", atoi(argv[1]));
    printf("ready\n");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    hub_server_stop();
    return 0;
}
