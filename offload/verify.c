/* Verification: every read of an expert is compared with the checksum that the expert must have.
 *
 * A checksum is that of the matrices as the kernels read them: interleaved, without the padding between them.  That
 * layout is the same for every instruction set, and for the pack file.  So the pack file's checksums also hold for the
 * model's own files, and the bytes are still in the cache of the core that has just interleaved them: the checksum adds
 * a twentieth to the time of interleaving.  Bytes of the file that the layout leaves out are never used.
 *
 *   expected   of a read from the pack file: the checksum in its table.  Of a read from the model's own files: the
 *              one learnt at the first read by this or an earlier process (heat.c), else the pack file's, else none:
 *              then the read is believed, unless the file was changed since it was opened (watch.c)
 *   wrong      the expert is read again: from the first copy, then from the second.  If both are wrong, from the
 *              model's own files instead of the pack file, else the expert fails, and the next request tries again
 *   blame      the copy with the wrong bytes is reported once.  A damaged mirror is not used any more.  If the first copy
 *              is damaged, this expert is read from the second from then on
 *
 * A first read that used both copies may have learnt the mirror's damage.  Such a checksum is not kept for later
 * processes, and if later the copies differ and only the second has it, the expert fails: either may be right.  From then
 * on its reads begin with the first copy, so that the second copy's bytes are not believed again. */
#include "offload/store.h"

static bool is_mirrored(const struct off_slot *slot)
{
    bool mirrored = false;
    for (int i = 0; i < OFF_JOBS; i++)
        mirrored |= slot->job[i].bytes && slot->job[i].mirrored;
    return mirrored;
}

/* The file with the expert's first matrix, or the pack file. */
static int file_of(const struct off_store *s, const struct off_slot *slot)
{
    int i = 0;
    while (!slot->packed && i < OFF_MATRICES - 1 && !s->expert[slot->expert].matrix[i].n_out)
        i++;
    return slot->packed ? s->n_file : s->expert[slot->expert].matrix[i].file;
}

/* ---- reports ----------------------------------------------------------------------------------------- */

/* An earlier read of the slot had wrong bytes, and this one has not: reports the copy to blame, and avoids it. */
static void blame(struct off_store *s, const struct off_slot *slot)
{
    int file = file_of(s, slot);
    if (slot->wrong_mirrored && slot->copy == OFF_COPY_FIRST)
        off_mirror_drop(s->mirror, file, "an expert in it is damaged");
    else if (slot->copy == OFF_COPY_SECOND && is_mirrored(slot)) {
        s->copy_of[slot->expert] = OFF_COPY_SECOND;
        if (!s->said_first)
            kn_say(KN_LOG_WARN,
                   "%s is damaged (expert %d, perhaps others): damaged experts are read from %s; restore the "
                   "file",
                   s->path[file], (int)slot->expert, off_mirror_path(s->mirror, file));
        s->said_first = true;
    } else if (!s->said_unstable) {
        kn_say(KN_LOG_WARN,
               "%s: a read of expert %d had wrong bytes, and the same read repeated had right ones: the disk, its "
               "connection or the memory is not reliable",
               s->path[file], (int)slot->expert);
        s->said_unstable = true;
    }
}

static void fail(struct off_store *s, struct off_slot *slot)
{
    int file = file_of(s, slot);
    if (!s->damaged && !off_watch_look(s->watch))
        kn_say(KN_LOG_ERROR,
               "%s: expert %d has other bytes than before (%s); requests that need it fail: restore "
               "the file and start again, or delete %s if its bytes are right",
               s->path[file], (int)slot->expert,
               off_watch_written(s->watch, file) ? "the file was written since then" : "the disk may be failing",
               s->heat_path ? s->heat_path : "its heat file");
    s->damaged = true;
    if (s->known[slot->expert] == OFF_KNOWN_MIXED) /* so that later reads meet the difference, too */
        s->copy_of[slot->expert] = OFF_COPY_FIRST;
    slot->status = KN_ECORRUPT;
    slot->state = SLOT_BAD;
}

/* ---- the verdict --------------------------------------------------------------------------------------- */

/* Whether a second copy has this expert where the slot has read it. */
static bool has_second(const struct off_store *s, const struct off_slot *slot)
{
    bool has = off_mirror_lives(s->mirror);
    for (int i = 0; i < OFF_JOBS; i++) {
        const struct off_job *job = &slot->job[i];
        has = has && (!job->bytes || job->offset + job->bytes <= off_mirror_bytes(s->mirror, job->file));
    }
    return has;
}

/* Reads the expert again after a read with wrong bytes, or reports that there is no other way to read it. */
static void reject(struct off_store *s, struct off_slot *slot)
{
    s->stats.damaged_reads++;
    slot->wrong |= (uint8_t)(1u << slot->copy);
    slot->wrong_mirrored |= is_mirrored(slot);
    if (!(slot->wrong & 1u << OFF_COPY_FIRST))
        off_slot_read_again(s, slot, OFF_COPY_FIRST);
    else if (!(slot->wrong & 1u << OFF_COPY_SECOND) && has_second(s, slot))
        off_slot_read_again(s, slot, OFF_COPY_SECOND);
    else if (slot->packed)
        off_slot_read_unpacked(s, slot);
    else
        fail(s, slot);
}

/* Whether a read from the model's own files is right; learns its checksum if none is known. */
static bool is_right(struct off_store *s, const struct off_slot *slot, uint64_t is)
{
    int32_t e = slot->expert;
    bool mirrored = is_mirrored(slot);
    if (s->known[e] == OFF_KNOWN_NOT) {
        if (off_watch_changed(s->watch))
            return false;
        s->check[e] = is;
        s->known[e] = OFF_KNOWN_MIXED;
    }
    if (is != s->check[e] || (s->known[e] == OFF_KNOWN_MIXED && slot->wrong & 1u << OFF_COPY_FIRST))
        return false;
    if (!mirrored)
        s->known[e] = OFF_KNOWN_OWN;
    return true;
}

void off_slot_verify(struct off_store *s, struct off_slot *slot)
{
    uint64_t is = off_check_expert(slot->check);
    if (!(slot->packed ? is == s->extent[slot->expert].check : is_right(s, slot, is))) {
        reject(s, slot);
        return;
    }
    if (slot->wrong)
        blame(s, slot);
    slot->wrong = 0;
    slot->wrong_mirrored = false;
    slot->state = SLOT_READY;
}
