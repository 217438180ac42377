/* engine/cli/sheet.c - see sheet.h. */
#include "engine/cli/sheet.h"
#include "engine/cli/cli.h"
#include "engine/cli/text_width.h"

#include <inttypes.h>
#include <string.h>

struct moe_string eng_sheet_text(const char *text) { return (struct moe_string){ text, strlen(text) }; }

/* Begins a value: prints its name in JSON, its label in lines. */
void eng_sheet_begin(struct eng_sheet *s, const char *name, const char *label)
{
    if (s->json) {
        fputs(s->comma ? "," : "", s->out);
        if (name) {
            eng_json_string(s->out, eng_sheet_text(name));
            fputc(':', s->out);
        }
    } else
        fprintf(s->out, "%*s%-*s ", s->indent, "", s->column - 1 - s->indent, label);
    s->comma = true;
}

void eng_sheet_end(struct eng_sheet *s)
{
    if (!s->json)
        fputc('\n', s->out);
}

void eng_sheet_open(struct eng_sheet *s, const char *name, char bracket, const char *title)
{
    if (s->json) {
        eng_sheet_begin(s, name, "");
        fputc(bracket, s->out);
    } else
        fprintf(s->out, "%*s%s\n", s->indent, "", title);
    s->comma = false;
    s->indent += 2;
}

void eng_sheet_close(struct eng_sheet *s, char bracket)
{
    if (s->json)
        fputc(bracket, s->out);
    s->comma = true;
    s->indent -= 2;
}

void eng_sheet_string(struct eng_sheet *s, const char *name, const char *label, struct moe_string text)
{
    char shown[256];
    eng_sheet_begin(s, name, label);
    if (s->json)
        eng_json_string(s->out, text);
    else {
        moe_string_show(text, shown, sizeof shown);
        fputs(shown, s->out);
    }
    eng_sheet_end(s);
}

void eng_sheet_sentence(struct eng_sheet *s, const char *name, const char *label, const char *text)
{
    eng_sheet_begin(s, name, label);
    if (s->json)
        eng_json_string(s->out, eng_sheet_text(text));
    else
        eng_print_wrapped(s->out, s->column, s->column, text);
}

void eng_sheet_count(struct eng_sheet *s, const char *name, const char *label, uint64_t n)
{
    eng_sheet_begin(s, name, label);
    fprintf(s->out, "%" PRIu64, n);
    eng_sheet_end(s);
}

void eng_print_bytes(FILE *out, uint64_t n)
{
    static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    double x = (double)n;
    int u = 0;
    for (; x >= 1024 && u < 4; u++)
        x /= 1024;
    fprintf(out, u ? "%.2f %s" : "%.0f %s", x, unit[u]);
}

void eng_sheet_bytes(struct eng_sheet *s, const char *name, const char *label, uint64_t n)
{
    if (s->json) {
        eng_sheet_count(s, name, label, n);
        return;
    }
    eng_sheet_begin(s, name, label);
    eng_print_bytes(s->out, n);
    eng_sheet_end(s);
}
