/* engine/text/chat_prompt.h - chat template of a model: a conversation to a prompt.  Internal to
 * engine.
 *
 * A request is {"messages": ..., "tools": ..., "add_generation_prompt": ...}.  Every member of the
 * request, also one that is not named here, is a template variable.  bos_token and eos_token default
 * to the texts of the model's BOS and EOS tokens.
 *
 * One member is no variable: "continue_final_message", true or the name of a member of the last message ("content",
 * "reasoning_content").  The prompt then ends with the text of this member: all output of the template behind the text, such
 * as an end of turn, is cut off, and the answer continues the text. */
#ifndef ENGINE_TEXT_CHAT_PROMPT_H
#define ENGINE_TEXT_CHAT_PROMPT_H

#include "engine/text/jinja/jinja.h"
#include "engine/text/text.h"

struct eng_chat; /* immutable after open: shared by threads */

/* Compiles tokenizer.chat_template of the file.  Without one, uses a built-in template chosen by the
 * special tokens of the vocabulary, and logs the choice; KN_EUNSUPPORTED if no built-in template fits.  v must outlive
 * *out; path is the file's name for log messages. */
int eng_chat_open(struct eng_chat **out, const struct moe_file *f, const struct eng_vocab *v, const char *path);
/* The same with the template in the text file at path instead of the model's. */
int eng_chat_open_template(struct eng_chat **out, const struct eng_vocab *v, const char *path);
void eng_chat_close(struct eng_chat *c);

/* True if the model's file has a template; or, with v not NULL, if a built-in one fits its vocabulary. */
bool eng_chat_exists(const struct moe_file *f, const struct eng_vocab *v);

/* The source of the template.  Valid while the chat and the file passed to eng_chat_open are open. */
struct moe_string eng_chat_text(const struct eng_chat *c);

/* Renders the prompt as text, *n bytes; the caller frees *text with kn_free. */
int eng_chat_render(const struct eng_chat *c, const json_t *request, char **text, size_t *n,
                    struct eng_template_error *error);

/* Appends the tokens of the prompt to ids.  Text written by the template may become special tokens.  The text of a
 * control token in a string of the request does not become that token.  But a string may form a control token together
 * with text of the template around it: "<|", a role from the request, "|>". */
int eng_chat_tokens(const struct eng_chat *c, const json_t *request, struct eng_ids *ids,
                    struct eng_template_error *error);

#endif
