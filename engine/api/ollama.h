/* engine/api/ollama.h - the bodies of Ollama's API, rewritten as bodies of OpenAI's.  Internal to engine/api. */
#ifndef ENGINE_API_OLLAMA_H
#define ENGINE_API_OLLAMA_H

#include "engine/api/internal.h"

/* Rewrites p->body, of /api/chat or /api/generate (p->ask->form), as a body of chat completions or, for a prompt that
 * no template may change, of completions: p->ask->api says which, and p->ask->body owns it.  False: the body has
 * nothing to answer; clients send such bodies to load or to unload a model. */
bool eng_ollama_rewrite(struct eng_parse *p);

#endif
