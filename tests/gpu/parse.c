/* Reads PTX: the tokens, the declarations of variables, functions and registers, the scopes of names.  The text is read
 * twice: first variables and functions that kernels call, whose registers and local memory all kernels share, then the
 * kernels.  decode.c reads the instructions. */
#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/memory.h"
#include "tests/gpu/parse.h"

void ptx_error(struct ptx_parser *p, const char *format, ...)
{
    char what[256];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    snprintf(p->error, p->error_room, "PTX, line %u: %s", p->statement_line ? p->statement_line : p->line, what);
    longjmp(p->failed, 1);
}

void *ptx_grow(void *array, uint32_t n, uint32_t *room, size_t size)
{
    if (n < *room)
        return array;
    *room = *room ? *room * 2 : 64;
    array = realloc(array, *room * size);
    if (!array)
        abort();
    return array;
}

/* ---- tokens ---------------------------------------------------------------------------------------- */

static bool is_word(int c) { return isalnum(c) || c == '_' || c == '$' || c == '%' || c == '.'; }

static void skip_space(struct ptx_parser *p)
{
    for (;; p->at++) {
        if (p->at[0] == '\n')
            p->line++;
        else if (p->at[0] == '/' && p->at[1] == '/') {
            p->at += strcspn(p->at, "\n");
            p->at--;
        } else if (p->at[0] == '/' && p->at[1] == '*') {
            for (p->at += 2; p->at[0] && !(p->at[0] == '*' && p->at[1] == '/'); p->at++)
                p->line += p->at[0] == '\n';
            if (!p->at[0])
                return;
            p->at++;
        } else if (!isspace((unsigned char)p->at[0]))
            return;
    }
}

void ptx_next(struct ptx_parser *p)
{
    skip_space(p);
    size_t n = 0;
    p->at_end = !*p->at;
    p->at_word = is_word((unsigned char)*p->at);
    if (*p->at == '"') {
        n = 1 + strcspn(p->at + 1, "\"");
        n += p->at[n] == '"';
    } else if (p->at_word) {
        while (is_word((unsigned char)p->at[n]) || (p->at[n] == ':' && p->at[n + 1] == ':')) /* .L1::no_allocate */
            n += p->at[n] == ':' ? 2 : 1;
    } else
        n = !p->at_end;
    if (n >= sizeof p->word)
        ptx_error(p, "a word is too long");
    memcpy(p->word, p->at, n);
    p->word[n] = 0;
    p->at += n;
}

bool ptx_is(const struct ptx_parser *p, const char *word) { return p->word[0] == word[0] && !strcmp(p->word, word); }

bool ptx_take(struct ptx_parser *p, const char *word)
{
    if (!ptx_is(p, word))
        return false;
    ptx_next(p);
    return true;
}

void ptx_expect(struct ptx_parser *p, const char *word)
{
    if (!ptx_take(p, word))
        ptx_error(p, "'%s' is expected before '%.100s'", word, p->word);
}

static uint64_t take_number(struct ptx_parser *p)
{
    bool negative = ptx_take(p, "-");
    uint64_t v;
    if (p->word[0] == '0' && (p->word[1] == 'f' || p->word[1] == 'F' || p->word[1] == 'd' || p->word[1] == 'D'))
        v = strtoull(p->word + 2, NULL, 16);
    else if (isdigit((unsigned char)p->word[0]))
        v = strtoull(p->word, NULL, 0);
    else
        ptx_error(p, "a number is expected before '%.100s'", p->word);
    ptx_next(p);
    return negative ? 0 - v : v;
}

/* ---- names ----------------------------------------------------------------------------------------- */

static uint32_t hash(const char *s)
{
    uint32_t h = 5381;
    while (*s)
        h = h * 33 + (unsigned char)*s++;
    return h % 1024;
}

struct ptx_name *ptx_lookup(struct ptx_parser *p, const char *word)
{
    for (struct ptx_name *n = p->bucket[hash(word)]; n; n = n->next)
        if (!strcmp(n->name, word))
            return n;
    return NULL;
}

static struct ptx_name *add_name(struct ptx_parser *p, const char *word, enum ptx_name_kind kind, uint64_t offset)
{
    struct ptx_name *n = calloc(1, sizeof *n);
    if (!n || !(n->name = strdup(word)))
        abort();
    n->kind = kind;
    n->offset = offset;
    n->bucket = hash(word);
    n->next = p->bucket[n->bucket];
    n->older = p->newest;
    p->bucket[n->bucket] = p->newest = n;
    return n;
}

static void patch(struct ptx_parser *p, const struct ptx_name *label)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_fixup; i++) {
        struct ptx_fixup *f = p->fixup + i;
        if (strcmp(f->name, label->name)) {
            p->fixup[n++] = *f;
            continue;
        }
        if (f->list == UINT32_MAX)
            p->m->code[f->insn].imm = (int64_t)label->offset;
        else
            p->m->list[f->list] = (uint32_t)label->offset;
        free(f->name);
    }
    p->n_fixup = n;
}

/* Forgets the names that are newer than mark; branches to the labels among them become complete. */
static void close_scope(struct ptx_parser *p, struct ptx_name *mark)
{
    while (p->newest != mark) {
        struct ptx_name *n = p->newest;
        if (n->kind == NAME_LABEL)
            patch(p, n);
        p->bucket[n->bucket] = n->next;
        p->newest = n->older;
        free(n->name);
        free(n);
    }
}

void ptx_fix_later(struct ptx_parser *p, const char *label, bool is_list)
{
    p->fixup = ptx_grow(p->fixup, p->n_fixup, &p->fixup_room, sizeof *p->fixup);
    p->fixup[p->n_fixup++] = (struct ptx_fixup){ .insn = p->m->n_code - 1,
                                                 .list = is_list ? p->m->n_list - 1 : UINT32_MAX,
                                                 .name = strdup(label) };
}

/* ---- registers and constants ----------------------------------------------------------------------- */

uint32_t ptx_new_reg(struct ptx_parser *p, bool wide)
{
    uint32_t reg = p->n_reg;
    p->n_reg += wide ? 2 : 1;
    return reg;
}

uint32_t ptx_special_reg(struct ptx_parser *p, enum ptx_special special, uint64_t value, bool wide)
{
    for (uint32_t i = 0; i < p->n_constant; i++) {
        struct ptx_constant *c = p->constant + i;
        if (c->value == value && c->wide == wide && c->special == special)
            return c->reg;
    }
    p->constant = ptx_grow(p->constant, p->n_constant, &p->constant_room, sizeof *p->constant);
    uint32_t reg = ptx_new_reg(p, wide);
    p->constant[p->n_constant++] = (struct ptx_constant){ reg, (uint8_t)special, wide, value };
    return reg;
}

uint32_t ptx_constant_reg(struct ptx_parser *p, uint64_t value, bool wide)
{
    return ptx_special_reg(p, SPECIAL_value, value, wide);
}

struct ptx_insn *ptx_emit(struct ptx_parser *p, enum ptx_op op)
{
    p->m->code = ptx_grow(p->m->code, p->m->n_code, &p->m->code_room, sizeof *p->m->code);
    struct ptx_insn *i = p->m->code + p->m->n_code++;
    memset(i, 0, sizeof *i);
    i->op = (uint16_t)op;
    i->line = p->line;
    return i;
}

uint32_t ptx_list_add(struct ptx_parser *p, uint32_t reg)
{
    p->m->list = ptx_grow(p->m->list, p->m->n_list, &p->m->list_room, sizeof *p->m->list);
    p->m->list[p->m->n_list] = reg;
    return p->m->n_list++;
}

/* ---- declarations ---------------------------------------------------------------------------------- */

/* ".b32", ".v4.f32": bytes of one element. */
static uint32_t type_bytes(struct ptx_parser *p, const char *word)
{
    uint32_t n = 1;
    if (!strncmp(word, ".v", 2)) {
        n = (uint32_t)(word[2] - '0');
        word = strchr(word + 1, '.');
    }
    if (word && !strcmp(word, ".pred"))
        return 1;
    uint32_t bits = word && strchr("busf", word[1]) ? (uint32_t)atoi(word + 2) : 0;
    if (!bits || bits % 8)
        ptx_error(p, "type '%.100s' is not known", p->word);
    return bits / 8 * n;
}

struct declaration {
    char name[PTX_MAX_WORD];
    uint32_t align, element_bytes;
    uint64_t bytes;
    bool is_open; /* an array without a size */
};

/* ".align 16 .b8 name[64]", the space has been taken. */
static struct declaration take_declaration(struct ptx_parser *p)
{
    struct declaration d = { .align = 1 };
    bool is_pointer = false; /* the words behind .ptr describe the memory that it points to */
    while (p->word[0] == '.') {
        if (ptx_take(p, ".align")) {
            uint32_t align = (uint32_t)take_number(p);
            d.align = is_pointer ? d.align : align;
        } else if (ptx_take(p, ".ptr"))
            is_pointer = true;
        else if (!ptx_take(p, ".global") && !ptx_take(p, ".const") && !ptx_take(p, ".shared")) {
            d.element_bytes = type_bytes(p, p->word);
            ptx_next(p);
        }
    }
    if (!d.element_bytes)
        ptx_error(p, "a type is expected before '%.100s'", p->word);
    if (d.align < d.element_bytes)
        d.align = d.element_bytes;
    strcpy(d.name, p->word);
    ptx_next(p);
    uint64_t n = 1;
    while (ptx_take(p, "[")) {
        if (ptx_take(p, "]")) {
            d.is_open = true;
            continue;
        }
        n *= take_number(p);
        ptx_expect(p, "]");
    }
    d.bytes = n * d.element_bytes;
    return d;
}

static uint32_t place(uint32_t *used, const struct declaration *d)
{
    *used = (*used + d->align - 1) / d->align * d->align;
    uint32_t at = *used;
    *used += (uint32_t)d->bytes;
    return at;
}

/* The values of a variable; addresses are of variables declared before it. */
static void take_values(struct ptx_parser *p, const struct declaration *d, uint64_t address)
{
    uint64_t at = 0;
    int depth = 0;
    do {
        if (ptx_take(p, "{"))
            depth++;
        else if (ptx_take(p, "}"))
            depth--;
        else if (!ptx_take(p, ",")) {
            uint64_t v;
            struct ptx_name *n = ptx_lookup(p, p->word);
            if (ptx_take(p, "generic")) {
                ptx_expect(p, "(");
                n = ptx_lookup(p, p->word);
                if (!n)
                    ptx_error(p, "'%.100s' is not known", p->word);
                ptx_next(p);
                ptx_expect(p, ")");
                v = n->offset;
            } else if (n) {
                v = n->offset;
                ptx_next(p);
            } else
                v = take_number(p);
            if (ptx_take(p, "+"))
                v += take_number(p);
            if (at + d->element_bytes > d->bytes)
                ptx_error(p, "'%.100s' has more values than places", d->name);
            memcpy((char *)(uintptr_t)address + at, &v, d->element_bytes);
            at += d->element_bytes;
        }
    } while (depth);
}

static void take_global(struct ptx_parser *p, bool again)
{
    struct declaration d = take_declaration(p);
    if (again) { /* the second reading */
        while (!ptx_is(p, ";") && !p->at_end)
            ptx_next(p);
        ptx_expect(p, ";");
        return;
    }
    uint64_t address = gpu_alloc(d.bytes ? d.bytes : 1);
    if (!address)
        ptx_error(p, "no memory for variable '%.100s'", d.name);
    memset((void *)(uintptr_t)address, 0, d.bytes);
    gpu_define(address, d.bytes, true);
    add_name(p, d.name, NAME_GLOBAL, address);
    uint32_t room = p->m->n_variable;
    p->m->variable = realloc(p->m->variable, (room + 1) * sizeof *p->m->variable);
    p->m->variable[p->m->n_variable++] = (struct ptx_variable){ strdup(d.name), address, d.bytes };
    if (ptx_take(p, "="))
        take_values(p, &d, address);
    ptx_expect(p, ";");
}

static void take_shared(struct ptx_parser *p, uint32_t *used)
{
    struct declaration d = take_declaration(p);
    ptx_expect(p, ";");
    if (d.is_open)
        add_name(p, d.name, NAME_DYNAMIC, 0);
    else
        add_name(p, d.name, NAME_SHARED, place(used, &d));
}

static void take_registers(struct ptx_parser *p)
{
    bool is_pred = ptx_is(p, ".pred"), wide = !is_pred && type_bytes(p, p->word) == 8;
    if (!is_pred && type_bytes(p, p->word) > 8)
        ptx_error(p, "registers of type '%.100s' are not known", p->word);
    do {
        ptx_next(p);
        char base[PTX_MAX_WORD];
        strcpy(base, p->word);
        ptx_next(p);
        uint64_t n = 0;
        bool many = ptx_take(p, "<");
        if (many) {
            n = take_number(p);
            ptx_expect(p, ">");
        }
        for (uint64_t i = 0; i < (many ? n : 1); i++) {
            char name[PTX_MAX_WORD + 24];
            if (many)
                snprintf(name, sizeof name, "%s%llu", base, (unsigned long long)i);
            struct ptx_name *r = add_name(p, many ? name : base, NAME_REG, ptx_new_reg(p, wide));
            r->wide = wide;
            r->is_pred = is_pred;
        }
    } while (ptx_is(p, ","));
    ptx_expect(p, ";");
}

/* ---- functions ------------------------------------------------------------------------------------- */

struct ptx_function *ptx_find(struct ptx_module *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_function; i++)
        if (!strcmp(m->function[i]->name, name))
            return m->function[i];
    return NULL;
}

/* "(.param .b32 a, .param .b32 b)".  A function's parameters are placed when it is declared first. */
static void take_params(struct ptx_parser *p, struct ptx_function *f, uint32_t *n, uint32_t from, bool placed)
{
    if (!ptx_take(p, "("))
        return;
    while (!ptx_take(p, ")")) {
        if (!ptx_take(p, ".param"))
            ptx_error(p, "parameters in registers are not known");
        struct declaration d = take_declaration(p);
        if (!placed) {
            f->param = realloc(f->param, (from + *n + 1) * sizeof *f->param);
            struct ptx_param *q = f->param + from + *n;
            q->offset = place(f->is_kernel ? &f->param_bytes : &p->n_local, &d);
            q->bytes = (uint32_t)d.bytes;
        }
        add_name(p, d.name, f->is_kernel ? NAME_PARAM : NAME_LOCAL, f->param[from + *n].offset);
        ++*n;
        ptx_take(p, ",");
    }
}

static void take_statement(struct ptx_parser *p);

static void take_block(struct ptx_parser *p)
{
    struct ptx_name *mark = p->newest;
    ptx_expect(p, "{");
    while (!ptx_is(p, "}")) {
        if (p->at_end)
            ptx_error(p, "the text ends in a function");
        take_statement(p);
    }
    ptx_next(p);
    close_scope(p, mark);
}

static void skip_statement(struct ptx_parser *p)
{
    while (!ptx_is(p, ";") && !p->at_end)
        ptx_next(p);
    ptx_next(p);
}

static void take_targets(struct ptx_parser *p, const char *label)
{
    struct ptx_name *n = add_name(p, label, NAME_TARGETS, p->n_target);
    do {
        p->target = ptx_grow(p->target, p->n_target, &p->target_room, sizeof *p->target);
        p->target[p->n_target++] = strdup(p->word);
        n->bytes++;
        ptx_next(p);
    } while (ptx_take(p, ","));
    ptx_expect(p, ";");
}

static void take_directive(struct ptx_parser *p)
{
    struct declaration d;
    if (ptx_take(p, ".reg"))
        take_registers(p);
    else if (ptx_take(p, ".shared"))
        take_shared(p, &p->n_shared);
    else if (ptx_take(p, ".local") || ptx_take(p, ".param")) {
        d = take_declaration(p);
        ptx_expect(p, ";");
        struct ptx_name *n = add_name(p, d.name, NAME_LOCAL, place(&p->n_local, &d));
        n->bytes = d.bytes;
    } else if (ptx_is(p, ".pragma"))
        skip_statement(p);
    else if (ptx_is(p, ".loc")) { /* ends with its line */
        p->at += strcspn(p->at, "\n");
        ptx_next(p);
    } else
        ptx_error(p, "directive '%.100s' is not known", p->word);
}

static void take_statement(struct ptx_parser *p)
{
    p->statement_line = p->line;
    if (ptx_is(p, "{")) {
        take_block(p);
        return;
    }
    if (ptx_take(p, ";"))
        return;
    if (p->word[0] == '.') {
        take_directive(p);
        return;
    }
    uint32_t guard = 0;
    bool negated = false;
    if (ptx_take(p, "@")) {
        negated = ptx_take(p, "!");
        struct ptx_name *n = ptx_lookup(p, p->word);
        if (!n || n->kind != NAME_REG || !n->is_pred)
            ptx_error(p, "'%.100s' is no predicate", p->word);
        guard = (uint32_t)n->offset;
        ptx_next(p);
    } else {
        skip_space(p);
        if (*p->at == ':') { /* a label */
            char label[PTX_MAX_WORD];
            strcpy(label, p->word);
            ptx_next(p);
            ptx_next(p);
            if (ptx_take(p, ".branchtargets"))
                take_targets(p, label);
            else if (ptx_is(p, ".callprototype"))
                skip_statement(p);
            else
                add_name(p, label, NAME_LABEL, p->m->n_code);
            return;
        }
    }
    p->n_item = 0;
    ptx_decode(p, guard, negated);
}

/* A kernel needs registers and memory of its own and of the functions that it may call. */
static void finish_function(struct ptx_parser *p, struct ptx_function *f)
{
    p->statement_line = 0;
    ptx_emit(p, f->is_kernel ? OP_exit : OP_ret)->src[0] = f->return_reg;
    if (p->n_fixup)
        ptx_error(p, "label '%.100s' is not there", p->fixup[0].name);
    f->has_body = true;
    if (!f->is_kernel)
        return;
    f->n_reg = p->n_reg;
    f->local_bytes = (p->n_local + 15) / 16 * 16;
    f->shared_bytes = p->n_shared;
    f->constant = malloc((p->n_constant + 1) * sizeof *f->constant);
    memcpy(f->constant, p->constant, p->n_constant * sizeof *f->constant);
    f->n_constant = p->n_constant;
}

static void take_function(struct ptx_parser *p, bool is_kernel)
{
    struct ptx_name *mark = p->newest;
    struct ptx_function *f = NULL;
    const char *again = p->at;
    uint32_t again_line = p->line;
    char again_word[PTX_MAX_WORD];
    strcpy(again_word, p->word);
    if (ptx_is(p, "(")) /* the results come before the name, which says whether they are placed already */
        while (!ptx_take(p, ")"))
            ptx_next(p);
    bool placed = (f = ptx_find(p->m, p->word)) != NULL;
    if (!placed) {
        f = calloc(1, sizeof *f);
        f->name = strdup(p->word);
        f->is_kernel = is_kernel;
        f->module = p->m;
        f->return_reg = is_kernel ? 0 : ptx_new_reg(p, false);
        p->m->function = realloc(p->m->function, (p->m->n_function + 1) * sizeof *p->m->function);
        p->m->function[p->m->n_function++] = f;
    }
    p->at = again;
    p->line = again_line;
    strcpy(p->word, again_word);
    f->n_result = f->n_param = 0;
    take_params(p, f, &f->n_result, 0, placed);
    ptx_next(p);
    take_params(p, f, &f->n_param, f->n_result, placed);
    while (!ptx_is(p, "{") && !ptx_is(p, ";")) { /* .maxntid and others */
        bool is_limit = ptx_is(p, ".maxntid") || ptx_is(p, ".reqntid");
        if (p->at_end)
            ptx_error(p, "a function has no end");
        ptx_next(p);
        if (is_limit) {
            f->max_threads = (uint32_t)take_number(p);
            while (ptx_take(p, ","))
                f->max_threads *= (uint32_t)take_number(p);
        }
    }
    if (ptx_take(p, ";")) {
        close_scope(p, mark);
        return;
    }
    p->f = f;
    f->entry = p->m->n_code;
    take_block(p);
    finish_function(p, f);
    close_scope(p, mark);
    p->f = NULL;
}

static void skip_function(struct ptx_parser *p)
{
    int depth = 0;
    while (!ptx_is(p, "{") && !ptx_is(p, ";") && !p->at_end)
        ptx_next(p);
    if (ptx_take(p, ";"))
        return;
    do {
        depth += ptx_is(p, "{") - ptx_is(p, "}");
        ptx_next(p);
    } while (depth && !p->at_end);
}

static void take_kernel(struct ptx_parser *p)
{
    p->n_reg = p->module_regs;
    p->n_local = p->module_local;
    p->n_shared = p->module_shared;
    p->n_constant = p->n_module_constant;
    take_function(p, true);
}

/* One item of a module. */
static void take_item(struct ptx_parser *p, bool kernels)
{
    if (ptx_take(p, ".version") || ptx_take(p, ".target") || ptx_take(p, ".address_size")) {
        ptx_next(p);
        while (ptx_take(p, ","))
            ptx_next(p);
    } else if (ptx_take(p, ".visible") || ptx_take(p, ".extern") || ptx_take(p, ".weak") || ptx_take(p, ".common"))
        return;
    else if (ptx_take(p, ".global") || ptx_take(p, ".const"))
        take_global(p, kernels);
    else if (ptx_take(p, ".shared")) {
        if (kernels)
            skip_statement(p);
        else
            take_shared(p, &p->n_shared);
    } else if (ptx_take(p, ".func")) {
        if (kernels)
            skip_function(p);
        else
            take_function(p, false);
    } else if (ptx_take(p, ".entry")) {
        if (kernels)
            take_kernel(p);
        else
            skip_function(p);
    } else if (ptx_is(p, ".section"))
        skip_function(p);
    else if (ptx_is(p, ".file") || ptx_is(p, ".loc")) {
        p->at += strcspn(p->at, "\n");
        ptx_next(p);
    } else if (ptx_is(p, ".pragma") || ptx_is(p, ".alias"))
        skip_statement(p);
    else
        ptx_error(p, "'%.100s' is not known", p->word);
}

static void read_text(struct ptx_parser *p, bool kernels)
{
    p->at = p->text;
    p->line = 1;
    for (ptx_next(p); !p->at_end;)
        take_item(p, kernels);
}

static void list_lines(struct ptx_module *m)
{
    uint32_t room = 0;
    for (char *at = m->text; at;) {
        m->line = ptx_grow((void *)m->line, m->n_line, &room, sizeof *m->line);
        m->line[m->n_line++] = at;
        at = strchr(at, '\n');
        if (at)
            *at++ = 0;
    }
}

struct ptx_module *ptx_parse(const char *text, char *error, size_t error_room)
{
    struct ptx_parser *p = calloc(1, sizeof *p);
    struct ptx_module *volatile m = calloc(1, sizeof *m);
    if (!p || !m)
        abort();
    p->m = m;
    p->text = text;
    p->error = error;
    p->error_room = error_room;
    bool failed = setjmp(p->failed);
    if (!failed) {
        ptx_constant_reg(p, 0, true); /* registers 0 and 1: always defined */
        read_text(p, false);
        p->module_regs = p->n_reg;
        p->module_local = p->n_local;
        p->module_shared = p->n_shared;
        p->n_module_constant = p->n_constant;
        read_text(p, true);
        m->text = strdup(text);
        list_lines(m);
    }
    close_scope(p, NULL);
    for (uint32_t i = 0; i < p->n_fixup; i++)
        free(p->fixup[i].name);
    for (uint32_t i = 0; i < p->n_target; i++)
        free(p->target[i]);
    free(p->fixup);
    free(p->target);
    free(p->constant);
    free(p);
    if (!failed)
        return m;
    ptx_module_free(m);
    return NULL;
}

void ptx_module_free(struct ptx_module *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; i < m->n_function; i++) {
        free(m->function[i]->name);
        free(m->function[i]->param);
        free(m->function[i]->constant);
        free(m->function[i]);
    }
    for (uint32_t i = 0; i < m->n_variable; i++) {
        gpu_free(m->variable[i].address);
        free(m->variable[i].name);
    }
    free(m->function);
    free(m->variable);
    free(m->code);
    free(m->list);
    free(m->line);
    free(m->text);
    free(m);
}
