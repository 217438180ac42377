/* engine/text/chat_prompt.h - conversations as a model's prompts.  Internal to engine.
 *
 * A request is {"messages": ..., "tools": ..., "add_generation_prompt": ...}; every other member is
 * a variable of the template too.  bos_token and eos_token are the model's unless the request has
 * them. */
#ifndef ENGINE_CHAT_H
#define ENGINE_CHAT_H

#include "engine/text/jinja/jinja.h"
#include "engine/text/text.h"

struct eng_chat;                                /* immutable: any number of threads may use it */

/* The template of the model's file, or one of ours by the marks of its vocabulary, and says which.
 * v has to outlive it; path is for messages. */
int eng_chat_open(struct eng_chat **out, const struct moe_file *f, const struct eng_vocab *v,
                  const char *path);
void eng_chat_close(struct eng_chat *c);

/* The template itself, while f is open. */
struct moe_string eng_chat_text(const struct eng_chat *c);

/* The prompt as text, exactly; *text is to be freed with kn_free. */
int eng_chat_render(const struct eng_chat *c, const json_t *request, char **text, size_t *n,
                    struct eng_template_error *error);

/* The prompt as tokens, appended.  What the template itself writes may be special tokens; the texts
 * of the request never become control tokens, whatever they hold. */
int eng_chat_tokens(const struct eng_chat *c, const json_t *request, struct eng_ids *ids,
                    struct eng_template_error *error);

#endif
