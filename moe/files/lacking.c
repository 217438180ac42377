/* Families that the program knows by name but cannot run, and the properties that it lacks for them.  So the refusal of
 * such a model tells more than a list of the supported families. */
#include "moe/files/files.h"

static const struct {
    const char *arch, *model_type; /* general.architecture of GGUF files; model_type of config.json; or NULL */
    const char *lacks;
} families[] = {
    { NULL, "gemma3", "a vision part; folders of gemma3_text, and GGUF files of the text part, are supported" },
    { "gemma3n", "gemma3n", "embeddings for each layer and several residual streams" },
    { "gemma4-assistant", "gemma4_assistant", "draft models that read the keys and values of their target" },
    { NULL, "gemma4_unified", "a comparison of its folders; GGUF files of gemma4 are supported" },
    { NULL, "mimo_v2", "a configuration class to compare with; GGUF files of mimo2 are supported" },
    { NULL, "bailing_moe",
      "a configuration class to compare with; GGUF files of bailingmoe and bailingmoe2 are supported" },
    { NULL, "bailing_moe_v2", "a configuration class to compare with; GGUF files of bailingmoe2 are supported" },
    { "bailingmoe3", "bailing_hybrid", "linear attention with a fixed decay" },
    { "step35", "step3p7",
      "another number of heads and of rotated values in layers with a window, a gate for each head, and a limit of the "
      "activation by layer" },
    { NULL, "step3p5",
      "another number of heads and of rotated values in layers with a window, a gate for each head, and a limit of the "
      "activation by layer" },
};

const char *moe_family_lacks(struct moe_string name)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if ((families[i].arch && moe_string_is(name, families[i].arch)) ||
            (families[i].model_type && moe_string_is(name, families[i].model_type)))
            return families[i].lacks;
    return NULL;
}
