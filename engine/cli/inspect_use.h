/* engine/cli/inspect_use.h - the part of `spillway inspect` that is about running the model.  Internal to engine. */
#ifndef ENGINE_CLI_INSPECT_USE_H
#define ENGINE_CLI_INSPECT_USE_H

#include "engine/cli/cli.h"
#include "engine/cli/sheet.h"

/* Opens the model.  KN_EUNSUPPORTED: it is a folder that is not supported, `why` has the reason, and nothing is logged. */
int eng_inspect_open(struct moe_file **out, const struct eng_config *c, char *why, size_t bytes);

/* Prints that a model does not run, and the reason. */
void eng_inspect_refused(struct eng_sheet *s, const char *why);

/* Prints whether the model runs here, memory, forecast of speed, chat template, forms of tool calls and reasoning. */
void eng_inspect_use(struct eng_sheet *s, const struct eng_config *c, const struct moe_file *f);

#endif
