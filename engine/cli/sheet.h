/* engine/cli/sheet.h - prints facts as lines or as members of one JSON object, with the same calls for both forms.
 * Internal to engine.
 *
 * Each function prints a line `label value` or a member "name": value. */
#ifndef ENGINE_CLI_SHEET_H
#define ENGINE_CLI_SHEET_H

#include <stdint.h>
#include <stdio.h>

#include "moe/moe.h"

struct eng_sheet {
    FILE *out;
    bool json, comma;   /* comma: the next JSON member needs one before it */
    int indent, column; /* column: where the values of lines begin */
};

struct moe_string eng_sheet_text(const char *text); /* a terminated text as a moe_string */

/* A value in parts: begin, the caller's own output to s->out, end.  name NULL: an item of an array. */
void eng_sheet_begin(struct eng_sheet *s, const char *name, const char *label);
void eng_sheet_end(struct eng_sheet *s);

/* A list or an object: bracket is '[' or '{', then ']' or '}'.  In lines it is a title with indented lines below. */
void eng_sheet_open(struct eng_sheet *s, const char *name, char bracket, const char *title);
void eng_sheet_close(struct eng_sheet *s, char bracket);

void eng_sheet_string(struct eng_sheet *s, const char *name, const char *label, struct moe_string text);
void eng_sheet_sentence(struct eng_sheet *s, const char *name, const char *label, const char *text); /* wrapped */
void eng_sheet_count(struct eng_sheet *s, const char *name, const char *label, uint64_t n);
void eng_sheet_bytes(struct eng_sheet *s, const char *name, const char *label, uint64_t n);

void eng_print_bytes(FILE *out, uint64_t n); /* as "1.50 GiB" */

#endif
