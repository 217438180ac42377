/* engine/serve/accounts.c - labels of keys, found again after each reading of the key file; their bucket of tokens. */
#include "engine/serve/accounts.h"

#include <string.h>

#define MINUTE_NS 60e9

static int find(const struct eng_accounts *a, const struct eng_key_rules *r)
{
    for (int i = 0; i < a->n; i++)
        if (a->account[i]->rules.label_hash == r->label_hash && !strcmp(a->account[i]->rules.label, r->label))
            return i;
    return -1;
}

static int add(struct eng_accounts *a, const struct eng_key_rules *r)
{
    if (a->n == a->room) {
        int room = a->room ? 2 * a->room : 16;
        struct eng_account **grown = kn_realloc(a->account, (size_t)a->room * sizeof *grown,
                                                (size_t)room * sizeof *grown);
        if (!grown)
            return -1;
        a->account = grown;
        a->room = room;
    }
    struct eng_account *account = kn_calloc(1, sizeof *account);
    if (!account)
        return -1;
    memcpy(account->rules.label, r->label, sizeof r->label);
    account->rules.label_hash = r->label_hash;
    a->account[a->n] = account;
    return a->n++;
}

/* A bucket begins full, and a new size fills it to the same part. */
static void set_rules(struct eng_account *a, const struct eng_key_rules *rules, uint64_t now)
{
    int before = a->rules.tokens_per_minute, size = rules->tokens_per_minute;
    if (before != size) {
        a->tokens_left = before ? a->tokens_left * size / before : size;
        a->filled_ns = now;
    }
    a->rules = *rules;
}

int eng_accounts_take(struct eng_accounts *a, const struct eng_api_keys *k)
{
    int n = eng_api_keys_count(k), n_before = a->n;
    uint64_t now = kn_now_ns();
    int *of_key = kn_calloc((size_t)n, sizeof *of_key);
    bool *named = kn_calloc((size_t)(n_before + n), sizeof *named);
    int failed = !of_key || !named;
    for (int i = 0; i < n && !failed; i++) {
        of_key[i] = find(a, eng_api_keys_rules(k, i));
        if (of_key[i] < 0)
            of_key[i] = add(a, eng_api_keys_rules(k, i));
        failed = of_key[i] < 0;
    }
    if (failed) {
        kn_free(of_key);
        kn_free(named);
        return kn_fail(KN_ENOMEM, "no memory for keys");
    }
    a->n_label = 0;
    for (int i = 0; i < n; i++) {
        set_rules(a->account[of_key[i]], eng_api_keys_rules(k, i), now);
        a->n_label += !named[of_key[i]];
        named[of_key[i]] = true;
    }
    kn_free(named);
    kn_free(a->of_key);
    a->of_key = of_key;
    return 0;
}

void eng_accounts_close(struct eng_accounts *a)
{
    for (int i = 0; i < a->n; i++)
        kn_free(a->account[i]);
    kn_free(a->account);
    kn_free(a->of_key);
    *a = (struct eng_accounts){ 0 };
}

static void fill(struct eng_account *a, uint64_t now_ns)
{
    double size = a->rules.tokens_per_minute;
    if (now_ns > a->filled_ns)
        a->tokens_left += size * (double)(now_ns - a->filled_ns) / MINUTE_NS;
    if (a->tokens_left > size)
        a->tokens_left = size;
    a->filled_ns = now_ns;
}

int eng_account_wait_s(struct eng_account *a, uint64_t now_ns)
{
    if (!a || !a->rules.tokens_per_minute)
        return 0;
    fill(a, now_ns);
    return a->tokens_left > 0 ? 0 : 1 + (int)(-a->tokens_left * 60 / a->rules.tokens_per_minute);
}

bool eng_account_has_room(const struct eng_account *a, int n)
{
    return !a || !a->rules.most_requests || n <= a->rules.most_requests - a->n_running;
}

void eng_account_spend(struct eng_account *a, int n_tok)
{
    if (a && a->rules.tokens_per_minute)
        a->tokens_left -= n_tok;
}
