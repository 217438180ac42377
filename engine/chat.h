/* engine/chat.h - a conversation's turns as tokens.  Internal to engine. */
#ifndef ENGINE_CHAT_H
#define ENGINE_CHAT_H

#include "engine/text.h"

/* Can this vocabulary mark turns?  Says what is missing. */
int eng_chat_check(const struct eng_vocab *v, const char *path);

/* Appends a person's message and the beginning of the answer; the first turn gets BOS if the model asks. */
int eng_chat_turn(const struct eng_vocab *v, const char *text, struct eng_ids *ids);

/* Appends what closes the answer, unless the model has written it. */
int eng_chat_end(const struct eng_vocab *v, struct eng_ids *ids);

#endif
