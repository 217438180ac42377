/* engine/serve/accounts.h - the users of the server: a label of the key file each, with limits and counters.  Internal to
 * engine.
 *
 * An account is found by its label, so its counters go on when the key file is read again.  Accounts are never freed
 * before the table is closed: requests and logs may point to them.  All of it belongs to the serving thread.
 *
 * Tokens per minute are a bucket of that size, which fills evenly.  A request is accepted while the bucket is not empty; it
 * takes the tokens of its prompt at once and those of its answer as they come, which may bring the account into debt.  An
 * account in debt waits. */
#ifndef ENGINE_SERVE_ACCOUNTS_H
#define ENGINE_SERVE_ACCOUNTS_H

#include "engine/serve/api_keys.h"

enum eng_account_limit { ENG_LIMIT_REQUESTS, ENG_LIMIT_TOKENS, ENG_LIMIT_COUNT };

struct eng_account {
    struct eng_key_rules rules;
    bool used;          /* a request has come with a key of it that is not for metrics only */
    int n_running;      /* answers that run or wait */
    double tokens_left; /* in the bucket; below 0: debt */
    uint64_t filled_ns; /* when tokens_left was computed */
    uint64_t n_request; /* accepted requests for generation */
    uint64_t n_refused[ENG_LIMIT_COUNT];
    uint64_t prompt_tokens, cached_tokens, answer_tokens;
};

struct eng_accounts {
    struct eng_account **account; /* [n] */
    int n, room;
    int *of_key; /* [keys of the file]: index of the key's account */
    int n_label; /* different labels in the file now */
};

/* Finds or adds the account of each key, and takes over its rules.  KN_ENOMEM with a message: nothing has changed but
 * further accounts. */
int eng_accounts_take(struct eng_accounts *a, const struct eng_api_keys *k);
void eng_accounts_close(struct eng_accounts *a);

/* The seconds, at least 1, until the account may send requests again; 0: now.  NULL: 0. */
int eng_account_wait_s(struct eng_account *a, uint64_t now_ns);
/* True if n more answers may run or wait beside those of the account.  NULL: true. */
bool eng_account_has_room(const struct eng_account *a, int n);
void eng_account_spend(struct eng_account *a, int n_tok); /* NULL: nothing to do */

#endif
