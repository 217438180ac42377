/* engine/fit_file.h - what `fit` found, in a file: NAME=NUMBER a line.  Internal to engine. */
#ifndef ENGINE_FIT_FILE_H
#define ENGINE_FIT_FILE_H

#include "moe/moe.h"
#include "speculative/fit.h"

/* Can such a file be written, before minutes of measuring?  What is there stays as it is, and nothing new is left. */
int eng_fit_check(const char *path);
int eng_fit_write(const char *path, const char *model, const struct spec_fit *fit);

/* Refuses what is incomplete, or of a model with other experts. */
int eng_fit_read(const char *path, const struct moe_shape *shape, struct spec_cost_model *out);

#endif
