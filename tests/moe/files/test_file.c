/* GGUF files: a valid file is read, an invalid one is refused in one line that names file, field
 * and reason; a failing system call leaks nothing.
 *
 * One thread: not under MODE=tsan. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "tests/moe/gguf_bytes.h"
#include "tests/faults.h"
#include "tests/moe/folder.h"

#define LEN(a)   ((int)(sizeof(a) / sizeof *(a)))
#define DIM(...) ((const uint64_t[8]){ __VA_ARGS__ })

static int setup(void **state)
{
    faults_reset();
    return folder_make(state);
}

/* Checks that the file is refused with this code, in one line with its name, the code's text and `says`. */
static void assert_refused(const char *what, const char *name, int code, const char *says)
{
    struct moe_file *f = (void *)0x1;
    faults_reset();
    int got = moe_file_open(&f, name);
    if (got != code || faults.n_line != 1 || f != (void *)0x1)
        fail_msg("%s: got %d in %d lines (%s), want %d", what, got, faults.n_line, faults.line, code);
    bool kind_said = code == KN_EINVAL || strstr(faults.line, kn_error_text(code));
    if (!strstr(faults.line, name) || !strstr(faults.line, says) || !kind_said)
        fail_msg("%s: '%s' lacks file, '%s' or '%s'", what, faults.line, says, kn_error_text(code));
    assert_true(faults_clean());
}

/* ---- a valid file ---------------------------------------------------------------------------- */

static void make_good(struct gguf *g, uint32_t version)
{
    gguf_header(g, version, 2, 9);
    gguf_string_value(g, "general.architecture", "qwen3moe");
    gguf_u32_value(g, "general.alignment", 64);
    gguf_f32_value(g, "f", 0.5f);
    gguf_key(g, "u64", MOE_U64);
    gguf_u64(g, UINT64_MAX);
    gguf_key(g, "i8", MOE_I8);
    gguf_u8(g, 0xff);
    gguf_key(g, "yes", MOE_BOOL);
    gguf_u8(g, 1);
    gguf_array(g, "tokens", MOE_STRING, 3);
    gguf_string(g, "a");
    gguf_string(g, "");
    gguf_string(g, "\xc4\xa0z");
    gguf_array(g, "scores", MOE_F32, 2);
    gguf_f32(g, 1);
    gguf_f32(g, -2);
    gguf_array(g, "none", MOE_U8, 0);
    gguf_tensor(g, "a.weight", 2, DIM(32, 3), 8, 0); /* 102 bytes of Q8_0 */
    gguf_tensor(g, "b.weight", 1, DIM(5), 0, 128);
    while (g->n % 64)
        gguf_u8(g, 0);
    for (int i = 0; i < 148; i++)
        gguf_u8(g, (uint8_t)i);
}

static void a_good_file_is_read(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        struct gguf g = { 0 };
        struct moe_file *f;
        struct moe_string s;
        int64_t i;
        double x;
        bool yes;
        make_good(&g, version);
        gguf_save(&g, path);
        assert_int_equal(moe_file_open(&f, path), 0);
        assert_string_equal(moe_file_path(f), path);
        assert_int_equal(moe_file_files(f)->n_file, 1);
        assert_int_equal(moe_file_value_count(f), 9);
        assert_int_equal(moe_file_tensor_count(f), 2);
        assert_int_equal(moe_file_string(f, "general.architecture", &s), 1);
        assert_true(moe_string_is(s, "qwen3moe"));
        assert_int_equal(moe_file_int(f, "i8", -1, 5, &i), 1);
        assert_int_equal(i, -1);
        assert_int_equal(moe_file_float(f, "f", &x), 1);
        assert_true(x == 0.5);
        assert_int_equal(moe_file_bool(f, "yes", &yes), 1);
        assert_true(yes);

        const struct moe_value *v = moe_file_find(f, "tokens");
        assert_int_equal(v->n, 3);
        assert_true(moe_string_is(((const struct moe_string *)v->data)[2], "\xc4\xa0z"));
        assert_true(moe_value_float(moe_file_find(f, "scores"), 1) == -2);
        assert_int_equal(moe_file_find(f, "none")->n, 0);
        assert_null(moe_file_find(f, "token"));

        const struct moe_tensor *t = moe_file_find_tensor(f, "b.weight");
        assert_int_equal(t->offset % 64, 0);
        assert_int_equal(t->offset + t->bytes, g.n);
        assert_int_equal(moe_file_tensor(f, 0)->bytes, 102);
        assert_int_equal(t->dim[1] * t->dim[2] * t->dim[3], 1);
        assert_null(moe_file_find_tensor(f, "c.weight"));
        moe_file_close(f);
        gguf_free(&g);
        assert_true(faults_clean());
    }
}

static void scalars_are_checked(void **state)
{
    (void)state;
    struct gguf g = { 0 };
    struct moe_file *f;
    struct moe_string s = { 0 };
    int64_t i = 77;
    double x = 77;
    bool yes = false;
    make_good(&g, 3);
    gguf_save(&g, path);
    assert_int_equal(moe_file_open(&f, path), 0);
    assert_int_equal(moe_file_int(f, "absent", 0, 9, &i), 0);
    assert_int_equal(moe_file_float(f, "absent", &x), 0);
    assert_int_equal(moe_file_bool(f, "absent", &yes), 0);
    assert_int_equal(moe_file_string(f, "absent", &s), 0);
    assert_int_equal(faults.n_line, 0);

    assert_int_equal(moe_file_int(f, "i8", 0, 9, &i), KN_ECORRUPT);
    assert_non_null(strstr(faults.line, "model.gguf: file is corrupt: metadata 'i8': -1 is not"));
    assert_int_equal(moe_file_int(f, "u64", 0, INT64_MAX - 1, &i), KN_ECORRUPT);
    assert_int_equal(moe_file_int(f, "u64", -9, 9, &i), KN_ECORRUPT); /* 2^64 - 1 is not -1 */
    assert_int_equal(moe_file_int(f, "f", 0, 9, &i), KN_ECORRUPT);
    assert_int_equal(moe_file_int(f, "yes", 0, 9, &i), KN_ECORRUPT);
    assert_int_equal(moe_file_int(f, "scores", 0, 9, &i), KN_ECORRUPT);
    assert_int_equal(moe_file_float(f, "i8", &x), KN_ECORRUPT);
    assert_int_equal(moe_file_bool(f, "i8", &yes), KN_ECORRUPT);
    assert_int_equal(moe_file_string(f, "tokens", &s), KN_ECORRUPT);
    assert_int_equal(faults.n_line, 9);
    assert_true(i == 77 && x == 77 && !yes && !s.data);
    moe_file_close(f);
    gguf_free(&g);
}

/* A vocabulary of 150,000 takes about one read per megabyte, not one per token. */
static void large_headers_take_few_reads(void **state)
{
    (void)state;
    struct gguf g = { 0 };
    struct moe_file *f;
    char text[64];
    gguf_header(&g, 3, 5000, 1);
    gguf_array(&g, "tokens", MOE_STRING, 150000);
    for (int i = 0; i < 150000; i++) {
        snprintf(text, sizeof text, "token number %d", i);
        gguf_string(&g, text);
    }
    for (int i = 0; i < 5000; i++) {
        snprintf(text, sizeof text, "blk.%d.weight", i);
        gguf_tensor(&g, text, 1, DIM(8), 0, 32 * (uint64_t)(4999 - i)); /* descending */
    }
    gguf_data(&g, 5000 * 32);
    gguf_save(&g, path);
    faults_reset();
    assert_int_equal(moe_file_open(&f, path), 0);
    /* The fake reads return about a twelfth of each request. */
    assert_in_range(faults.calls[FAULT_READ], 1, 12 * (g.n / (1 << 20) + 2));
    const struct moe_string *tokens = moe_file_find(f, "tokens")->data;
    for (int i = 0; i < 150000; i += 7) {
        snprintf(text, sizeof text, "token number %d", i);
        assert_true(moe_string_is(tokens[i], text));
    }
    for (int i = 0; i < 5000; i++) {
        snprintf(text, sizeof text, "blk.%d.weight", i);
        assert_ptr_equal(moe_file_find_tensor(f, text), moe_file_tensor(f, (size_t)i));
    }
    moe_file_close(f);
    gguf_free(&g);
}

/* ---- invalid files --------------------------------------------------------------------------- */

static const uint64_t counts[] = {
    1, UINT64_C(1) << 31, UINT32_MAX, UINT64_C(1) << 63, UINT64_MAX,
};

static void counts_are_not_believed(void **state)
{
    (void)state;
    static const uint32_t items[] = { MOE_U8, MOE_U64, MOE_STRING };
    struct gguf g = { 0 };
    for (int c = 0; c < LEN(counts); c++) {
        bool absurd = counts[c] > UINT64_C(1) << 48;
        int code = absurd ? KN_ECORRUPT : KN_ESHORT;

        gguf_header(&g, 3, 0, counts[c]);
        gguf_save(&g, path);
        assert_refused("n_value", path, KN_ESHORT, "metadata 1 of ");
        gguf_free(&g);

        gguf_header(&g, 3, counts[c], 0);
        gguf_save(&g, path);
        assert_refused("n_tensor", path, KN_ESHORT, "tensor 1 of ");
        gguf_free(&g);

        gguf_header(&g, 3, 0, 1);
        gguf_u64(&g, counts[c]); /* the length of a key */
        gguf_save(&g, path);
        assert_refused("key length", path, code, "metadata 1 of 1");
        gguf_free(&g);

        gguf_header(&g, 3, 0, 1);
        gguf_key(&g, "name", MOE_STRING);
        gguf_u64(&g, counts[c]);
        gguf_save(&g, path);
        assert_refused("string length", path, code, "metadata 'name'");
        gguf_free(&g);

        for (int i = 0; i < LEN(items); i++) {
            gguf_header(&g, 3, 0, 1);
            gguf_array(&g, "list", items[i], counts[c]);
            gguf_save(&g, path);
            assert_refused("array", path, code, "metadata 'list'");
            gguf_free(&g);
        }
        gguf_header(&g, 3, 1, 0);
        gguf_u64(&g, counts[c]); /* the length of a tensor's name */
        gguf_save(&g, path);
        assert_refused("name length", path, code, "tensor 1 of 1");
        gguf_free(&g);
    }
    gguf_header(&g, 3, 0, 0);
    gguf_save(&g, path);
    struct moe_file *f;
    assert_int_equal(moe_file_open(&f, path), 0);
    assert_int_equal(moe_file_tensor_count(f) + moe_file_value_count(f), 0);
    assert_null(moe_file_find(f, "a"));
    moe_file_close(f);
    gguf_free(&g);
}

static void headers_that_are_no_gguf(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        uint32_t version;
        const char *says;
    } kind[] = {
        { "version 0", 0, "version 0" },
        { "version 1", 1, "version 1" },
        { "version 4", 4, "version 4" },
        { "big endian", UINT32_C(3) << 24, "big-endian" },
    };
    struct gguf g = { 0 };
    for (int i = 0; i < LEN(kind); i++) {
        gguf_header(&g, kind[i].version, 0, 0);
        gguf_save(&g, path);
        assert_refused(kind[i].what, path, KN_EUNSUPPORTED, kind[i].says);
        gguf_free(&g);
    }
    gguf_bytes(&g, "\x1b]0;\nowned, by a file's first bytes", 32);
    gguf_save(&g, path);
    assert_refused("magic", path, KN_EUNSUPPORTED, "\\x1b]0;");
    gguf_free(&g);
    gguf_bytes(&g, "version https://git-lfs.github.com/spec/v1\noid sha256:", 54);
    gguf_save(&g, path);
    assert_refused("git-lfs", path, KN_EUNSUPPORTED, "git lfs pull fetches it");
    gguf_free(&g);
    gguf_save(&g, path);
    assert_refused("empty", path, KN_ESHORT, "header");

    struct moe_file *f;
    faults_reset();
    assert_int_equal(moe_file_open(&f, folder), KN_ENOENT);
    assert_non_null(strstr(faults.line, "no config.json"));
    snprintf(path, sizeof path, "%s/absent.gguf", folder);
    assert_int_equal(moe_file_open(&f, path), KN_ENOENT);
    faults_reset();
    snprintf(path, sizeof path, "%s/pipe.gguf", folder);
    assert_int_equal(mkfifo(path, 0600), 0); /* has no writer; the open must not wait for one */
    assert_int_equal(moe_file_open(&f, path), KN_EINVAL);
    assert_non_null(strstr(faults.line, "neither a file nor a folder"));
    unlink(path);
    snprintf(path, sizeof path, "%s/model.gguf", folder);
}

/* One metadata entry with one fault. */
static void values_that_are_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *what, *key;
        uint32_t type, item;
        uint64_t word;
        int code;
        const char *says;
    } kind[] = {
        { "alignment 0", "general.alignment", MOE_U32, 0, 0, KN_ECORRUPT, "0 is no power" },
        { "alignment 24", "general.alignment", MOE_U32, 0, 24, KN_ECORRUPT, "24 is no power" },
        { "alignment 4", "general.alignment", MOE_U32, 0, 4, KN_ECORRUPT, "4 is no multiple of 8" },
        { "alignment 2^32-1", "general.alignment", MOE_U32, 0, UINT32_MAX, KN_ECORRUPT, "power" },
        { "alignment u64", "general.alignment", MOE_U64, 0, 32, KN_ECORRUPT, "32-bit unsigned" },
        { "type 13", "x", 13, 0, 0, KN_ECORRUPT, "value type 13" },
        { "type -1", "x", UINT32_MAX, 0, 0, KN_ECORRUPT, "value type 4294967295" },
        { "item type 13", "x", MOE_ARRAY, 13, 1, KN_ECORRUPT, "value type 13" },
        { "nested array", "x", MOE_ARRAY, MOE_ARRAY, 1, KN_EUNSUPPORTED, "array of arrays" },
        { "boolean 2", "x", MOE_BOOL, 0, 2, KN_ECORRUPT, "a boolean is 2" },
        { "empty key", "", MOE_U32, 0, 0, KN_ECORRUPT, "key is empty" },
        { "escapes", "a\n\x1b[2J\xff", 13, 0, 0, KN_ECORRUPT, "'a\\x0a\\x1b[2J\\xff'" },
    };
    struct gguf g = { 0 };
    for (int i = 0; i < LEN(kind); i++) {
        gguf_header(&g, 3, 0, 1);
        gguf_key(&g, kind[i].key, kind[i].type);
        if (kind[i].type == MOE_ARRAY)
            gguf_u32(&g, kind[i].item);
        gguf_u64(&g, kind[i].word);
        gguf_u64(&g, 0);
        gguf_save(&g, path);
        assert_refused(kind[i].what, path, kind[i].code, kind[i].says);
        gguf_free(&g);
    }
    gguf_header(&g, 3, 0, 2);
    gguf_u32_value(&g, "twice", 1);
    gguf_u32_value(&g, "twice", 2);
    gguf_save(&g, path);
    assert_refused("duplicate key", path, KN_ECORRUPT, "metadata 'twice'");
    gguf_free(&g);

    gguf_header(&g, 3, 0, 1);
    gguf_u64(&g, 65536);
    for (int i = 0; i < 65536 + 16; i++)
        gguf_u8(&g, 'k');
    gguf_save(&g, path);
    assert_refused("long key", path, KN_ELIMIT, "65536 bytes");
    gguf_free(&g);
}

/* The second tensor has a fault; the first has 32 bytes at offset 0, and data has 64. */
static void tensors_that_are_wrong(void **state)
{
    (void)state;
    const uint64_t big = UINT64_C(1) << 32;
    const struct {
        const char *what, *name;
        uint32_t n_dim;
        uint64_t dim[4];
        uint32_t type;
        uint64_t offset;
        int code;
        const char *says;
    } kind[] = {
        { "no dimension", "b", 0, { 0 }, 0, 32, KN_ECORRUPT, "0 dimensions" },
        { "5 dimensions", "b", 5, { 1, 1, 1, 1 }, 0, 32, KN_ECORRUPT, "5 dimensions" },
        { "2^32-1 dimensions", "b", UINT32_MAX, { 1 }, 0, 32, KN_ECORRUPT, "4294967295 dim" },
        { "dimension 0", "b", 2, { 4, 0 }, 0, 32, KN_ECORRUPT, "dimension 1 is 0" },
        { "2^64 values", "b", 2, { big, big }, 0, 32, KN_ECORRUPT, "dimensions overflow" },
        { "2^63 values", "b", 2, { big, big / 2 }, 0, 32, KN_ECORRUPT, "dimensions overflow" },
        { "2^96 values", "b", 3, { big, big, big }, 0, 32, KN_ECORRUPT, "dimensions overflow" },
        { "2^64 bytes", "b", 2, { big, big / 4 }, 0, 32, KN_ECORRUPT, "size overflows" },
        { "2^62 bytes", "b", 2, { big, big / 16 }, 0, 32, KN_ECORRUPT, "invalid position" },
        { "bytes wrap to 0", "b", 2, { big, big / 4 }, 0, 32, KN_ECORRUPT, "overflow" },
        { "half a block", "b", 1, { 48 }, 8, 32, KN_ECORRUPT, "no whole blocks of Q8_0" },
        { "half a super-block", "b", 1, { 128 }, 12, 32, KN_ECORRUPT, "no whole blocks of Q4_K" },
        { "unaligned", "b", 1, { 4 }, 0, 36, KN_ECORRUPT, "offset 36 is no multiple of 32" },
        { "overlapping", "b", 1, { 4 }, 0, 0, KN_ECORRUPT, "overlaps tensor '" },
        { "beyond the end", "b", 1, { 9 }, 0, 32, KN_ESHORT, "ends at byte" },
        { "far beyond", "b", 1, { 4 }, 0, 1 << 20, KN_ESHORT, "ends at byte" },
        { "into the header", "b", 1, { 4 }, 0, UINT64_MAX - 63, KN_ECORRUPT, "invalid position" },
        { "2^63", "b", 1, { 4 }, 0, UINT64_C(1) << 63, KN_ECORRUPT, "invalid position" },
        { "unknown type beyond", "b", 1, { 4 }, 77, 4096, KN_ESHORT, "ends at byte" },
        { "empty name", "", 1, { 4 }, 0, 32, KN_ECORRUPT, "name is empty" },
        { "same name", "a", 1, { 4 }, 0, 32, KN_ECORRUPT, "tensor 'a'" },
        { "escapes", "b\r\x07", 1, { 0 }, 0, 32, KN_ECORRUPT, "'b\\x0d\\x07'" },
    };
    for (int i = 0; i < LEN(kind); i++) {
        struct gguf g = { 0 };
        gguf_header(&g, 3, 2, 0);
        gguf_tensor(&g, "a", 1, DIM(8), 0, 0);
        gguf_tensor(&g, kind[i].name, kind[i].n_dim, kind[i].dim, kind[i].type, kind[i].offset);
        gguf_data(&g, 64);
        gguf_save(&g, path);
        assert_refused(kind[i].what, path, kind[i].code, kind[i].says);
        gguf_free(&g);
    }
}

static void unknown_tensor_types_are_listed(void **state)
{
    (void)state;
    static const uint32_t types[] = { 4, 36, 41, 77, 1u << 31, UINT32_MAX };
    for (int i = 0; i < LEN(types); i++) {
        struct gguf g = { 0 };
        struct moe_file *f;
        gguf_header(&g, 3, 1, 0);
        gguf_tensor(&g, "a", 1, DIM(8), types[i], 32);
        gguf_data(&g, 64);
        gguf_save(&g, path);
        assert_int_equal(moe_file_open(&f, path), 0);
        assert_int_equal(moe_file_tensor(f, 0)->bytes, 0);
        assert_int_equal(moe_file_tensor(f, 0)->gguf_type, types[i]);
        assert_null(moe_tensor_type(types[i]));
        moe_file_close(f);
        gguf_free(&g);
    }
}

/* The type numbers that only model folders use are refused in a GGUF file. */
static void our_own_types_are_no_files(void **state)
{
    (void)state;
    for (uint32_t type = KN_TYPE_OWN; moe_tensor_type(type); type++) {
        struct gguf g = { 0 };
        gguf_header(&g, 3, 1, 0);
        gguf_tensor(&g, "a", 1, DIM(128), type, 132);
        gguf_data(&g, 160);
        gguf_save(&g, path);
        assert_refused("our own type", path, KN_EUNSUPPORTED, "not a GGUF type");
        gguf_free(&g);
    }
}

/* For types in both tables, the table here and the kernels' table agree. */
static void tensor_types_agree_with_formats(void **state)
{
    (void)state;
    for (int i = 0; i < KN_FORMAT_COUNT; i++) {
        const struct kn_format_info *info = kn_format_info((enum kn_format)i);
        const struct moe_tensor_type *type = moe_tensor_type((uint32_t)info->gguf_type);
        assert_string_equal(type->name, info->name);
        assert_int_equal(type->block_values, info->block_values);
        assert_int_equal(type->block_bytes, info->block_bytes);
    }
}

static void every_cut_is_a_short_file(void **state)
{
    (void)state;
    struct gguf g = { 0 }, cut;
    make_good(&g, 3);
    for (size_t n = 0; n < g.n; n++) {
        cut = g;
        cut.n = n;
        gguf_save(&cut, path);
        assert_refused("cut", path, KN_ESHORT, ": ");
    }
    gguf_free(&g);
}

/* A sparse file that is very large: its lengths fit the file, and are still refused because they exceed a
 * limit. */
static void long_strings_are_over_a_limit(void **state)
{
    (void)state;
    struct gguf g = { 0 };
    gguf_header(&g, 3, 0, 1);
    gguf_array(&g, "tokenizer.ggml.tokens", MOE_STRING, 1);
    gguf_u64(&g, UINT64_C(1) << 31);
    gguf_save_sparse(&g, path, (UINT64_C(1) << 31) + 100);
    assert_refused("token of 2^31 bytes", path, KN_ELIMIT, "'tokenizer.ggml.tokens'");
    gguf_free(&g);

    gguf_header(&g, 3, 0, 1);
    gguf_array(&g, "tokenizer.ggml.tokens", MOE_STRING, UINT64_C(1) << 31);
    gguf_save_sparse(&g, path, UINT64_C(1) << 35);
    assert_refused("2^31 tokens", path, KN_ELIMIT, "'tokenizer.ggml.tokens'");
    gguf_free(&g);

    gguf_header(&g, 3, 0, 1);
    gguf_string_value(&g, "name", "");
    g.n -= 8;
    gguf_u64(&g, (1 << 24) + 1);
    gguf_save_sparse(&g, path, 1 << 25);
    assert_refused("string over 16 MiB", path, KN_ELIMIT, "'name'");
    gguf_free(&g);
}

/* With any byte changed the file opens or is refused, with at most one line. */
static void damaged_bytes_do_no_harm(void **state)
{
    (void)state;
    struct gguf g = { 0 };
    int refused = 0;
    make_good(&g, 3);
    for (size_t i = 0; i < g.n; i++)
        for (int k = 0; k < 4; k++) {
            static const uint8_t with[] = { 0x00, 0x01, 0x7f, 0xff };
            uint8_t was = g.data[i];
            struct moe_file *f = NULL;
            g.data[i] = with[k];
            gguf_save(&g, path);
            g.data[i] = was;
            faults_reset();
            int err = moe_file_open(&f, path);
            assert_int_equal(faults.n_line, err ? 1 : 0);
            refused += err != 0;
            moe_file_close(f);
            assert_true(faults_clean());
        }
    assert_in_range(refused, 500, 4 * g.n);
    gguf_free(&g);
}

/* ---- splits ---------------------------------------------------------------------------------- */

struct split {
    uint32_t no, count;
    int32_t n_tensor;
    const char *name;
};

static void save_split(const char *suffix, struct split s)
{
    struct gguf g = { 0 };
    char file[160];
    gguf_header(&g, 3, 1, 4);
    gguf_string_value(&g, "general.architecture", s.no ? "ignored" : "first");
    gguf_key(&g, "split.no", MOE_U16);
    gguf_bytes(&g, &s.no, 2);
    gguf_key(&g, "split.count", MOE_U16);
    gguf_bytes(&g, &s.count, 2);
    gguf_key(&g, "split.tensors.count", MOE_I32);
    gguf_bytes(&g, &s.n_tensor, 4);
    gguf_tensor(&g, s.name, 1, DIM(8), 0, 0);
    gguf_data(&g, 32);
    snprintf(file, sizeof file, "%s/m%s", folder, suffix);
    gguf_save(&g, file);
    gguf_free(&g);
}

static void save_splits(void)
{
    save_split("-00001-of-00003.gguf", (struct split){ 0, 3, 3, "a" });
    save_split("-00002-of-00003.gguf", (struct split){ 1, 3, 3, "b" });
    save_split("-00003-of-00003.gguf", (struct split){ 2, 3, 3, "c" });
}

static void splits_are_one_model(void **state)
{
    (void)state;
    char first[160];
    struct moe_file *f;
    struct moe_string s;
    snprintf(first, sizeof first, "%s/m-00001-of-00003.gguf", folder);
    save_splits();
    assert_int_equal(moe_file_open(&f, first), 0);
    assert_int_equal(moe_file_files(f)->n_file, 3);
    assert_non_null(strstr(moe_file_files(f)->path[2], "m-00003-of-00003.gguf"));
    assert_int_equal(moe_file_tensor_count(f), 3);
    assert_int_equal(moe_file_find_tensor(f, "c")->file, 2);
    assert_int_equal(moe_file_string(f, "general.architecture", &s), 1);
    assert_true(moe_string_is(s, "first"));
    uint8_t byte;
    const struct moe_tensor *c = moe_file_find_tensor(f, "c");
    assert_int_equal(kn_file_read(moe_file_files(f)->fd[c->file], "", &byte, 1, c->offset + 5), 0);
    assert_int_equal(byte, 5);
    moe_file_close(f);
    assert_true(faults_clean());
}

static void splits_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    char first[160], other[160];
    snprintf(first, sizeof first, "%s/m-00001-of-00003.gguf", folder);
    snprintf(other, sizeof other, "%s/m-00003-of-00003.gguf", folder);
    struct moe_file *f;

    save_splits();
    remove(other);
    faults_reset();
    assert_int_equal(moe_file_open(&f, first), KN_ENOENT);
    assert_int_equal(faults.n_line, 1);
    assert_non_null(strstr(faults.line, "m-00003-of-00003.gguf"));
    assert_true(faults_clean());

    static const struct {
        const char *what;
        struct split third;
        const char *says;
    } kind[] = {
        { "number", { 1, 3, 3, "c" }, "says 2 of 3" },
        { "count", { 2, 4, 3, "c" }, "says 3 of 4" },
        { "name", { 2, 3, 3, "a" }, "tensor 'a'" },
    };
    for (int i = 0; i < LEN(kind); i++) {
        save_splits();
        save_split("-00003-of-00003.gguf", kind[i].third);
        faults_reset();
        assert_int_equal(moe_file_open(&f, first), KN_ECORRUPT);
        assert_int_equal(faults.n_line, 1);
        assert_non_null(strstr(faults.line, "m-00003-of-00003.gguf"));
        assert_non_null(strstr(faults.line, kind[i].says));
        assert_true(faults_clean());
    }
    save_splits();
    save_split("-00001-of-00003.gguf", (struct split){ 0, 3, 4, "a" });
    assert_refused("total", first, KN_ECORRUPT, "split.tensors.count");
    save_split("-00001-of-00003.gguf", (struct split){ 0, 3, -1, "a" });
    assert_refused("total -1", first, KN_ECORRUPT, "split.tensors.count");
    save_splits();
    assert_refused("not the first", other, KN_EINVAL, "split 3 of 3");
    save_split(".gguf", (struct split){ 0, 3, 3, "a" });
    snprintf(other, sizeof other, "%s/m.gguf", folder);
    assert_refused("no such name", other, KN_EINVAL, "-00001-of-00003.gguf");
}

/* ---- failing system calls ---------------------------------------------------------------------- */

static void whatever_fails_nothing_is_left(void **state)
{
    (void)state;
    static const struct {
        enum fault_kind kind;
        enum fault_way way;
        int error, code;
    } ways[] = {
        { FAULT_ALLOC, FAULT_ERROR, ENOMEM, KN_ENOMEM }, { FAULT_OPEN, FAULT_ERROR, EIO, KN_EIO },
        { FAULT_SIZE, FAULT_ERROR, EIO, KN_EIO },        { FAULT_READ, FAULT_ERROR, EIO, KN_EIO },
        { FAULT_READ, FAULT_EMPTY, 0, KN_ESHORT },
    };
    char first[160];
    snprintf(first, sizeof first, "%s/m-00001-of-00003.gguf", folder);
    save_splits();
    for (int k = 0; k < LEN(ways); k++) {
        long n = 0;
        int err;
        do {
            struct moe_file *f = NULL;
            faults_at(ways[k].kind, ++n, ways[k].way, ways[k].error);
            err = moe_file_open(&f, first);
            if (err) {
                assert_int_equal(err, ways[k].code);
                assert_int_equal(faults.n_line, 1);
                assert_null(f);
            }
            moe_file_close(f);
            assert_true(faults_clean());
        } while (err);
        assert_in_range(n, 4, 200); /* each of the three files failed at least once */
    }
}

/* ---- printing names -------------------------------------------------------------------------- */

static void names_are_fit_to_be_shown(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } kind[] = {
        { "plain", 5, "plain" },
        { "a\0b", 3, "a\\x00b" },
        { "\x7f\\", 2, "\\x7f\\x5c" },
        { "\xc3\xa9", 2, "\xc3\xa9" },
        { "\xc2\x9b"
          "31m",
          5, "\\xc2\\x9b31m" },
        { "\xff", 1, "\\xff" },
        { "\xc0\xaf", 2, "\\xc0\\xaf" },
        { "\xed\xa0\x80", 3, "\\xed\\xa0\\x80" },
        { "\xe2\x82", 2, "\\xe2\\x82" },
        { "", 0, "" },
        { "123456789012345", 15, "123456789012345" },
        { "1234567890123456", 16, "123456789012..." },
        { "12345678901234\xc3\xa9", 16, "123456789012..." },
        { "12345678901\x01z", 13, "12345678901..." },
    };
    for (int i = 0; i < LEN(kind); i++) {
        char out[16 + 1] = "----------------";
        moe_string_show((struct moe_string){ kind[i].in, kind[i].n }, out, 16);
        assert_string_equal(out, kind[i].out);
        assert_int_equal(out[16], 0);
    }
}

int main(void)
{
    faults.in_pieces = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_file_is_read),
        cmocka_unit_test(scalars_are_checked),
        cmocka_unit_test(large_headers_take_few_reads),
        cmocka_unit_test(counts_are_not_believed),
        cmocka_unit_test(headers_that_are_no_gguf),
        cmocka_unit_test(values_that_are_wrong),
        cmocka_unit_test(tensors_that_are_wrong),
        cmocka_unit_test(unknown_tensor_types_are_listed),
        cmocka_unit_test(our_own_types_are_no_files),
        cmocka_unit_test(tensor_types_agree_with_formats),
        cmocka_unit_test(every_cut_is_a_short_file),
        cmocka_unit_test(long_strings_are_over_a_limit),
        cmocka_unit_test(damaged_bytes_do_no_harm),
        cmocka_unit_test(splits_are_one_model),
        cmocka_unit_test(splits_that_do_not_fit_are_refused),
        cmocka_unit_test(whatever_fails_nothing_is_left),
        cmocka_unit_test(names_are_fit_to_be_shown),
    };
    return cmocka_run_group_tests(tests, setup, folder_remove);
}
