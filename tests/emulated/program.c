/* tests/emulated/program.c - the program with a further device, for tests: --device emulated has memory of its own, runs operations late,
 * and pins memory of the host (late.h).  Linked with the whole program to tests/emulated/spillway; no other program has it.
 *
 * Environment: EMULATED_SEED, of the moments at which it runs operations; EMULATED_ORDER, a number of enum late_order; EMULATED_MOVES,
 * 1: experts change places at random between passes, and any number is copied; EMULATED_PIN, the number of the first call to pin
 * memory that is refused; EMULATED_MEMORY, its free memory in MiB; EMULATED_OPEN and EMULATED_OP, the numbers of the allocation and of
 * the operation that fail.  A finding of late.h is printed at the end, and the status is 99. */
#include "tests/emulated/host.h"

static struct late_device device;

static long number(const char *name)
{
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

static int open_emulated(struct kn_device **out, int nth)
{
    if (nth)
        return kn_fail(KN_ENODEV, "there is one emulated device");
    device = late_device_apart(kn_isa_best(), (uint64_t)number("EMULATED_SEED"));
    device.pins.refuse_at = (int)number("EMULATED_PIN");
    device.pins.refuse_all = true;
    device.order = (enum late_order)number("EMULATED_ORDER");
    device.faults.open_at = (int)number("EMULATED_OPEN");
    device.faults.op_at = (int)number("EMULATED_OP");
    late_watched = &device;
    late_moves = number("EMULATED_MOVES");
    device.free_bytes = (size_t)number("EMULATED_MEMORY") << 20;
    *out = &device.base;
    return 0;
}

__attribute__((constructor)) static void offer(void) { kn_device_offer("emulated", open_emulated); }

__attribute__((destructor)) static void report(void)
{
    host_free();
    if (device.pins.n)
        fprintf(stderr, "emulated device: memory is still pinned\n");
    if (late_found())
        fprintf(stderr, "emulated device: %s\n", late_found());
    if (device.pins.n || late_found())
        _exit(99);
}
