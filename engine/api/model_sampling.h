/* engine/api/model_sampling.h - the sampling parameters that a model's authors recommend.  Internal to engine.
 *
 * A GGUF file has them under general.sampling.*; a folder's generation_config.json is read into the same keys.  They
 * replace the program's defaults, and give way to flags and to the members of a request. */
#ifndef ENGINE_API_MODEL_SAMPLING_H
#define ENGINE_API_MODEL_SAMPLING_H

#include "moe/moe.h"
#include "speculative/speculative.h"

/* The bit of the parameter at this offset in struct spec_params; 0: models recommend no value for it. */
unsigned eng_model_sampling_bit(size_t offset);
#define ENG_MODEL_SAMPLING_NONE UINT32_MAX /* all bits: take nothing from the model */

/* Sets the parameters of *p that the file gives, except those whose bit is in `given`, and logs one line about them.  A
 * value that is out of range is ignored, with a warning. */
void eng_model_sampling(struct spec_params *p, unsigned given, const struct moe_file *f);

#endif
